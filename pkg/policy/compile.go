// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
)

// Defaults of the fields that are not enums.
const (
	DefaultTokenLifetime     = 10 * time.Minute
	DefaultTokenUses         = 3
	DefaultChallengeLifetime = 2 * time.Minute
	DefaultMaxMachineAge     = 2 * time.Hour // as in cluster-machine-approver
)

// Parsed is one AttestationPolicy of a file.
type Parsed struct {
	v1alpha1.AttestationPolicy
	doc *manifest.Document // nil if it did not come from a file
}

// File is a policy file's name and content.
type File struct {
	Name string
	Raw  []byte
}

// Parse parses the policies of one file and checks each by itself. If a problem is an
// error, it returns no policies. A file without a policy is an error.
func Parse(file string, raw []byte) ([]Parsed, []manifest.Problem) {
	docs, problems := manifest.Split(file, raw)
	if len(docs) == 0 && len(problems) == 0 {
		problems = append(problems, manifest.Empty(file))
	}
	var parsed []Parsed
	for _, doc := range docs {
		if doc.APIVersion != v1alpha1.APIVersion || doc.Kind != v1alpha1.KindAttestationPolicy {
			problems = append(problems, doc.Problem("kind", fmt.Sprintf("this is a %s of %s", doc.Kind, doc.APIVersion),
				fmt.Sprintf("a policy has kind %s and apiVersion %s", v1alpha1.KindAttestationPolicy, v1alpha1.APIVersion)))
			continue
		}
		p := Parsed{doc: &doc}
		wrong := doc.Decode(&p.AttestationPolicy)
		if len(wrong) == 0 {
			c := check{parsed: p}
			c.effective()
			wrong = c.problems
			if doc.Unquoted("spec.mode") {
				w := doc.Problem("spec.mode", "kubectl reads an unquoted Off as a boolean", `write mode: "Off"`)
				w.Warning = true
				wrong = append(wrong, w)
			}
		}
		problems = append(problems, wrong...)
		parsed = append(parsed, p)
	}
	if manifest.Failed(problems) {
		return nil, problems
	}
	return parsed, problems
}

// Check returns what 'policy check' prints: the problems of each file and those between files.
func Check(files ...File) []manifest.Problem {
	var all []Parsed
	var problems []manifest.Problem
	for _, f := range files {
		parsed, found := Parse(f.Name, f.Raw)
		all, problems = append(all, parsed...), append(problems, found...)
	}
	_, found := CompileParsed(all...)
	for _, p := range found {
		if !slices.Contains(problems, p) {
			problems = append(problems, p)
		}
	}
	return problems
}

// Compile returns the set of policies that did not come from files.
func Compile(policies ...v1alpha1.AttestationPolicy) (*Set, error) {
	parsed := make([]Parsed, len(policies))
	for i, p := range policies {
		parsed[i] = Parsed{AttestationPolicy: p}
	}
	set, problems := CompileParsed(parsed...)
	if set != nil {
		return set, nil
	}
	var errs []error
	for _, p := range problems {
		if !p.Warning {
			errs = append(errs, p)
		}
	}
	return nil, errors.Join(errs...)
}

// CompileParsed returns the set of the policies of many files, or nil if a problem is
// an error.
func CompileParsed(parsed ...Parsed) (*Set, []manifest.Problem) {
	set := &Set{pools: map[string]Policy{}}
	owner := map[string]check{}
	var problems []manifest.Problem
	for _, p := range parsed {
		c := check{parsed: p}
		policy := c.effective()
		for i, pool := range c.pools() {
			if first, ok := owner[pool]; ok {
				c.fault(fmt.Sprintf("spec.pools[%d]", i), fmt.Sprintf("pool %q already has a policy: %s", pool, first.where()),
					"one policy per pool")
				continue
			}
			owner[pool] = c
			own := policy
			own.Pool = pool
			own.hash = own.Hash()
			if pool == "*" {
				set.any = &own
			} else {
				set.pools[pool] = own
			}
		}
		problems = append(problems, c.problems...)
	}
	if manifest.Failed(problems) {
		return nil, problems
	}
	return set, problems
}

// check collects the problems of one policy.
type check struct {
	parsed   Parsed
	problems []manifest.Problem
}

func (c *check) fault(path, what, want string) {
	if c.parsed.doc != nil {
		c.problems = append(c.problems, c.parsed.doc.Problem(path, path+": "+what, want))
		return
	}
	c.problems = append(c.problems, manifest.Problem{File: c.where(), What: path + ": " + what, Want: want})
}

func (c *check) warn(path, what, want string) {
	c.fault(path, what, want)
	c.problems[len(c.problems)-1].Warning = true
}

func (c check) where() string {
	if doc := c.parsed.doc; doc != nil {
		return fmt.Sprintf("%s:%d", doc.File, doc.Line(""))
	}
	return v1alpha1.KindAttestationPolicy + "/" + c.parsed.Name
}

func (c check) pools() []string {
	if len(c.parsed.Spec.Pools) == 0 {
		return []string{"*"}
	}
	return c.parsed.Spec.Pools
}

// effective checks a policy and returns it with its defaults.
func (c *check) effective() Policy {
	spec := c.parsed.Spec
	if c.parsed.Name == "" {
		c.fault("metadata.name", "the policy has no name", "a name, which status and the audit log show")
	}
	for i, pool := range spec.Pools {
		if pool != "*" && !validPool(pool) {
			c.fault(fmt.Sprintf("spec.pools[%d]", i), fmt.Sprintf("%q is not a pool name", pool),
				`lower-case letters, digits, "-" and ".", as in the name of a MachineConfigPool, or "*"`)
		}
	}
	p := Policy{
		Name: c.parsed.Name,
		Mode: oneOf(c, "spec.mode", spec.Mode, v1alpha1.ModeEnforce, v1alpha1.ModeAudit, v1alpha1.ModeOff),
		Unattested: oneOf(c, "spec.unattested", spec.Unattested, v1alpha1.UnattestedDeny,
			v1alpha1.UnattestedPreApproved),
		ProvisioningTokenAlone: spec.ProvisioningTokenAlone,
		URLParameter:           spec.ProvisioningToken.URLParameter,
		OpenWithoutToken: oneOf(c, "spec.provisioningToken.whenAbsent", spec.ProvisioningToken.WhenAbsent,
			v1alpha1.WhenAbsentWait, v1alpha1.WhenAbsentOpen) == v1alpha1.WhenAbsentOpen,
		Binding: oneOf(c, "spec.binding", spec.Binding, v1alpha1.BindingExporter, v1alpha1.BindingTerminated),
		RealRoot: oneOf(c, "spec.stage", spec.Stage, v1alpha1.StageInitramfs, v1alpha1.StageRealRoot) ==
			v1alpha1.StageRealRoot,
		Approval: oneOf(c, "spec.tpm2.approval", spec.TPM2.Approval, v1alpha1.ApprovalManual, v1alpha1.ApprovalFirstUse),
		ProfileAction: oneOf(c, "spec.tpm2.profileAction", spec.TPM2.ProfileAction, v1alpha1.ProfileEnforce,
			v1alpha1.ProfileWarn),
		ReferenceValues: slices.Clone(spec.TPM2.ReferenceValues),
		TokenUses:       DefaultTokenUses,
		TokenLifetime:   c.duration("spec.token.lifetime", spec.Token.Lifetime, DefaultTokenLifetime, time.Minute, time.Hour),
		ChallengeLifetime: c.duration("spec.challengeLifetime", spec.ChallengeLifetime, DefaultChallengeLifetime,
			30*time.Second, 10*time.Minute),
		MaxMachineAge: c.duration("spec.maxMachineAge", spec.MaxMachineAge, DefaultMaxMachineAge, time.Minute, 0),
	}
	if spec.Token.Uses != 0 {
		p.TokenUses = int(spec.Token.Uses)
		if spec.Token.Uses < 1 || spec.Token.Uses > 10 {
			c.fault("spec.token.uses", fmt.Sprintf("%d uses", spec.Token.Uses), "1 to 10")
		}
	}
	if p.Unattested == v1alpha1.UnattestedPreApproved && p.Mode != v1alpha1.ModeEnforce {
		c.warn("spec.unattested", fmt.Sprintf("PreApproved has no effect in mode %s", p.Mode), "use it with mode Enforce")
	}
	if p.RealRoot && p.Unattested != v1alpha1.UnattestedPreApproved {
		c.warn("spec.stage", "RealRoot has no effect with unattested: Deny, because no config carries the agent",
			"add unattested: PreApproved, or remove stage")
	}
	c.frontEndKeys(&p)
	c.evidence(&p)
	c.tpm2(&p)
	return p
}

func (c *check) frontEndKeys(p *Policy) {
	for i, s := range c.parsed.Spec.FrontEndKeys {
		var key [sha256.Size]byte
		if _, err := hex.Decode(key[:], []byte(s[:min(len(s), 2*sha256.Size)])); err != nil || len(s) != 2*sha256.Size {
			c.fault(fmt.Sprintf("spec.frontEndKeys[%d]", i), fmt.Sprintf("%.80q is not a SHA-256", s),
				"64 hexadecimal digits: openssl x509 -in front.pem -noout -pubkey | openssl pkey -pubin -outform der | sha256sum")
		}
		p.FrontEndKeys = append(p.FrontEndKeys, key)
	}
	switch has := len(p.FrontEndKeys) > 0; {
	case p.Binding == v1alpha1.BindingTerminated && !has:
		c.fault("spec.binding", "Terminated without frontEndKeys would accept any server on the path",
			"list the SHA-256 of the front ends' public keys")
	case p.Binding == v1alpha1.BindingExporter && has:
		c.fault("spec.frontEndKeys", "front-end keys have no effect with binding Exporter",
			"remove them, or set binding: Terminated")
	}
}

func (c *check) evidence(p *Policy) {
	tokenOnly := false
	for i, alternative := range c.parsed.Spec.Evidence {
		path := fmt.Sprintf("spec.evidence[%d].all", i)
		if len(alternative.All) == 0 {
			c.fault(path, "an empty alternative would admit every machine",
				"name at least one kind of evidence; to serve every caller set mode: \"Off\"")
			continue
		}
		var all []evidence.Kind
		for j, name := range alternative.All {
			k, err := evidence.ParseKind(name)
			at := fmt.Sprintf("%s[%d]", path, j)
			switch {
			case err != nil:
				c.fault(at, fmt.Sprintf("%q is not a kind of evidence", name), "one of "+allKinds())
			case slices.Contains(all, k):
				c.fault(at, fmt.Sprintf("%s is listed twice", k), "list it once")
			default:
				all = append(all, k)
			}
		}
		slices.Sort(all)
		switch {
		case slices.Equal(all, []evidence.Kind{evidence.ProvisioningToken}):
			tokenOnly = true
			if !c.parsed.Spec.ProvisioningTokenAlone {
				c.fault(path, "a shared secret would be the only evidence for this pool",
					"add another kind, or also set provisioningTokenAlone: true")
			}
		case slices.Equal(all, []evidence.Kind{evidence.AWSIID}):
			c.warn(path, "an instance document has no nonce and can be replayed", "add tpm2 or aws-sts")
		// The warning below is more specific.
		case slices.Equal(all, []evidence.Kind{evidence.TPM2, evidence.AWSIID}) && !c.tiesTPM() &&
			p.Approval != v1alpha1.ApprovalFirstUse:
			c.warn(path,
				"the policy does not tie the TPM to a machine, and the document can be copied, so each machine needs enrollment",
				"add provider or enrolled to spec.tpm2.endorsements")
		}
		if slices.Contains(all, evidence.AzureAttested) && slices.Contains(all, evidence.TPM2) &&
			slices.Equal(c.parsed.Spec.TPM2.Endorsements, []v1alpha1.Endorsement{v1alpha1.EndorsementProvider}) {
			c.warn(path, "Azure's API names no TPM, so provider endorses none together with azure-attested",
				"add ak-certificate or enrolled to spec.tpm2.endorsements")
		}
		for j, earlier := range p.Alternatives {
			if covers(all, earlier) {
				c.warn(path, fmt.Sprintf("never selected: every machine that has %s gets alternative %d", kinds(all), j),
					"put the larger set first")
				break
			}
		}
		p.Alternatives = append(p.Alternatives, all)
	}
	if len(p.Alternatives) == 0 {
		p.Alternatives = [][]evidence.Kind{{evidence.TPM2}}
	}
	if c.parsed.Spec.ProvisioningToken.URLParameter {
		what, want := "Ignition and every proxy on the path log a token in the URL",
			"remove it if all pointer configs have specification 3.1 or later, and use the header"
		if !tokenOnly {
			what, want = "urlParameter has no effect, because the provisioning token does not suffice by itself", "remove it"
		}
		c.warn("spec.provisioningToken.urlParameter", what, want)
	}
	if p.OpenWithoutToken {
		const path = "spec.provisioningToken.whenAbsent"
		if p.OnlyProvisioningToken() && p.Unattested == v1alpha1.UnattestedDeny {
			c.warn(path, "while no provisioning token exists, every caller receives the full config",
				"remove it when the token exists")
		} else {
			c.fault(path, "Open would bypass the other evidence that the policy requires",
				"remove it, or list only [provisioning-token] and no unattested: PreApproved")
		}
	}
	if c.parsed.Spec.ProvisioningTokenAlone && !tokenOnly {
		c.fault("spec.provisioningTokenAlone", "no alternative has only the provisioning token",
			"add `- all: [provisioning-token]` to evidence, or remove this field")
	}
}

// tiesTPM reports whether an endorsement of the policy ties a TPM to one machine by itself.
func (c *check) tiesTPM() bool {
	e := c.parsed.Spec.TPM2.Endorsements
	return len(e) == 0 || slices.Contains(e, v1alpha1.EndorsementProvider) ||
		slices.Contains(e, v1alpha1.EndorsementEnrolled)
}

func (c *check) tpm2(p *Policy) {
	spec := c.parsed.Spec.TPM2
	order := []v1alpha1.Endorsement{v1alpha1.EndorsementProvider, v1alpha1.EndorsementAKCertificate,
		v1alpha1.EndorsementEnrolled, v1alpha1.EndorsementManufacturer}
	for i, e := range spec.Endorsements {
		if !slices.Contains(order, e) {
			c.fault(fmt.Sprintf("spec.tpm2.endorsements[%d]", i), fmt.Sprintf("%q is not an endorsement", string(e)),
				"one of "+list(order))
		}
	}
	for _, e := range order {
		if slices.Contains(spec.Endorsements, e) {
			p.Endorsements = append(p.Endorsements, e)
		}
	}
	if len(spec.Endorsements) == 0 {
		p.Endorsements = []v1alpha1.Endorsement{v1alpha1.EndorsementEnrolled}
	}

	profile, err := measuredboot.ParseProfile(spec.Profile)
	if err != nil {
		c.fault("spec.tpm2.profile", err.Error(), "")
	}
	p.Profile = profile

	for i, name := range spec.Banks {
		at := fmt.Sprintf("spec.tpm2.banks[%d]", i)
		switch bank := bankID(name); {
		case bank == 0:
			c.fault(at, fmt.Sprintf("%q is not a supported PCR bank", name), "sha256 or sha384")
		case slices.Contains(p.Banks, bank):
			c.fault(at, fmt.Sprintf("%s is listed twice", name), "list it once")
		default:
			p.Banks = append(p.Banks, bank)
		}
	}
	if len(spec.Banks) == 0 {
		p.Banks = []uint16{eventlog.SHA256, eventlog.SHA384}
	}

	if p.Approval != v1alpha1.ApprovalFirstUse {
		return
	}
	if !slices.Contains(p.Endorsements, v1alpha1.EndorsementManufacturer) {
		c.warn("spec.tpm2.approval", "FirstUse has no effect without the endorsement manufacturer",
			"add it to endorsements, or remove approval")
		return
	}
	names := []evidence.Kind{evidence.AWSSTS, evidence.GCPIdentity, evidence.AzureAttested}
	if !slices.ContainsFunc(p.Kinds(), func(k evidence.Kind) bool { return slices.Contains(names, k) }) {
		c.warn("spec.tpm2.approval",
			"FirstUse never applies: no other evidence of this policy names the machine, so each TPM waits for approval",
			"add one of "+kindList(names)+" to an alternative, or remove approval")
	}
}
