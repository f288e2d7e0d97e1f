// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// valid returns a policy for pool worker, with changes.
func valid(with func(*v1alpha1.AttestationPolicySpec)) v1alpha1.AttestationPolicy {
	p := v1alpha1.AttestationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "workers"}}
	p.Spec.Pools = []string{"worker"}
	p.Spec.Evidence = []v1alpha1.EvidenceAlternative{{All: []string{"gcp-identity", "tpm2"}}, {All: []string{"tpm2"}}}
	if with != nil {
		with(&p.Spec)
	}
	return p
}

func compile(t *testing.T, policies ...v1alpha1.AttestationPolicy) *Set {
	t.Helper()
	set, err := Compile(policies...)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func policyFor(t *testing.T, set *Set, pool string) Policy {
	t.Helper()
	p, err := set.For(pool)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func code(err error) reason.Code {
	if err == nil {
		return 0
	}
	return reason.From(err).Code
}

func TestEmptySpec_RequiresAnEnrolledTPMForEveryPool(t *testing.T) {
	p := policyFor(t, compile(t, v1alpha1.AttestationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "x"}}), "worker")
	want := Policy{
		Name: "x", Pool: "worker", Wildcard: true,
		Mode: v1alpha1.ModeEnforce, Unattested: v1alpha1.UnattestedDeny,
		Alternatives: [][]evidence.Kind{{evidence.TPM2}},
		Binding:      v1alpha1.BindingExporter,
		Endorsements: []v1alpha1.Endorsement{v1alpha1.EndorsementEnrolled}, Approval: v1alpha1.ApprovalManual,
		Profile: measuredboot.IdentityOnly, ProfileAction: v1alpha1.ProfileEnforce, Banks: []uint16{0x0B, 0x0C},
		TokenLifetime: 10 * time.Minute, TokenUses: 3, ChallengeLifetime: 2 * time.Minute, MaxMachineAge: 2 * time.Hour,
	}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got  %+v\nwant %+v", p, want)
	}
}

func TestFor(t *testing.T) {
	rest := valid(func(s *v1alpha1.AttestationPolicySpec) { s.Pools = []string{"*"}; s.Mode = v1alpha1.ModeOff })
	rest.Name = "rest"
	set := compile(t, rest, valid(nil))
	for pool, want := range map[string]string{"worker": "workers", "master": "rest", "infra.gpu-2": "rest"} {
		if p := policyFor(t, set, pool); p.Name != want || p.Pool != pool {
			t.Errorf("%s: policy %s for pool %s, expected %s", pool, p.Name, p.Pool, want)
		}
	}
	for _, pool := range []string{"", "*", "Worker", "work er", "../master", "-a", strings.Repeat("a", 300)} {
		if _, err := set.For(pool); code(err) != reason.PoolUnknown {
			t.Errorf("pool %.20q: %v", pool, err)
		}
	}
	if _, err := new(Set).For("worker"); code(err) != reason.PoolUnknown {
		t.Errorf("without policies: %v", err)
	}
	if got := set.Pools(); !slices.Equal(got, []string{"worker", "*"}) {
		t.Errorf("Pools: %v", got)
	}

	suspended := set.Suspended("policies/master.yaml")
	if p := policyFor(t, suspended, "worker"); p.Name != "workers" {
		t.Errorf("suspended, worker: %s", p.Name)
	}
	if _, err := suspended.For("master"); code(err) != reason.PoolUnknown {
		t.Errorf("suspended: master fell back to the policy for every pool: %v", err)
	}
}

// Each policy of the set has the file, and the content of the policy stays the same.
func TestSet_WithUnreadReferences(t *testing.T) {
	rest := valid(func(s *v1alpha1.AttestationPolicySpec) { s.Pools = nil })
	rest.Name = "rest"
	set := compile(t, rest, valid(nil))
	unread := set.WithUnreadReferences("reference-values/a.yaml")
	for _, pool := range []string{"worker", "master"} {
		before, p, after := policyFor(t, set, pool), policyFor(t, unread, pool),
			policyFor(t, unread.WithUnreadReferences(""), pool)
		if before.UnreadReferences != "" || p.UnreadReferences != "reference-values/a.yaml" || after.UnreadReferences != "" {
			t.Errorf("pool %s: %q, %q, %q", pool, before.UnreadReferences, p.UnreadReferences, after.UnreadReferences)
		}
		if p.Hash() != before.Hash() {
			t.Errorf("pool %s: another hash", pool)
		}
	}
	if p := policyFor(t, unread.Suspended("policies/a.yaml"), "worker"); p.UnreadReferences == "" {
		t.Error("suspended: the file is lost")
	}
	both := set.Suspended("policies/a.yaml").WithUnreadReferences("b")
	if _, err := both.For("master"); code(err) != reason.PoolUnknown {
		t.Errorf("%v", err)
	}
}

// Status row E18: tpm AND cloud, tpm OR cloud.
func TestMixedPolicies(t *testing.T) {
	const tpm, gcp, aws = evidence.TPM2, evidence.GCPIdentity, evidence.AWSIID
	and := policyFor(t, compile(t, valid(func(s *v1alpha1.AttestationPolicySpec) {
		s.Evidence = []v1alpha1.EvidenceAlternative{{All: []string{"gcp-identity", "tpm2"}}}
	})), "worker")
	or := policyFor(t, compile(t, valid(func(s *v1alpha1.AttestationPolicySpec) {
		s.Evidence = []v1alpha1.EvidenceAlternative{{All: []string{"tpm2"}}, {All: []string{"gcp-identity"}}}
	})), "worker")
	for name, c := range map[string]struct {
		policy              Policy
		offered, want, sent []evidence.Kind
		code                reason.Code
	}{
		"and: both offered and sent": {and, []evidence.Kind{gcp, tpm}, []evidence.Kind{tpm, gcp},
			[]evidence.Kind{gcp, tpm}, 0},
		"and: one offered, both asked for": {and, []evidence.Kind{tpm}, []evidence.Kind{tpm, gcp}, []evidence.Kind{tpm},
			reason.EvidenceMissing},
		"or: the TPM is preferred":            {or, []evidence.Kind{gcp, tpm}, []evidence.Kind{tpm}, []evidence.Kind{tpm}, 0},
		"or: the cloud where there is no TPM": {or, []evidence.Kind{gcp}, []evidence.Kind{gcp}, []evidence.Kind{gcp}, 0},
		"or: neither": {or, []evidence.Kind{aws}, []evidence.Kind{tpm}, []evidence.Kind{aws},
			reason.EvidenceMissing},
		"or: more than asked for does not hurt": {or, []evidence.Kind{tpm}, []evidence.Kind{tpm},
			[]evidence.Kind{tpm, aws}, 0},
		"or: the other one than was asked for": {or, []evidence.Kind{gcp, tpm}, []evidence.Kind{tpm}, []evidence.Kind{gcp},
			reason.EvidenceMissing},
		"nothing offered leads to the first one": {or, nil, []evidence.Kind{tpm}, nil, reason.EvidenceMissing},
	} {
		t.Run(name, func(t *testing.T) {
			required := c.policy.Choose(c.offered)
			if !slices.Equal(required, c.want) {
				t.Errorf("required %v, expected %v", required, c.want)
			}
			if got := code(c.policy.Satisfied(required, c.sent)); got != c.code {
				t.Errorf("code %v, expected %v", got, c.code)
			}
		})
	}
	if got := and.Kinds(); !slices.Equal(got, []evidence.Kind{tpm, gcp}) {
		t.Errorf("Kinds: %v", got)
	}
}

func TestAttack_T13_LessOrWeakerEvidence(t *testing.T) {
	p := policyFor(t, compile(t, valid(func(s *v1alpha1.AttestationPolicySpec) {
		s.Evidence = []v1alpha1.EvidenceAlternative{{All: []string{"aws-sts", "tpm2"}}, {All: []string{"tpm2", "aws-iid"}}}
	})), "worker")
	const tpm, iid, sts, token = evidence.TPM2, evidence.AWSIID, evidence.AWSSTS, evidence.ProvisioningToken
	honest := []evidence.Kind{tpm, sts}
	if err := p.Satisfied(p.Choose(honest), honest); err != nil {
		t.Fatalf("the honest machine: %v", err)
	}

	for name, offered := range map[string][]evidence.Kind{
		"nothing": nil, "only the TPM": {tpm}, "only the weakest kind": {token}, "a document that can be replayed": {iid},
		"a kind that does not exist": {99}, "the zero kind": {0}, "the same kind many times": {iid, iid, iid},
	} {
		required := p.Choose(offered)
		if !slices.Equal(required, []evidence.Kind{tpm, sts}) {
			t.Errorf("offering %s: %v is required, expected the first alternative", name, required)
		}
		if got := code(p.Satisfied(required, offered)); got != reason.EvidenceMissing {
			t.Errorf("offering %s: %v, expected EvidenceMissing", name, got)
		}
	}
	for name, verified := range map[string][]evidence.Kind{
		"nothing sent": {}, "the cloud's statement left out": {tpm}, "the TPM left out": {sts},
		"a weaker kind in its place": {tpm, iid}, "the weakest in its place": {tpm, token},
	} {
		if got := code(p.Satisfied(p.Choose(honest), verified)); got != reason.EvidenceMissing {
			t.Errorf("%s: %v, expected EvidenceMissing", name, got)
		}
	}
	// A challenge under the policy cannot require sets that the policy does not have.
	for _, required := range [][]evidence.Kind{nil, {tpm}, {token}} {
		if got := code(p.Satisfied(required, honest)); got != reason.PolicyChanged {
			t.Errorf("required %v: %v, expected PolicyChanged", required, got)
		}
	}
}

func TestBank(t *testing.T) {
	p := policyFor(t,
		compile(t, valid(func(s *v1alpha1.AttestationPolicySpec) { s.TPM2.Banks = []string{"sha384", "sha256"} })), "worker")
	for name, c := range map[string]struct {
		offered []uint16
		want    uint16
		code    reason.Code
	}{
		"the policy's order decides": {[]uint16{0x0B, 0x0C}, 0x0C, 0},
		"the one that there is":      {[]uint16{0x04, 0x0B}, 0x0B, 0},
		"only SHA-1":                 {[]uint16{0x04}, 0, reason.PCRSelection},
		"none":                       {nil, 0, reason.PCRSelection},
	} {
		if got, err := p.Bank(c.offered); got != c.want || code(err) != c.code {
			t.Errorf("%s: %#x, %v", name, got, err)
		}
	}
}

func TestHashCoversTheContentAndNotTheName(t *testing.T) {
	base := policyFor(t, compile(t, valid(nil)), "worker").Hash()
	if again := policyFor(t, compile(t, valid(nil)), "worker").Hash(); again != base {
		t.Error("the same policy has two hashes")
	}
	renamed := valid(nil)
	renamed.Name = "other"
	if policyFor(t, compile(t, renamed), "worker").Hash() != base {
		t.Error("the name counts")
	}
	key := strings.Repeat("ab", 32)
	seen := map[[32]byte]string{base: "none"}
	for name, with := range map[string]func(*v1alpha1.AttestationPolicySpec){
		"pool":       func(s *v1alpha1.AttestationPolicySpec) { s.Pools = []string{"*"} },
		"mode":       func(s *v1alpha1.AttestationPolicySpec) { s.Mode = v1alpha1.ModeAudit },
		"unattested": func(s *v1alpha1.AttestationPolicySpec) { s.Unattested = v1alpha1.UnattestedPreApproved },
		"evidence":   func(s *v1alpha1.AttestationPolicySpec) { s.Evidence = s.Evidence[1:] },
		"binding": func(s *v1alpha1.AttestationPolicySpec) {
			s.Binding, s.FrontEndKeys = v1alpha1.BindingTerminated, []string{key}
		},
		"endorsements": func(s *v1alpha1.AttestationPolicySpec) {
			s.TPM2.Endorsements = []v1alpha1.Endorsement{"manufacturer"}
		},
		"stage":             func(s *v1alpha1.AttestationPolicySpec) { s.Stage = v1alpha1.StageRealRoot },
		"approval":          func(s *v1alpha1.AttestationPolicySpec) { s.TPM2.Approval = v1alpha1.ApprovalFirstUse },
		"profile":           func(s *v1alpha1.AttestationPolicySpec) { s.TPM2.Profile = "secure-boot" },
		"profileAction":     func(s *v1alpha1.AttestationPolicySpec) { s.TPM2.ProfileAction = v1alpha1.ProfileWarn },
		"banks":             func(s *v1alpha1.AttestationPolicySpec) { s.TPM2.Banks = []string{"sha384"} },
		"referenceValues":   func(s *v1alpha1.AttestationPolicySpec) { s.TPM2.ReferenceValues = []string{"a"} },
		"token.lifetime":    func(s *v1alpha1.AttestationPolicySpec) { s.Token.Lifetime.Duration = time.Minute },
		"token.uses":        func(s *v1alpha1.AttestationPolicySpec) { s.Token.Uses = 1 },
		"challengeLifetime": func(s *v1alpha1.AttestationPolicySpec) { s.ChallengeLifetime.Duration = time.Minute },
		"maxMachineAge":     func(s *v1alpha1.AttestationPolicySpec) { s.MaxMachineAge.Duration = time.Minute },
		"provisioningTokenAlone": func(s *v1alpha1.AttestationPolicySpec) {
			s.Evidence = append(s.Evidence, v1alpha1.EvidenceAlternative{All: []string{"provisioning-token"}})
			s.ProvisioningTokenAlone = true
		},
		"provisioningToken.urlParameter": func(s *v1alpha1.AttestationPolicySpec) { s.ProvisioningToken.URLParameter = true },
		"provisioningToken.whenAbsent": func(s *v1alpha1.AttestationPolicySpec) {
			s.ProvisioningToken.WhenAbsent, s.Unattested = v1alpha1.WhenAbsentOpen, v1alpha1.UnattestedDeny
			s.Evidence, s.ProvisioningTokenAlone = []v1alpha1.EvidenceAlternative{{All: []string{"provisioning-token"}}}, true
		},
	} {
		h := policyFor(t, compile(t, valid(with)), "worker").Hash()
		if other, ok := seen[h]; ok {
			t.Errorf("changing %s has the hash of changing %s", name, other)
		}
		seen[h] = name
	}
}

const file = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: workers
spec:
  pools: [worker]
  mode: Enforce
  unattested: Deny
  evidence:
  - all: [gcp-identity, tpm2]
  - all: [tpm2]
  binding: Exporter
  tpm2:
    endorsements: [enrolled]
    profile: identity-only
    profileAction: Enforce
    banks: [sha256]
    approval: Manual
  token:
    lifetime: 10m
    uses: 3
  challengeLifetime: 2m
  maxMachineAge: 2h
`

func TestParse_ReportsTheFault(t *testing.T) {
	parsed, problems := Parse("p.yaml", []byte(file))
	if len(problems) > 0 || len(parsed) != 1 {
		t.Fatalf("the valid file: %v", problems)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"an unknown field": {"mode:", "mod:", `p.yaml:7: unknown field "spec.mod"`},
		"an unknown mode": {"mode: Enforce", "mode: enforce",
			`p.yaml:7: spec.mode: "enforce" is not a valid value; one of Enforce, Audit, Off`},
		"mode as a boolean":           {"mode: Enforce", "mode: false", "p.yaml:7: spec.mode is a boolean"},
		"an unknown kind of evidence": {"[tpm2]", "[tpm]", `p.yaml:11: spec.evidence[1].all[0]: "tpm" is not a kind of evidence; one of tpm2, aws-iid, aws-sts, gcp-identity, azure-attested, provisioning-token`},
		"an empty alternative": {"[tpm2]", "[]",
			"p.yaml:11: spec.evidence[1].all: an empty alternative would admit every machine"},
		"a kind twice": {"[tpm2]", "[tpm2, tpm2]", "p.yaml:11: spec.evidence[1].all[1]: tpm2 is listed twice"},
		"only the shared secret": {"[tpm2]", "[provisioning-token]",
			"p.yaml:11: spec.evidence[1].all: a shared secret would be the only evidence for this pool"},
		"only provisioningTokenAlone": {"  challengeLifetime: 2m", "  provisioningTokenAlone: true",
			"p.yaml:22: spec.provisioningTokenAlone: no alternative has only"},
		"a pool's name": {"[worker]", "[worker, Infra]", `p.yaml:6: spec.pools[1]: "Infra" is not a pool name`},
		"a pool twice":  {"[worker]", "[worker, worker]", ""},
		"binding Terminated, no keys": {"binding: Exporter", "binding: Terminated",
			"p.yaml:12: spec.binding: Terminated without frontEndKeys"},
		"front end keys under Exporter": {"  binding: Exporter", `  frontEndKeys: ["` + strings.Repeat("0", 64) + `"]`,
			"p.yaml:12: spec.frontEndKeys: front-end keys have no effect with binding Exporter"},
		"a key that is not hexadecimal": {"binding: Exporter", "binding: Terminated\n  frontEndKeys: [" +
			strings.Repeat("z", 64) + "]", "p.yaml:13: spec.frontEndKeys[0]: "},
		"a bank twice": {"[sha256]", "[sha256, sha256]", "p.yaml:17: spec.tpm2.banks[1]: sha256 is listed twice"},
		"a key that is no hash": {"  binding: Exporter", `  frontEndKeys: ["abc"]`,
			`p.yaml:12: spec.frontEndKeys[0]: "abc" is not a SHA-256`},
		"an unknown endorsement": {"[enrolled]", "[enroled]", `p.yaml:14: spec.tpm2.endorsements[0]: "enroled" is not an endorsement; one of provider, ak-certificate, enrolled, manufacturer`},
		"an unknown profile": {"identity-only", "identity",
			`p.yaml:15: spec.tpm2.profile: measured boot profile "identity" is not one of`},
		"a profile that does not exist": {"identity-only", "paranoid", `p.yaml:15: spec.tpm2.profile: measured boot profile "paranoid" is not one of identity-only, secure-boot, release, strict`},
		"the SHA-1 bank": {"[sha256]", "[sha1]",
			`p.yaml:17: spec.tpm2.banks[0]: "sha1" is not a supported PCR bank; sha256 or sha384`},
		"a token that lives too long": {"lifetime: 10m", "lifetime: 24h",
			"p.yaml:20: spec.token.lifetime: 24h0m0s is out of bounds; 1m0s to 1h0m0s"},
		"a negative lifetime": {"lifetime: 10m", "lifetime: -10m", "p.yaml:20: spec.token.lifetime: -10m0s is out of bounds"},
		"too many uses":       {"uses: 3", "uses: 1000", "p.yaml:21: spec.token.uses: 1000 uses; 1 to 10"},
		"a challenge that lives too long": {"challengeLifetime: 2m", "challengeLifetime: 1h",
			"p.yaml:22: spec.challengeLifetime: 1h0m0s is out of bounds"},
		"a Machine's age of nothing": {"maxMachineAge: 2h", "maxMachineAge: 1s",
			"p.yaml:23: spec.maxMachineAge: 1s is out of bounds; at least 1m0s"},
		"an unknown stage": {"  maxMachineAge: 2h", "  stage: realroot",
			`p.yaml:23: spec.stage: "realroot" is not a valid value; one of Initramfs, RealRoot`},
		"no name":                {"  name: workers", "  labels: {}", "p.yaml:3: metadata.name: the policy has no name"},
		"another kind of object": {"kind: AttestationPolicy", "kind: ConfigMap", "p.yaml:2: this is a ConfigMap"},
		"another version": {"v1alpha1", "v2",
			"a policy has kind AttestationPolicy and apiVersion mcs-attest.dev/v1alpha1"},
		"not YAML": {file, "spec: [", "not YAML"},
	} {
		t.Run(name, func(t *testing.T) {
			problems := Check(File{"p.yaml", []byte(strings.Replace(file, c.old, c.new, 1))})
			if !manifest.Failed(problems) {
				t.Fatalf("accepted: %v", problems)
			}
			if got := problems[0].Error(); !strings.Contains(got, c.want) {
				t.Errorf("problem %q\nexpected %q", got, c.want)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"an unquoted Off": {"mode: Enforce", "mode: Off", `write mode: "Off"`},
		"PreApproved under Audit": {"mode: Enforce\n  unattested: Deny", "mode: Audit\n  unattested: PreApproved",
			"PreApproved has no effect in mode Audit"},
		"a stage that needs the pre-approved config": {"unattested: Deny", "stage: RealRoot",
			"RealRoot has no effect with unattested: Deny"},
		"only an instance document": {"- all: [tpm2]", "- all: [aws-iid]", "can be replayed"},
		"a URL where a token opens nothing": {"  mode: Enforce", "  provisioningToken: {urlParameter: true}\n  mode: Enforce",
			"the provisioning token does not suffice by itself"},
		"a token in the URL": {"- all: [tpm2]", "- all: [provisioning-token]\n  provisioningTokenAlone: true\n " +
			" provisioningToken: {urlParameter: true}", "every proxy on the path log a token"},
		"an alternative never chosen": {"- all: [gcp-identity, tpm2]\n  - all: [tpm2]",
			"- all: [tpm2]\n  - all: [gcp-identity, tpm2]", "p.yaml:11: warning: spec.evidence[1].all: never selected"},
		"first use of enrolled TPMs": {"approval: Manual", "approval: FirstUse",
			"FirstUse has no effect without the endorsement manufacturer"},
		"first use that names no cloud": {"endorsements: [enrolled]\n    profile: identity-only\n    profileAction: " +
			"Enforce\n    banks: [sha256]\n    approval: Manual", "endorsements: [manufacturer]\n    approval: FirstUse", ""},
	} {
		t.Run(name, func(t *testing.T) {
			raw := strings.Replace(file, c.old, c.new, 1)
			if name == "first use that names no cloud" {
				raw, c.want = strings.Replace(raw, "gcp-identity", "aws-iid", 1), "FirstUse never applies"
			}
			parsed, problems := Parse("p.yaml", []byte(raw))
			if len(parsed) != 1 || len(problems) != 1 || !strings.Contains(problems[0].Error(), c.want) {
				t.Errorf("%v, expected a warning %q", problems, c.want)
			}
		})
	}
}

func TestWarnings_OnlyWhereTheyApply(t *testing.T) {
	for name, c := range map[string]struct{ old, new string }{
		"nothing":                              {"", ""},
		"a stage with the pre-approved config": {"unattested: Deny", "unattested: PreApproved\n  stage: RealRoot"},
		"Azure's document without a TPM": {"- all: [gcp-identity, tpm2]\n  - all: [tpm2]\n  binding: Exporter\n  tpm2:\n" +
			"    endorsements: [enrolled]", "- all: [azure-attested]\n  tpm2:\n    endorsements: [provider]"},
		"an instance document, and an enrolled TPM by default": {"- all: [gcp-identity, tpm2]\n  - all: [tpm2]\n" +
			"  binding: Exporter\n  tpm2:\n    endorsements: [enrolled]", "- all: [aws-iid, tpm2]\n  tpm2:"},
	} {
		if c.old != "" && !strings.Contains(file, c.old) {
			t.Fatalf("%s: the file has no %q", name, c.old)
		}
		parsed, problems := Parse("p.yaml", []byte(strings.Replace(file, c.old, c.new, 1)))
		if len(parsed) != 1 || len(problems) != 0 {
			t.Errorf("%s: %v", name, problems)
		}
	}
}

// Administrators find in a denial what the policy requires.
func TestDenials_NameWhatIsRequired(t *testing.T) {
	p := policyFor(t, compile(t, valid(nil)), "worker")
	if err := p.Satisfied([]evidence.Kind{evidence.GCPIdentity, evidence.TPM2}, []evidence.Kind{evidence.TPM2,
		evidence.GCPIdentity}); err != nil {
		t.Errorf("the order counts: %v", err)
	}
	_, noBank := p.Bank([]uint16{4, 5, 6, 7, 8, 9, 10, 4, 5})
	_, suspended := compile(t, valid(nil)).Suspended("policies/master.yaml").For("master")
	for want, err := range map[string]error{
		"the challenge required nothing, which": p.Satisfied(nil, nil),
		"the challenge required tpm2+aws-iid, which": p.Satisfied([]evidence.Kind{evidence.AWSIID, evidence.TPM2},
			nil),
		"policy workers for pool worker requires tpm2":              p.Satisfied([]evidence.Kind{evidence.TPM2}, nil),
		"accepts the banks sha256, sha384, but the TPM offers":      noBank,
		"[0x0004 0x0005 0x0006 0x0007 0x0008 0x0009 0x000a 0x0004]": noBank,
		"policies/master.yaml cannot be read":                       suspended,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %q", err, want)
		}
	}
}

func TestKinds_AreAscendingAndUnique(t *testing.T) {
	p := policyFor(t, compile(t, valid(func(s *v1alpha1.AttestationPolicySpec) {
		s.Evidence = []v1alpha1.EvidenceAlternative{{All: []string{"gcp-identity"}}, {All: []string{"tpm2"}},
			{All: []string{"aws-sts", "tpm2"}}}
	})), "worker")
	if got := p.Kinds(); !slices.Equal(got, []evidence.Kind{evidence.TPM2, evidence.AWSSTS, evidence.GCPIdentity}) {
		t.Errorf("%v", got)
	}
}

// What an administrator reads while the provisioning token does not exist.
func TestWithoutProvisioningToken_NamesThePoolsThatNeedIt(t *testing.T) {
	type spec = v1alpha1.AttestationPolicySpec
	alternatives := func(kinds ...string) func(*spec) {
		return func(s *spec) {
			s.Evidence = nil
			for _, k := range kinds {
				s.Evidence = append(s.Evidence, v1alpha1.EvidenceAlternative{All: []string{k}})
				s.ProvisioningTokenAlone = s.ProvisioningTokenAlone || k == "provisioning-token"
			}
		}
	}
	open := func(s *spec) {
		alternatives("provisioning-token")(s)
		s.ProvisioningToken.WhenAbsent = v1alpha1.WhenAbsentOpen
	}
	off := func(s *spec) {
		alternatives("provisioning-token")(s)
		s.Mode = v1alpha1.ModeOff
	}
	const (
		waits = "the policy of pool %s requires it, so machines that need it wait"
		opens = "the policy of pool %s has whenAbsent: Open, so every caller receives the full config"
	)
	for name, c := range map[string]struct {
		pools map[string]func(*spec)
		want  string
	}{
		"no pool needs it": {map[string]func(*spec){"worker": alternatives("tpm2"), "*": off}, ""},
		"pools wait": {map[string]func(*spec){"worker": alternatives("provisioning-token", "tpm2"),
			"infra": alternatives("provisioning-token"), "master": alternatives("tpm2")},
			fmt.Sprintf("there is no provisioning token; "+waits, "infra, worker")},
		"a pool is open": {map[string]func(*spec){"*": open},
			fmt.Sprintf("there is no provisioning token; "+opens, "*")},
		"both": {map[string]func(*spec){"worker": alternatives("provisioning-token"), "*": open, "infra": open},
			fmt.Sprintf("there is no provisioning token; "+waits+"; "+opens, "worker", "infra, *")},
	} {
		var policies []v1alpha1.AttestationPolicy
		for pool, with := range c.pools {
			p := valid(func(s *spec) { s.Pools = []string{pool}; with(s) })
			p.Name = "p" + strings.Trim(pool, "*")
			policies = append(policies, p)
		}
		if got := compile(t, policies...).WithoutProvisioningToken(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A policy whose reference values are missing accepts no machine, so 'policy check' reports it.
func TestCheckReferences(t *testing.T) {
	refs := func(names ...string) (all []measuredboot.ReferenceValues) {
		for _, name := range names {
			r := measuredboot.ReferenceValues{}
			if r.Metadata.Name = name; strings.HasPrefix(name, "firmware") {
				r.Firmware = &measuredboot.Firmware{}
			}
			if strings.HasPrefix(name, "uki") {
				r.PCR11 = make([]measuredboot.PCRValue, 1)
				r.Applications = make([]measuredboot.Component, strings.Count(name, "+"))
			}
			all = append(all, r)
		}
		return all
	}
	const (
		noImage    = "accepts no machine, because no reference values of the policy are of an image"
		noFirmware = "strict accepts no machine, because no reference values of the policy are a firmware set"
	)
	for name, c := range map[string]struct {
		profile, selected string
		refs              []measuredboot.ReferenceValues
		want              []string
	}{
		"a profile without reference values": {"secure-boot", "", nil, nil},
		"release":                            {"release", "", refs("image"), nil},
		"a UKI":                              {"secure-boot", "", refs("uki+app"), nil},
		"a UKI without applications": {"secure-boot", "", refs("uki", "uki+app"),
			[]string{`secure-boot does not accept the image of "uki", because the document has no applications`}},
		"a UKI without applications that is not selected":        {"secure-boot", "image", refs("uki", "image"), nil},
		"a UKI without applications, whose image is not checked": {"identity-only", "", refs("uki"), nil},
		"release without any": {"release", "", nil,
			[]string{"p.yaml:15: spec.tpm2.profile: release " + noImage}},
		"release, only of a firmware":  {"release", "", refs("firmware"), []string{"release " + noImage}},
		"release, of the other images": {"release", "image-1", refs("image-0", "image-1"), nil},
		"release, with a wrong name": {"release", "image-1, image-2", refs("image-1"),
			[]string{`p.yaml:16: spec.tpm2.referenceValues[1]: no reference values are named "image-2"`}},
		"release, only with a wrong name": {"release", "image-1", refs("image-0"),
			[]string{`spec.tpm2.referenceValues[0]: no reference values are named "image-1"`, "release " + noImage}},
		"strict": {"strict", "", refs("image", "firmware"), nil},
		"strict without any": {"strict", "", nil,
			[]string{"p.yaml:15: spec.tpm2.profile: " + noFirmware, "strict " + noImage}},
		"strict without a firmware":                   {"strict", "", refs("image"), []string{noFirmware}},
		"strict without an image":                     {"strict", "", refs("firmware"), []string{"strict " + noImage}},
		"strict with a firmware that is not selected": {"strict", "image", refs("image", "firmware"), []string{noFirmware}},
	} {
		raw := strings.Replace(file, "profile: identity-only", "profile: "+c.profile, 1)
		if c.selected != "" {
			raw = strings.Replace(raw, "    profileAction", "    referenceValues: ["+c.selected+"]\n    profileAction", 1)
		}
		problems := CheckReferences(c.refs, File{"p.yaml", []byte(raw)}, File{"broken.yaml", []byte("spec: [")})
		ok := len(problems) == len(c.want)
		for i := 0; ok && i < len(problems); i++ {
			ok = !problems[i].Warning && strings.Contains(problems[i].Error(), c.want[i])
		}
		if !ok {
			t.Errorf("%s: %v, want %q", name, problems, c.want)
		}
	}
}

func TestOnlyProvisioningToken(t *testing.T) {
	for name, c := range map[string]struct {
		evidence [][]string
		want     bool
	}{
		"nothing said":           {nil, false},
		"only it":                {[][]string{{"provisioning-token"}}, true},
		"it or a TPM":            {[][]string{{"provisioning-token"}, {"tpm2"}}, false},
		"it together with a TPM": {[][]string{{"provisioning-token", "tpm2"}}, false},
		"a TPM":                  {[][]string{{"tpm2"}}, false},
	} {
		p := policyFor(t, compile(t, valid(func(s *v1alpha1.AttestationPolicySpec) {
			s.Evidence = nil
			for _, all := range c.evidence {
				s.Evidence = append(s.Evidence, v1alpha1.EvidenceAlternative{All: all})
				s.ProvisioningTokenAlone = s.ProvisioningTokenAlone || len(all) == 1 && all[0] == "provisioning-token"
			}
		})), "worker")
		if p.OnlyProvisioningToken() != c.want {
			t.Errorf("%s: %t", name, !c.want)
		}
	}
	if (Policy{}).OnlyProvisioningToken() {
		t.Error("a policy without alternatives is that of the provisioning token")
	}
}

func TestWithoutAgents_NamesThePoolsThatServeNoAgent(t *testing.T) {
	type spec = v1alpha1.AttestationPolicySpec
	for name, c := range map[string]struct {
		with func(*spec)
		want bool
	}{
		"stage Initramfs": {func(s *spec) { s.Unattested = v1alpha1.UnattestedPreApproved }, false},
		"stage RealRoot": {func(s *spec) {
			s.Unattested, s.Stage = v1alpha1.UnattestedPreApproved, v1alpha1.StageRealRoot
		}, true},
		"no pre-approved config": {func(s *spec) {
			s.Unattested, s.Stage = v1alpha1.UnattestedDeny, v1alpha1.StageRealRoot
		}, false},
		"mode Audit": {func(s *spec) {
			s.Mode, s.Unattested, s.Stage = v1alpha1.ModeAudit, v1alpha1.UnattestedPreApproved, v1alpha1.StageRealRoot
		}, false},
	} {
		set := compile(t, valid(func(s *spec) {
			s.Pools = []string{"worker"}
			c.with(s)
		}))
		got := set.WithoutAgents()
		if strings.Contains(got, "pool worker has stage: RealRoot") != c.want || !c.want && got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestWhenAbsent_OpenRequiresOnlyTheProvisioningToken(t *testing.T) {
	const head = "apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\nmetadata: {name: p}\nspec:\n" +
		"  provisioningTokenAlone: true\n  provisioningToken: {whenAbsent: Open}\n"
	for name, c := range map[string]struct {
		spec, want string
		fails      bool
	}{
		"only the token": {"  evidence: [{all: [provisioning-token]}]\n", "every caller receives the full config", false},
		"a TPM as well": {"  evidence: [{all: [tpm2]}, {all: [provisioning-token]}]\n",
			"would bypass the other evidence", true},
		"the pre-approved config as well": {"  unattested: PreApproved\n  evidence: [{all: [provisioning-token]}]\n",
			"would bypass the other evidence", true},
	} {
		problems := Check(File{"p.yaml", []byte(head + c.spec)})
		if len(problems) != 1 || problems[0].Warning == c.fails || !strings.Contains(problems[0].Error(), c.want) {
			t.Errorf("%s: %v", name, problems)
		}
	}
}

func TestTwoPoliciesForOnePool(t *testing.T) {
	problems := Check(File{"a.yaml", []byte(file)}, File{"b.yaml", []byte(file)})
	want := `b.yaml:6: spec.pools[0]: pool "worker" already has a policy: a.yaml:1; one policy per pool`
	if len(problems) != 1 || problems[0].Error() != want {
		t.Errorf("%v\nexpected %s", problems, want)
	}
	if _, err := Compile(valid(nil), valid(nil)); err == nil ||
		!strings.Contains(err.Error(), "AttestationPolicy/workers") {
		t.Errorf("not from files: %v", err)
	}
}

// The documentation's examples are valid policies, and it has every field.
func TestDocumentation(t *testing.T) {
	doc, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatchIndex(doc, -1)
	if len(examples) < 5 {
		t.Fatalf("%d examples", len(examples))
	}
	for _, at := range examples {
		line := 1 + bytes.Count(doc[:at[2]], []byte("\n"))
		if problems := Check(File{"docs/policy.md", doc[at[2]:at[3]]}); len(problems) > 0 {
			t.Errorf("the example on line %d: %v", line, problems)
		}
	}
	var walk func(prefix string, typ reflect.Type)
	walk = func(prefix string, typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			name = prefix + name
			switch {
			case f.Type.Kind() == reflect.Struct && f.Type.PkgPath() == typ.PkgPath():
				walk(name+".", f.Type)
				continue
			case f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct:
				walk(name+"[].", f.Type.Elem())
			}
			if !bytes.Contains(doc, []byte("\n| `"+name+"` |")) {
				t.Errorf("docs/policy.md has no row for %s", name)
			}
		}
	}
	walk("", reflect.TypeFor[v1alpha1.AttestationPolicySpec]())
}

// A shell empties a file before a command writes to it.
func TestParse_AFileWithoutAPolicyIsAnError(t *testing.T) {
	for _, raw := range []string{"", "# nothing yet\n", "---\n"} {
		parsed, problems := Parse("p.yaml", []byte(raw))
		if len(parsed) != 0 || len(problems) != 1 || problems[0].Warning || problems[0].File != "p.yaml" {
			t.Errorf("%q: %v, %v", raw, parsed, problems)
		}
	}
	_, problems := Parse("p.yaml", []byte("{"))
	if len(problems) != 1 || strings.Contains(problems[0].What, "no document") {
		t.Errorf("a file that is no YAML: %v", problems)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(file))
	f.Add([]byte(file + "---\n" + file))
	f.Add([]byte(strings.Replace(file, "tpm2", "provisioning-token", 2)))
	f.Add([]byte("apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\nmetadata: {name: x}\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		parsed, problems := Parse("f", raw)
		if manifest.Failed(problems) {
			if parsed != nil {
				t.Error("policies beside an error")
			}
			return
		}
		set, problems := CompileParsed(parsed...)
		if set == nil && !manifest.Failed(problems) {
			t.Error("no set and no error")
		}
		if set == nil {
			return
		}
		for _, pool := range set.Pools() {
			if pool == "*" {
				pool = "any"
			}
			p, err := set.For(pool)
			if err != nil || len(p.Choose(nil)) == 0 || p.Satisfied(p.Choose(nil), nil) == nil {
				t.Errorf("pool %s accepts no evidence at all: %v", pool, err)
			}
			p.Hash()
		}
	})
}

func TestCheck_WarnsWithoutAnEndorsementThatTiesTheTPM(t *testing.T) {
	check := func(kind, endorsements string) int {
		text := "apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\nmetadata: {name: a}\nspec:\n  evidence: " +
			"[{all: [" + kind + ", tpm2]}]\n  tpm2: {endorsements: [" + endorsements + "]}\n"
		return len(Check(File{Name: "a.yaml", Raw: []byte(text)}))
	}
	for endorsements, want := range map[string]int{"provider": 0, "enrolled": 0, "ak-certificate": 1,
		"manufacturer, ak-certificate": 1, "provider, ak-certificate": 0} {
		if got := check("aws-iid", endorsements); got != want {
			t.Errorf("%s: %d problems, want %d", endorsements, got, want)
		}
	}
	for endorsements, want := range map[string]int{"provider": 1, "": 0, "enrolled": 0, "ak-certificate": 0,
		"provider, enrolled": 0} {
		if got := check("azure-attested", endorsements); got != want {
			t.Errorf("Azure, %s: %d problems, want %d", endorsements, got, want)
		}
	}
}
