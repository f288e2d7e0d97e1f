// SPDX-License-Identifier: Apache-2.0

package appraisal_test

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/softtpmtest"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// cloud is a provider as the appraisal sees it. It records its calls in order.
type cloud struct {
	kind      evidence.Kind
	says      evidence.Statement // as the document states it
	verify    error
	confirmed *evidence.Statement // as the provider confirms it; nil: unchanged
	confirm   error
	asked     *[]string
}

func (c cloud) Verify(context.Context, evidence.Document, evidence.Binding, time.Time) (evidence.Claim, error) {
	*c.asked = append(*c.asked, "verify "+c.kind.String())
	return c, c.verify
}

func (c cloud) Statement() evidence.Statement { return c.says }

func (c cloud) Confirm(_ context.Context, m evidence.Candidate) (evidence.Statement, error) {
	*c.asked = append(*c.asked, "confirm "+c.kind.String()+" "+m.ProviderID)
	if c.confirmed != nil {
		return *c.confirmed, c.confirm
	}
	return c.says, c.confirm
}

const (
	instanceA = "aws:///eu-central-1a/i-0aaaaaaaaaaaaaaaa"
	instanceB = "aws:///eu-central-1a/i-0bbbbbbbbbbbbbbbb"
)

// statement is the statement of one cloud kind about instance A.
func statement(k evidence.Kind) evidence.Statement {
	return evidence.Statement{
		Kind: k, ProviderID: instanceA, InstanceID: "aws:i-0aaaaaaaaaaaaaaaa", Created: start.Add(-20 * time.Minute),
		Bound: k != evidence.AWSIID, Summary: map[string]string{"account": "123456789012"},
	}
}

// trial is an appraisal of cloud evidence, in which each case changes one thing.
type trial struct {
	manifests string
	spec      v1alpha1.AttestationPolicySpec
	required  []evidence.Kind
	sent      []evidence.Document
	claims    string
	clouds    map[evidence.Kind]*cloud
	recorded  map[string]string // component to UID
	asked     []string

	tpm       *softtpmtest.TPM // nil: no TPM is required
	rehearses bool             // selects the label of its transcript
	said      transcript.Hash  // of its last answer
	log       []byte
	csrSPKI   []byte
	refs      []measuredboot.ReferenceValues
	endorsers map[v1alpha1.Endorsement]tpm2.Endorser // beside that of enrollments
	directory tpm2.Directory
	// replace returns other Machines than those of the manifests. It may be nil.
	replace func(appraisal.Machines) appraisal.Machines
	// lookup is the error of reading records, and spoil changes the input at the end. Each may be nil.
	lookup error
	spoil  func(*appraisal.Context, *appraisal.Evidence)
}

const machineA = `apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata: {namespace: openshift-machine-api, name: a, uid: uid-a,
  creationTimestamp: "2026-03-01T11:30:00Z", labels: {machine.openshift.io/cluster-api-machine-role: worker}}
spec: {providerID: "` + instanceA + `"}
---
apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata: {namespace: openshift-machine-api, name: b, uid: uid-b,
  creationTimestamp: "2026-03-01T11:30:00Z", labels: {machine.openshift.io/cluster-api-machine-role: worker}}
spec: {providerID: "` + instanceB + `"}
`

// newTrial returns a trial that passes and requires all of these kinds.
func newTrial(required ...evidence.Kind) *trial {
	tr := &trial{manifests: machineA, required: required, clouds: map[evidence.Kind]*cloud{},
		recorded: map[string]string{}}
	var names []string
	for _, k := range required {
		names = append(names, k.String())
		tr.sent = append(tr.sent, evidence.Document{Kind: k, Raw: []byte("document")})
		tr.clouds[k] = &cloud{kind: k, says: statement(k), asked: &tr.asked}
	}
	tr.spec = v1alpha1.AttestationPolicySpec{Evidence: []v1alpha1.EvidenceAlternative{{All: names}}}
	return tr
}

// unnamed makes a statement name its instance only after its confirmation. The claims name instance A.
func (tr *trial) unnamed(k evidence.Kind) {
	s := statement(k)
	tr.clouds[k].confirmed = &s
	tr.clouds[k].says.ProviderID, tr.clouds[k].says.InstanceID = "", ""
	tr.claims = fmt.Sprintf(`{"providerID":%q}`, instanceA)
}

func (tr *trial) appraise(t *testing.T) (*appraisal.Verdict, error) {
	t.Helper()
	manifests, problems := machine.Parse("machines.yaml", []byte(tr.manifests), start)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	index, _ := machine.NewIndex(manifests, nil)
	p := v1alpha1.AttestationPolicy{Spec: tr.spec}
	p.Name = "default"
	set, err := policy.Compile(p)
	if err != nil {
		t.Fatal(err)
	}
	effective, err := set.For("worker")
	if err != nil {
		t.Fatal(err)
	}
	in := appraisal.Context{
		Challenge: seal.Challenge{Required: tr.required, Origin: origin, Pool: "worker"}, Policy: effective, Machines: index,
		Clouds: map[evidence.Kind]evidence.Verifier{}, References: tr.refs, Directory: tr.directory,
		Endorsers: map[v1alpha1.Endorsement]tpm2.Endorser{},
		Recorded: func(id v1alpha1.RecordedIdentity) (string, error) {
			return tr.recorded[cmp.Or(id.EKSHA256, id.InstanceID)], tr.lookup
		},
	}
	for k, c := range tr.clouds {
		in.Clouds[k] = *c
	}
	if tr.replace != nil {
		in.Machines = tr.replace(index)
	}
	maps.Copy(in.Endorsers, tr.endorsers)
	in.Endorsers[v1alpha1.EndorsementEnrolled] = appraisal.EnrolledEndorser{Machines: in.Machines}
	ev := appraisal.Evidence{Cloud: tr.sent, Claims: []byte(tr.claims), EventLog: tr.log, CSRSPKI: tr.csrSPKI}
	if tr.tpm != nil {
		tr.answer(t, &in.Challenge, &ev)
	}
	if tr.spoil != nil {
		tr.spoil(&in, &ev)
	}
	tr.asked = nil
	return appraisal.Appraise(t.Context(), in, ev, start)
}

func (tr *trial) passes(t *testing.T, machine string) *appraisal.Verdict {
	t.Helper()
	v, err := tr.appraise(t)
	if err != nil {
		t.Fatalf("the honest variant: %v", err)
	}
	if v.Machine.Name != machine {
		t.Fatalf("Machine %s", v.Machine)
	}
	return v
}

// refused returns the Machine whose record may note the denial, or nil.
func (tr *trial) refused(t *testing.T, want reason.Code) *machine.Machine {
	t.Helper()
	_, err := tr.appraise(t)
	if d := reason.From(err); d == nil || d.Code != want {
		t.Fatalf("error %v, want %s", err, want)
	}
	var r *appraisal.Refusal
	if errors.As(err, &r) && !r.Unproven {
		return r.Machine
	}
	return nil
}

// calls returns the providers that were asked.
func (tr *trial) calls() []string {
	return slices.DeleteFunc(slices.Clone(tr.asked), func(s string) bool { return strings.HasPrefix(s, "verify ") })
}

func TestCloudStatementNamesTheMachine(t *testing.T) {
	tr := newTrial(evidence.GCPIdentity)
	v := tr.passes(t, "a")
	if v.Replayable {
		t.Error("a bound statement is called replayable")
	}
	if v.Identity.ProviderID != instanceA || v.Identity.InstanceID != "aws:i-0aaaaaaaaaaaaaaaa" || v.Endorsement != "" {
		t.Errorf("identity %+v, endorsement %q", v.Identity, v.Endorsement)
	}
	if len(v.Evidence) != 1 || v.Evidence[0].Kind != "gcp-identity" || v.Evidence[0].Summary["account"] != "123456789012" {
		t.Errorf("evidence %+v", v.Evidence)
	}
}

// No provider is asked about a document that does not verify, or about a Machine that may
// not attest.
func TestAppraise_AsksProvidersLast(t *testing.T) {
	kinds := []evidence.Kind{evidence.AWSIID, evidence.AWSSTS}
	tr := newTrial(kinds...)
	tr.passes(t, "a")
	want := []string{"verify aws-iid", "verify aws-sts", "confirm aws-iid " + instanceA, "confirm aws-sts " + instanceA}
	if !slices.Equal(tr.asked, want) {
		t.Fatalf("asked %q", tr.asked)
	}
	for _, c := range []struct {
		name   string
		change func(*trial)
		want   reason.Code
	}{
		{"a signature that does not verify", func(tr *trial) {
			tr.clouds[evidence.AWSSTS].verify = reason.Deny(reason.DocumentInvalid, "signature")
		}, reason.DocumentInvalid},
		{"an account that is not the cluster's", func(tr *trial) {
			tr.clouds[evidence.AWSIID].verify = reason.Deny(reason.AccountNotAllowed, "account")
		}, reason.AccountNotAllowed},
		{"an instance without a Machine", func(tr *trial) {
			tr.clouds[evidence.AWSIID].says.ProviderID = "aws:///eu-central-1a/i-0ccccccccccccccc"
			tr.clouds[evidence.AWSSTS].says.ProviderID = ""
		}, reason.MachineNotFound},
		{"a Machine that is a Node", func(tr *trial) {
			tr.manifests = strings.Replace(tr.manifests, "spec: {", "status: {nodeRef: {name: node-a}}\nspec: {", 1)
		}, reason.MachineJoined},
		{"a Machine of another pool", func(tr *trial) {
			tr.manifests = strings.ReplaceAll(tr.manifests, "role: worker", "role: infra")
		}, reason.MachinePool},
		{"a Machine that is too old", func(tr *trial) {
			tr.manifests = strings.ReplaceAll(tr.manifests, "2026-03-01T11", "2026-03-01T08")
		}, reason.MachineTooOld},
		{"documents of two Machines", func(tr *trial) {
			tr.clouds[evidence.AWSSTS].says.ProviderID = instanceB
		}, reason.EvidenceDisagrees},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := newTrial(kinds...)
			c.change(tr)
			tr.refused(t, c.want)
			if calls := tr.calls(); len(calls) > 0 {
				t.Errorf("asked %q", calls)
			}
		})
	}
}

// Downgrade by omission: all required kinds must be present.
func TestAttack_T13_LessEvidenceThanThePolicyWants(t *testing.T) {
	kinds := []evidence.Kind{evidence.AWSIID, evidence.AWSSTS}
	newTrial(kinds...).passes(t, "a")
	for _, c := range []struct {
		name   string
		change func(*trial)
		want   reason.Code
	}{
		{"a document is left out", func(tr *trial) { tr.sent = tr.sent[:1] }, reason.EvidenceMissing},
		{"a document is empty", func(tr *trial) { tr.sent[1].Raw = nil }, reason.EvidenceMissing},
		{"a document comes as another kind", func(tr *trial) { tr.sent[1].Kind = evidence.GCPIdentity },
			reason.EvidenceMissing},
		{"a document comes twice", func(tr *trial) { tr.sent = append(tr.sent, tr.sent[0]) }, reason.Malformed},
		{"a thousand documents", func(tr *trial) { tr.sent = make([]evidence.Document, 1000) }, reason.TooLarge},
		{"a challenge for less than the policy lists", func(tr *trial) { tr.required = tr.required[:1] },
			reason.PolicyChanged},
		{"a cloud that is not configured", func(tr *trial) { delete(tr.clouds, evidence.AWSSTS) },
			reason.ProviderUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := newTrial(kinds...)
			c.change(tr)
			tr.refused(t, c.want)
		})
	}
}

func TestAttack_T14_TwoDocumentsOfTwoMachines(t *testing.T) {
	kinds := []evidence.Kind{evidence.AWSIID, evidence.AWSSTS}
	newTrial(kinds...).passes(t, "a")
	for _, c := range []struct {
		name   string
		change func(*trial)
	}{
		{"each names another Machine", func(tr *trial) { tr.clouds[evidence.AWSSTS].says.ProviderID = instanceB }},
		{"the provider returns another owner for one of them", func(tr *trial) {
			s := statement(evidence.AWSSTS)
			s.ProviderID = instanceB
			tr.clouds[evidence.AWSSTS].confirmed = &s
		}},
		{"the provider names none", func(tr *trial) {
			s := statement(evidence.AWSSTS)
			s.ProviderID = ""
			tr.clouds[evidence.AWSSTS].confirmed = &s
		}},
		{"one name, two instances", func(tr *trial) {
			tr.clouds[evidence.AWSSTS].says.InstanceID = "aws:i-0bbbbbbbbbbbbbbbb"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := newTrial(kinds...)
			c.change(tr)
			tr.refused(t, reason.EvidenceDisagrees)
		})
	}
}

// A document without a nonce suffices once. Package record denies it the second time, and
// no record notes a denial that is based only on such a document.
func TestAttack_T05_ReplayableEvidenceIsMarked(t *testing.T) {
	single := newTrial(evidence.AWSIID)
	if v := single.passes(t, "a"); !v.Replayable {
		t.Error("an instance document by itself is not marked as replayable")
	}
	both := newTrial(evidence.AWSIID, evidence.AWSSTS)
	if v := both.passes(t, "a"); v.Replayable {
		t.Error("a signed challenge beside it is called replayable")
	}
	joined := func(tr *trial) {
		tr.manifests = strings.Replace(tr.manifests, "spec: {", "status: {nodeRef: {name: node-a}}\nspec: {", 1)
	}
	joined(single)
	if m := single.refused(t, reason.MachineJoined); m != nil {
		t.Errorf("a copy of a document leaves a trace at Machine %s", m)
	}
	// A final denial is returned after a live check, which requires the Machine.
	var r *appraisal.Refusal
	if _, err := single.appraise(t); !errors.As(err, &r) || r.Machine == nil || r.Machine.Name != "a" {
		t.Errorf("there is no Machine to confirm a permanent denial with: %v", err)
	}
	bound := newTrial(evidence.GCPIdentity)
	joined(bound)
	if m := bound.refused(t, reason.MachineJoined); m == nil || m.Name != "a" {
		t.Errorf("a pod on a node that joined leaves no trace at it: %v", m)
	}
}

func TestAttack_T10_ANameOfAnEarlierInstance(t *testing.T) {
	tr := newTrial(evidence.GCPIdentity)
	tr.passes(t, "a")
	tr.clouds[evidence.GCPIdentity].says.Created = start.Add(-2 * time.Hour)
	if m := tr.refused(t, reason.InstanceUnacceptable); m == nil {
		t.Error("the proven name leaves no trace")
	}
	// Without a creationTimestamp, the age of a manifest is that of its file, which does not matter.
	undated := newTrial(evidence.GCPIdentity)
	undated.manifests = strings.ReplaceAll(undated.manifests, `creationTimestamp: "2026-03-01T11:30:00Z", `, "")
	undated.clouds[evidence.GCPIdentity].says.Created = start.Add(-2 * time.Hour)
	undated.passes(t, "a")
	// The instance of a Machine that joined is the one that had its name then. So its age does not matter: the installer
	// creates the Machines of the control plane after their instances.
	joined := newTrial(evidence.GCPIdentity)
	joined.manifests = strings.Replace(joined.manifests, "spec: {", "status: {nodeRef: {name: node-a}}\nspec: {", 1)
	joined.replace = func(all appraisal.Machines) appraisal.Machines {
		ix := all.(*machine.Index)
		m, _ := ix.ByUID("uid-a")
		return machine.Rehearsal{All: ix, Machine: m}
	}
	joined.clouds[evidence.GCPIdentity].says.Created = start.Add(-2 * time.Hour)
	joined.passes(t, "a")
	// Within the tolerated clock skew, both count as created at the same time.
	tr.clouds[evidence.GCPIdentity].says.Created = start.Add(-35 * time.Minute)
	tr.passes(t, "a")
	tr.clouds[evidence.GCPIdentity].says.Created = start.Add(-35*time.Minute - time.Second)
	tr.refused(t, reason.InstanceUnacceptable)
}

// If no document names the Machine, the machine's claims select it, and have no other
// effect.
func TestCandidate_ClaimsOnlySelectTheMachine(t *testing.T) {
	unnamed := func() *trial {
		tr := newTrial(evidence.AzureAttested)
		tr.unnamed(evidence.AzureAttested)
		return tr
	}
	tr := unnamed()
	tr.passes(t, "a")
	if want := []string{"confirm azure-attested " + instanceA}; !slices.Equal(tr.calls(), want) {
		t.Errorf("asked %q", tr.asked)
	}
	for _, c := range []struct {
		name   string
		change func(*trial)
		want   reason.Code
		calls  int
	}{
		{"there are no claims", func(tr *trial) { tr.claims = "" }, reason.MachineNotFound, 0},
		{"the claims are not JSON", func(tr *trial) { tr.claims = "{" }, reason.MachineNotFound, 0},
		{"the claimed provider id is too long", func(tr *trial) {
			tr.claims = fmt.Sprintf(`{"providerID":%q}`, strings.Repeat("a", 600))
		}, reason.MachineNotFound, 0},
		{"it names no Machine", func(tr *trial) { tr.claims = `{"providerID":"aws:///eu-central-1a/i-0c"}` },
			reason.MachineNotFound, 0},
		{"it names another Machine: the provider denies it", func(tr *trial) {
			tr.claims = fmt.Sprintf(`{"providerID":%q}`, instanceB)
			tr.clouds[evidence.AzureAttested].confirm = reason.Deny(reason.EvidenceDisagrees, "vmId")
		}, reason.EvidenceDisagrees, 1},
		{"it names another Machine and the provider names this one", func(tr *trial) {
			tr.claims = fmt.Sprintf(`{"providerID":%q}`, instanceB)
		}, reason.EvidenceDisagrees, 1},
		{"a claim by itself does not reveal that a Machine has joined", func(tr *trial) {
			tr.manifests = strings.Replace(tr.manifests, "spec: {", "status: {nodeRef: {name: node-a}}\nspec: {", 1)
		}, reason.MachineNotFound, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := unnamed()
			c.change(tr)
			if m := tr.refused(t, c.want); m != nil {
				t.Errorf("an unproven word leaves a trace at %s", m)
			}
			if calls := tr.calls(); len(calls) != c.calls {
				t.Errorf("asked %q", calls)
			}
		})
	}
}

// replacing has other Machines from the second lookup on.
type replacing struct {
	appraisal.Machines
	later   appraisal.Machines
	lookups int
}

func (r *replacing) Match(id machine.Identity, rules machine.Rules) (*machine.Machine, error) {
	if r.lookups++; r.lookups > 1 {
		return r.later.Match(id, rules)
	}
	return r.Machines.Match(id, rules)
}

// The cloud confirmed the evidence for a Machine that was replaced by another of the same name and
// instance. Its age was not compared with that of the instance, so it must not match.
func TestAttack_T10_TheMachineIsReplacedDuringTheAppraisal(t *testing.T) {
	for _, uid := range []string{"uid-a", "uid-c"} {
		tr := newTrial(evidence.GCPIdentity)
		manifests, problems := machine.Parse("machines.yaml", []byte(strings.Replace(machineA, "uid-a", uid, 1)), start)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		later, _ := machine.NewIndex(manifests, nil)
		tr.replace = func(m appraisal.Machines) appraisal.Machines { return &replacing{Machines: m, later: later} }
		if uid == "uid-a" {
			tr.passes(t, "a")
		} else if m := tr.refused(t, reason.MachineNotFound); m != nil {
			t.Errorf("the denial is noted at Machine %s", m)
		}
	}
}

func TestAttack_T42_OneInstanceOneMachine(t *testing.T) {
	tr := newTrial(evidence.GCPIdentity)
	tr.passes(t, "a")
	// A clone of the Machine's manifest: two Machines claim one instance.
	tr.manifests += strings.NewReplacer("name: a,", "name: clone,", "uid: uid-a",
		"uid: uid-clone").Replace(strings.SplitN(machineA, "---", 2)[0])
	tr.manifests = strings.Replace(tr.manifests, "apiVersion: machine.openshift.io/v1beta1\nkind: Machine\nmetadata: "+
		"{namespace: openshift-machine-api, name: clone",
		"---\napiVersion: machine.openshift.io/v1beta1\nkind: Machine\nmetadata: {namespace: openshift-machine-api, name: "+
			"clone", 1)
	tr.refused(t, reason.MachineAmbiguous)
}

// An unavailable provider leads to a temporary denial, never to a pass.
func TestConfirm_UnavailableProviderIsTemporary(t *testing.T) {
	tr := newTrial(evidence.AWSIID, evidence.AWSSTS)
	tr.clouds[evidence.AWSIID].confirm = reason.Deny(reason.ProviderUnavailable, "EC2 is down")
	tr.refused(t, reason.ProviderUnavailable)
	_, err := tr.appraise(t)
	if !reason.From(err).Code.Info().Temporary {
		t.Error("final")
	}
}

// An old Machine may attest again with the identity on its record.
func TestCandidate_AcceptsARecordedOldMachine(t *testing.T) {
	tr := newTrial(evidence.GCPIdentity)
	tr.manifests = strings.ReplaceAll(tr.manifests, "2026-03-01T11", "2026-03-01T08")
	tr.refused(t, reason.MachineTooOld)
	tr.recorded["aws:i-0aaaaaaaaaaaaaaaa"] = "uid-a"
	tr.passes(t, "a")
	tr.recorded["aws:i-0aaaaaaaaaaaaaaaa"] = "uid-b"
	tr.refused(t, reason.EvidenceDisagrees)
}

// Before a record is read for a caller that only claims to be its Machine, the verifier may deny that.
func TestCandidate_ReadsNoRecordForAClaimWithoutABudget(t *testing.T) {
	claiming := func() *trial {
		tr := newTPMTrial(t)
		tr.manifests = machineA
		tr.spec.TPM2.Endorsements = []v1alpha1.Endorsement{v1alpha1.EndorsementProvider, v1alpha1.EndorsementEnrolled}
		tr.directory, tr.claims = directory{genuine: true, asked: &tr.asked}, fmt.Sprintf(`{"providerID":%q}`, instanceA)
		old(tr)
		return tr
	}
	enrolled := claiming()
	enrolled.manifests = strings.Replace(enrolled.manifests, "name: a,",
		"name: a, annotations: {"+v1alpha1.AnnotationEKSHA256+": \""+hex.EncodeToString(enrolled.tpm.EKSPKI[:])+"\"},", 1)
	documented := newTrial(evidence.GCPIdentity)
	old(documented)
	gone := claiming()
	gone.replace = func(m appraisal.Machines) appraisal.Machines { return unnamed{m} }
	for name, c := range map[string]struct {
		tr      *trial
		claimed int
		want    reason.Code
	}{
		"a claim":                 {claiming(), 1, reason.RateLimited},
		"a TPM that is enrolled":  {enrolled, 0, reason.StoreUnavailable},
		"a document":              {documented, 0, reason.StoreUnavailable},
		"the Machine was deleted": {gone, 0, reason.EKNotEnrolled},
	} {
		claimed, read := 0, 0
		c.tr.spoil = func(in *appraisal.Context, _ *appraisal.Evidence) {
			in.Claimed = func(m *machine.Machine) error {
				claimed++
				return reason.Deny(reason.RateLimited, "Machine %s", m.Name)
			}
			in.Recorded = func(v1alpha1.RecordedIdentity) (string, error) {
				read++
				return "", reason.Deny(reason.StoreUnavailable, "read")
			}
		}
		_, err := c.tr.appraise(t)
		if code(err) != c.want || claimed != c.claimed || (read > 0) != (c.want == reason.StoreUnavailable) {
			t.Errorf("%s: %d claims, %d reads, %v", name, claimed, read, err)
		}
	}
}

// unnamed is a registry from which each Machine was deleted after it matched.
type unnamed struct{ appraisal.Machines }

func (unnamed) Named(machine.Identity, machine.Rules) *machine.Machine { return nil }

// The provider is asked about an old Machine if its record has the TPM that answered. Without the record, the
// denial does not reveal the Machine's state to the caller, but names it as the cause.
func TestCandidate_AcceptsTheRecordedTPMOfAnOldMachine(t *testing.T) {
	tr := newTPMTrial(t)
	tr.manifests = machineA
	tr.spec.TPM2.Endorsements = []v1alpha1.Endorsement{v1alpha1.EndorsementProvider}
	tr.directory, tr.claims = directory{genuine: true, asked: &tr.asked}, fmt.Sprintf(`{"providerID":%q}`, instanceA)
	tr.passes(t, "a")
	old(tr)
	_, err := tr.appraise(t)
	if code(err) != reason.EKNotEnrolled || len(tr.calls()) > 0 ||
		!strings.Contains(err.Error(), fmt.Sprintf("the machine claims to be %q: MachineTooOld: ", instanceA)) {
		t.Errorf("%v, asked %q", err, tr.calls())
	}
	tr.recorded[hex.EncodeToString(tr.tpm.EKSPKI[:])] = "uid-a"
	tr.passes(t, "a")
	tr.recorded[hex.EncodeToString(tr.tpm.EKSPKI[:])] = "uid-b"
	tr.refused(t, reason.EKNotEnrolled)
}

// A record that was written for an AK certificate has no EK. Each component of the evidence is looked up.
func TestCandidate_AcceptsTheRecordedInstanceBesideATPM(t *testing.T) {
	tr := newTPMTrial(t, evidence.AzureAttested)
	tr.manifests = machineA
	tr.spec.TPM2.Endorsements = []v1alpha1.Endorsement{v1alpha1.EndorsementProvider, v1alpha1.EndorsementAKCertificate}
	tr.directory = directory{err: tpm2.ErrNotMine, asked: &tr.asked}
	tr.endorsers = map[v1alpha1.Endorsement]tpm2.Endorser{v1alpha1.EndorsementAKCertificate: vouches{
		says: tpm2.Endorsement{Kind: tpm2.AKCertificate}}}
	tr.passes(t, "a")
	old(tr)
	tr.refused(t, reason.MachineTooOld)
	tr.spoil = func(in *appraisal.Context, _ *appraisal.Evidence) {
		in.Recorded = func(id v1alpha1.RecordedIdentity) (string, error) {
			if id.EKSHA256 != "" {
				return "", nil
			}
			return "uid-a", nil
		}
	}
	tr.passes(t, "a")
}

// A statement that names no instance before it is confirmed does not hide the TPM that answered.
func TestCandidate_AcceptsTheRecordedTPMBesideAnUnnamedStatement(t *testing.T) {
	tr := newTPMTrial(t, evidence.AWSSTS)
	tr.unnamed(evidence.AWSSTS)
	tr.manifests, tr.spec.TPM2.Approval = machineA, v1alpha1.ApprovalFirstUse
	tr.spec.TPM2.Endorsements = []v1alpha1.Endorsement{v1alpha1.EndorsementManufacturer}
	tr.endorsers = map[v1alpha1.Endorsement]tpm2.Endorser{v1alpha1.EndorsementManufacturer: vouches{
		says: tpm2.Endorsement{Kind: tpm2.Manufacturer}}}
	tr.passes(t, "a")
	old(tr)
	tr.refused(t, reason.MachineNotFound)
	tr.recorded[hex.EncodeToString(tr.tpm.EKSPKI[:])] = "uid-a"
	tr.passes(t, "a")
}

// After its confirmation, a statement that named no instance counts as one that did: the provider's answer about the
// TPM is final.
func TestAttack_T42_AForeignTPMBesideAStatementThatIsNamedLater(t *testing.T) {
	for _, k := range []evidence.Kind{evidence.AWSSTS, evidence.GCPIdentity} {
		tr := newTPMTrial(t, k)
		if k == evidence.AWSSTS {
			tr.unnamed(k)
		}
		tr.manifests, tr.spec.TPM2.Approval = machineA, v1alpha1.ApprovalFirstUse
		tr.spec.TPM2.Endorsements = []v1alpha1.Endorsement{v1alpha1.EndorsementProvider, v1alpha1.EndorsementManufacturer}
		tr.endorsers = map[v1alpha1.Endorsement]tpm2.Endorser{v1alpha1.EndorsementManufacturer: vouches{
			says: tpm2.Endorsement{Kind: tpm2.Manufacturer}}}
		tr.directory = directory{genuine: true, asked: &tr.asked}
		tr.passes(t, "a")
		tr.directory = directory{asked: &tr.asked}
		// The machine's record tells an administrator of it.
		if m := tr.refused(t, reason.EKUntrusted); m == nil || m.Name != "a" {
			t.Errorf("%v: refused %v", k, m)
		}
	}
}

func TestAnswers_ReplayAnAppraisal(t *testing.T) {
	tr := newTrial(evidence.AWSIID, evidence.AWSSTS)
	in := appraisal.Context{Clouds: map[evidence.Kind]evidence.Verifier{evidence.AWSSTS: *tr.clouds[evidence.AWSSTS]}}
	var answers appraisal.Answers
	confirm := func(in appraisal.Context) (evidence.Statement, error) {
		claim, err := in.Clouds[evidence.AWSSTS].Verify(t.Context(), evidence.Document{}, evidence.Binding{}, start)
		if err != nil {
			t.Fatal(err)
		}
		return claim.Confirm(t.Context(), evidence.Candidate{ProviderID: instanceA})
	}
	if _, err := confirm(answers.Replaying(in)); err == nil {
		t.Fatal("an answer that was not recorded")
	}
	said, err := confirm(answers.Recording(in))
	if err != nil {
		t.Fatal(err)
	}
	calls := len(tr.calls())
	again, err := confirm(answers.Replaying(in))
	if err != nil || again.InstanceID != said.InstanceID || len(tr.calls()) != calls {
		t.Errorf("%+v %v, asked %q", again, err, tr.asked)
	}
}

// An AK certificate that names no instance only shows that the TPM is genuine. It does not
// make a document trustworthy that could be a copy (see tied).
func TestAttack_T05_ACertifiedTPMBesideACopiedDocument(t *testing.T) {
	named, unnamed := &tpm2.Endorsement{Kind: tpm2.AKCertificate, ProviderID: instanceA},
		&tpm2.Endorsement{Kind: tpm2.AKCertificate}
	for _, c := range []struct {
		name        string
		endorsement v1alpha1.Endorsement
		endorsed    *tpm2.Endorsement
		bound       evidence.Kind // the kind of a bound statement, or 0
		approval    v1alpha1.Approval
		want        bool
	}{
		{"the provider names the TPM", v1alpha1.EndorsementProvider, named, 0, "", true},
		{"the certificate names the instance", v1alpha1.EndorsementAKCertificate, named, 0, "", true},
		{"it names none, and the document could be a copy", v1alpha1.EndorsementAKCertificate, unnamed, 0, "", false},
		{"it names none, and Azure's document is of this conversation", v1alpha1.EndorsementAKCertificate, unnamed,
			evidence.AzureAttested, "", true},
		{"it names none, and the document is another cloud's", v1alpha1.EndorsementAKCertificate, unnamed,
			evidence.GCPIdentity, "", false},
		{"a manufacturer's, and the document could be a copy", v1alpha1.EndorsementManufacturer, unnamed, 0,
			v1alpha1.ApprovalFirstUse, false},
		{"a manufacturer's, and the policy has no first use", v1alpha1.EndorsementManufacturer, unnamed,
			evidence.GCPIdentity, v1alpha1.ApprovalManual, false},
		{"a manufacturer's at first use", v1alpha1.EndorsementManufacturer, unnamed, evidence.GCPIdentity,
			v1alpha1.ApprovalFirstUse, true},
		{"an enrollment suffices by itself", v1alpha1.EndorsementEnrolled, unnamed, evidence.GCPIdentity,
			v1alpha1.ApprovalFirstUse, false},
	} {
		if got := appraisal.Tied(c.endorsement, c.endorsed, c.bound, c.approval); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
