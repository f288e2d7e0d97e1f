// SPDX-License-Identifier: Apache-2.0

package appraisal_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// Each part of the TPM's evidence is verified, and its failure is the denial.
func TestAppraise_EachPartOfTheTPMsEvidence(t *testing.T) {
	newTPMTrial(t).passes(t, "a")
	for name, c := range map[string]struct {
		spoil func(*appraisal.Context, *appraisal.Evidence)
		want  reason.Code
	}{
		"the EK": {func(in *appraisal.Context, _ *appraisal.Evidence) { in.Challenge.EKPublic = []byte("EK") },
			reason.EKUnacceptable},
		"the AK": {func(in *appraisal.Context, _ *appraisal.Evidence) { in.Challenge.AKPublic = []byte("AK") },
			reason.AKUnacceptable},
		"the signature": {func(_ *appraisal.Context, ev *appraisal.Evidence) {
			ev.TPM2.Signature[len(ev.TPM2.Signature)-1]++
		}, reason.QuoteInvalid},
		"the activation": {func(_ *appraisal.Context, ev *appraisal.Evidence) { ev.TPM2.Activation[0]++ },
			reason.ActivationInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTPMTrial(t)
			tr.spoil = c.spoil
			tr.refused(t, c.want)
		})
	}
}

// proven returns a trial with only the proof of a provisioning token.
func proven(t *testing.T) *trial {
	t.Helper()
	tr := newTrial()
	tr.required = []evidence.Kind{evidence.ProvisioningToken}
	tr.spec.Evidence[0].All = []string{evidence.ProvisioningToken.String()}
	tr.spec.ProvisioningTokenAlone = true
	tr.spoil = func(in *appraisal.Context, ev *appraisal.Evidence) {
		in.ProvisioningTokens = []secret.Bytes{secret.New([]byte("the current token"))}
		said := transcript.Fields{Origin: origin, Pool: "worker", Required: transcript.Required(tr.required, 0, nil),
			Claims: ev.Claims}.Hash()
		ev.ProvisioningToken = transcript.ProvisioningToken([]byte("the current token"), said)
	}
	return tr
}

// A provisioning token names no Machine, so no Machine is looked up, and the stage counts as well.
func TestAppraise_ProvisioningToken(t *testing.T) {
	tr := proven(t)
	tr.lookup = errors.New("no record is read")
	v, err := tr.appraise(t)
	if err != nil || v.Machine != nil || len(v.Evidence) != 1 || v.Evidence[0].Kind != "provisioning-token" {
		t.Errorf("%v: %+v", err, v)
	}
	tr.claims = `{"stage":"RealRoot"}`
	tr.refused(t, reason.EvidenceUnacceptable)
	tr.spec.Stage = v1alpha1.StageRealRoot
	if v, err = tr.appraise(t); err != nil || v.Evidence[0].Summary[v1alpha1.SummaryStage] != "RealRoot" ||
		v.Evidence[0].Summary["token"] != "current" {
		t.Errorf("%v: %+v", err, v)
	}
	tr.spoil = func(_ *appraisal.Context, ev *appraisal.Evidence) { ev.ProvisioningToken = []byte{1} }
	tr.refused(t, reason.ProvisioningTokenInvalid)
}

// A denial is noted at a Machine only if the caller proved in this exchange that it is that Machine.
func TestAttack_T05_OnlyAProofLeavesATrace(t *testing.T) {
	deleting := func(tr *trial) {
		tr.manifests = strings.ReplaceAll(tr.manifests, `"2026-03-01T11:30:00Z",`,
			`"2026-03-01T11:30:00Z", deletionTimestamp: "2026-03-01T11:59:00Z",`)
	}
	meanwhile := func(tr *trial) {
		manifests, problems := machine.Parse("machines.yaml", []byte(strings.ReplaceAll(machineA, `"2026-03-01T11:30:00Z",`,
			`"2026-03-01T11:30:00Z", deletionTimestamp: "2026-03-01T11:59:00Z",`)), start)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		later, _ := machine.NewIndex(manifests, nil)
		tr.replace = func(m appraisal.Machines) appraisal.Machines { return &replacing{Machines: m, later: later} }
	}
	unconfirmed := func(k evidence.Kind) func(*trial) {
		return func(tr *trial) { tr.clouds[k].confirm = reason.Deny(reason.InstanceUnacceptable, "it has ended") }
	}
	late := func(tr *trial) { tr.claims = `{"stage":"RealRoot"}` }
	unread := func(tr *trial) { tr.lookup = reason.Deny(reason.StoreUnavailable, "the API server is down") }
	for name, c := range map[string]struct {
		trial  *trial
		change func(*trial)
		want   reason.Code
		noted  bool
	}{
		"a TPM of a Machine that is being deleted": {newTPMTrial(t), deleting, reason.MachineDeleting, true},
		"a bound document of it": {
			newTrial(evidence.GCPIdentity), deleting, reason.MachineDeleting, true},
		"a document of it that could be a copy": {
			newTrial(evidence.AWSIID), deleting, reason.MachineDeleting, false},
		"a possible copy beside a bound document of it": {
			newTrial(evidence.GCPIdentity, evidence.AWSIID), deleting, reason.MachineDeleting, true},
		"a bound document, and it is deleted meanwhile": {
			newTrial(evidence.GCPIdentity), meanwhile, reason.MachineDeleting, true},
		"a possible copy, and it is deleted meanwhile": {
			newTrial(evidence.AWSIID), meanwhile, reason.MachineDeleting, false},
		"a bound document that the provider denies": {
			newTrial(evidence.GCPIdentity), unconfirmed(evidence.GCPIdentity), reason.InstanceUnacceptable, true},
		"a possible copy that the provider denies": {
			newTrial(evidence.AWSIID), unconfirmed(evidence.AWSIID), reason.InstanceUnacceptable, false},
		"a bound document, in the real root": {
			newTrial(evidence.GCPIdentity), late, reason.EvidenceUnacceptable, true},
		"a possible copy, in the real root": {
			newTrial(evidence.AWSIID), late, reason.EvidenceUnacceptable, false},
		"a document, and the records cannot be read": {
			newTrial(evidence.GCPIdentity), unread, reason.StoreUnavailable, false},
		"a TPM, and the records cannot be read": {newTPMTrial(t), unread, reason.StoreUnavailable, false},
		"a document of an old Machine, likewise": {
			newTrial(evidence.GCPIdentity), func(tr *trial) { old(tr); unread(tr) }, reason.StoreUnavailable, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.trial.passes(t, "a")
			c.change(c.trial)
			if m := c.trial.refused(t, c.want); (m != nil) != c.noted {
				t.Errorf("the denial is noted at Machine %v", m)
			}
		})
	}
}

// old makes all Machines too old for a first attestation.
func old(tr *trial) {
	tr.manifests = strings.ReplaceAll(tr.manifests, "2026-03-01T11", "2026-03-01T08")
}

// Only a Machine that is too old is looked up by its record, and only by an instance that a document names.
func TestCandidate_ReadsRecordsOnlyOfOldMachines(t *testing.T) {
	var read []string
	counting := func(in *appraisal.Context, _ *appraisal.Evidence) {
		in.Recorded = func(id v1alpha1.RecordedIdentity) (string, error) {
			read = append(read, id.InstanceID)
			return "", nil
		}
	}
	for name, c := range map[string]struct {
		change func(*trial)
		want   reason.Code
		reads  int
	}{
		"too old": {old, reason.MachineTooOld, 1},
		"too old, unnamed": {
			func(tr *trial) { old(tr); tr.clouds[evidence.GCPIdentity].says.InstanceID = "" }, reason.MachineTooOld, 0},
		"it does not exist": {
			func(tr *trial) { tr.manifests = strings.ReplaceAll(tr.manifests, "i-0a", "i-0c") },
			reason.MachineNotFound, 0},
	} {
		tr := newTrial(evidence.GCPIdentity)
		c.change(tr)
		tr.spoil, read = counting, nil
		if tr.refused(t, c.want); len(read) != c.reads {
			t.Errorf("%s: records read: %q", name, read)
		}
	}
}

// unavailable is an inventory that cannot be read.
type unavailable struct{ appraisal.Machines }

func (unavailable) Match(machine.Identity, machine.Rules) (*machine.Machine, error) {
	return nil, reason.Deny(reason.StoreUnavailable, "no Machines were read yet")
}

// A temporary failure of the inventory stays one, even where another endorsement may know the TPM.
func TestCandidate_AnInventoryThatCannotBeRead(t *testing.T) {
	tr := newTPMTrial(t)
	tr.spec.TPM2.Endorsements = []v1alpha1.Endorsement{v1alpha1.EndorsementProvider}
	tr.directory, tr.claims = directory{genuine: true, asked: &tr.asked}, fmt.Sprintf(`{"providerID":%q}`, instanceA)
	tr.passes(t, "a")
	tr.replace = func(m appraisal.Machines) appraisal.Machines { return unavailable{m} }
	if tr.refused(t, reason.StoreUnavailable); len(tr.calls()) > 0 {
		t.Errorf("asked %q", tr.calls())
	}
	tr = newTrial(evidence.GCPIdentity)
	tr.clouds[evidence.GCPIdentity].says.ProviderID = ""
	tr.claims = fmt.Sprintf(`{"providerID":%q}`, instanceA)
	tr.replace = func(m appraisal.Machines) appraisal.Machines { return unavailable{m} }
	tr.refused(t, reason.StoreUnavailable)
}

// A provider's warnings are on the verdict, and an instance without a date is not older than its Machine.
func TestConfirm_WarningsAndDates(t *testing.T) {
	tr := newTrial(evidence.GCPIdentity)
	tr.clouds[evidence.GCPIdentity].says.Created = time.Time{}
	tr.sent[0].Raw = []byte{1}
	tr.clouds[evidence.GCPIdentity].says.Warnings = []string{"the image is old"}
	if v := tr.passes(t, "a"); !slices.Equal(v.Warnings, []string{"the image is old"}) {
		t.Errorf("warnings %q", v.Warnings)
	}
}

// The record has the proven AK, and the instance that only the TPM's endorsement names.
func TestVerdict_HasTheEndorsedIdentity(t *testing.T) {
	tr := newTPMTrial(t)
	tr.manifests = machineA
	tr.spec.TPM2.Endorsements = []v1alpha1.Endorsement{v1alpha1.EndorsementAKCertificate}
	tr.endorsers = map[v1alpha1.Endorsement]tpm2.Endorser{v1alpha1.EndorsementAKCertificate: vouches{
		says: tpm2.Endorsement{Kind: tpm2.AKCertificate, ProviderID: instanceA, InstanceID: "aws:i-0aaaaaaaaaaaaaaaa"}}}
	ak, err := tpm2.ParseAK(tr.tpm.AKPublic)
	if err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.RecordedIdentity{AKSHA256: fmt.Sprintf("%x", ak.SPKIHash()), ProviderID: instanceA,
		InstanceID: "aws:i-0aaaaaaaaaaaaaaaa"}
	if v := tr.passes(t, "a"); v.Identity != want {
		t.Errorf("%+v, want %+v", v.Identity, want)
	}
}

// A replay has the answers and the denials of every provider, also of the one that knows EKs.
func TestAnswers_OfEachProvider(t *testing.T) {
	tr := newTPMTrial(t, evidence.GCPIdentity)
	tr.manifests = machineA
	tr.spec.TPM2.Endorsements = []v1alpha1.Endorsement{v1alpha1.EndorsementProvider}
	tr.directory = directory{genuine: true, asked: &tr.asked}
	down := reason.Deny(reason.ProviderUnavailable, "EC2 is down")
	ended := reason.Deny(reason.InstanceUnacceptable, "EC2 is down, as is the instance")
	for name, c := range map[string]struct {
		change  func()
		want    reason.Code
		refused int
	}{
		"both answer": {func() {}, 0, 0},
		"the directory is down": {
			func() { tr.directory = directory{asked: &tr.asked, err: down} }, reason.ProviderUnavailable, 1},
		"it does not know": {
			func() { tr.directory = directory{asked: &tr.asked, err: tpm2.ErrNotMine} }, reason.EKNotEnrolled, 0},
		"the document is denied": {
			func() { tr.clouds[evidence.GCPIdentity].confirm = ended }, reason.InstanceUnacceptable, 1},
	} {
		t.Run(name, func(t *testing.T) {
			tr.directory, tr.clouds[evidence.GCPIdentity].confirm = directory{genuine: true, asked: &tr.asked}, nil
			c.change()
			var answers appraisal.Answers
			tr.spoil = func(in *appraisal.Context, _ *appraisal.Evidence) { *in = answers.Recording(*in) }
			_, err := tr.appraise(t)
			if got := code(err); got != c.want || len(answers.Refused) != c.refused || len(tr.calls()) == 0 {
				t.Fatalf("%v; asked %q, denials %v", err, tr.calls(), answers.Refused)
			}
			tr.spoil = func(in *appraisal.Context, _ *appraisal.Evidence) { *in = answers.Replaying(*in) }
			if _, err := tr.appraise(t); code(err) != c.want || len(tr.calls()) != 0 {
				t.Errorf("the replay: %v; asked %q", err, tr.calls())
			}
			if c.refused > 0 && !strings.Contains(fmt.Sprint(answers.Refused), "EC2 is down") {
				t.Errorf("denials %v", answers.Refused)
			}
		})
	}
	// Without a directory, a recording adds none.
	if in := (&appraisal.Answers{}).Recording(appraisal.Context{}); in.Directory != nil {
		t.Error("a directory")
	}
	// A document that does not verify is not confirmed, recorded or not.
	tr = newTrial(evidence.GCPIdentity)
	tr.clouds[evidence.GCPIdentity].verify = reason.Deny(reason.DocumentInvalid, "a signature")
	tr.spoil = func(in *appraisal.Context, _ *appraisal.Evidence) { *in = (&appraisal.Answers{}).Recording(*in) }
	tr.refused(t, reason.DocumentInvalid)
}

// A replay accepts an old Machine that had a record, also after its evidence was saved.
func TestAnswers_HaveTheRecord(t *testing.T) {
	tr := newTrial(evidence.GCPIdentity)
	old(tr)
	tr.recorded["aws:i-0aaaaaaaaaaaaaaaa"] = "uid-a"
	var saved appraisal.Saved
	tr.spoil = func(in *appraisal.Context, _ *appraisal.Evidence) { *in = saved.Answers.Recording(*in) }
	tr.passes(t, "a")
	saved.Version = 1
	raw, err := saved.Encode()
	if err != nil {
		t.Fatal(err)
	}
	tr.recorded = nil
	again, err := appraisal.ParseSaved(raw)
	if err != nil {
		t.Fatal(err)
	}
	tr.spoil = func(in *appraisal.Context, _ *appraisal.Evidence) { *in = again.Answers.Replaying(*in) }
	tr.passes(t, "a")
	again.Answers.Recorded[0].Identity.InstanceID = "another"
	tr.refused(t, reason.MachineTooOld)
	again.Answers.Recorded = nil // as in evidence of an earlier version
	tr.refused(t, reason.MachineTooOld)
}

// A failure to read the records is the same while the answers are recorded.
func TestAnswers_FailureOfTheRecords(t *testing.T) {
	tr := newTrial(evidence.GCPIdentity)
	old(tr)
	tr.lookup = reason.Deny(reason.StoreUnavailable, "no records")
	var saved appraisal.Saved
	tr.spoil = func(in *appraisal.Context, _ *appraisal.Evidence) { *in = saved.Answers.Recording(*in) }
	tr.refused(t, reason.StoreUnavailable)
}

// code returns the code of a denial, or 0.
func code(err error) reason.Code {
	if err == nil {
		return 0
	}
	return reason.From(err).Code
}

// Saved evidence has the documents that were required, and its quote can be verified later.
func TestSaved_DocumentsAndTheQuote(t *testing.T) {
	tr := newTPMTrial(t, evidence.GCPIdentity)
	tr.log = []byte("log")
	var saved *appraisal.Saved
	tr.spoil = func(in *appraisal.Context, ev *appraisal.Evidence) {
		ev.Cloud = append(ev.Cloud, evidence.Document{Kind: evidence.AWSIID, Raw: []byte("ignored")})
		saved = appraisal.Save(*in, appraisal.Connection{}, *ev, start, "c1")
	}
	tr.passes(t, "a")
	challenge, ev, err := saved.Replay()
	if want := []evidence.Document{{Kind: evidence.GCPIdentity, Raw: []byte("document")}}; err != nil ||
		!reflect.DeepEqual(ev.Cloud, want) || !slices.Equal(challenge.Required, tr.required) {
		t.Errorf("%v: %+v, required %v", err, ev.Cloud, challenge.Required)
	}
	quote, log, err := saved.Quote()
	if err != nil || quote.EK.SPKIHash() != tr.tpm.EKSPKI || string(log) != "log" {
		t.Errorf("%v: %+v, log %q", err, quote, log)
	}
	for name, c := range map[string]struct {
		change func(*appraisal.Context, *appraisal.Evidence)
		want   string
	}{
		"its TPM evidence is missing": {
			func(_ *appraisal.Context, ev *appraisal.Evidence) { ev.TPM2 = nil }, "tpm2 is required"},
		"its quote is forged": {
			func(_ *appraisal.Context, ev *appraisal.Evidence) { ev.TPM2.Activation[0]++ }, "ActivationInvalid"},
		"it has no TPM": {func(in *appraisal.Context, _ *appraisal.Evidence) {
			in.Challenge = seal.Challenge{Required: []evidence.Kind{evidence.GCPIdentity}}
		}, "did not attest with its TPM"},
	} {
		tr.spoil = func(in *appraisal.Context, ev *appraisal.Evidence) {
			c.change(in, ev)
			saved = appraisal.Save(*in, appraisal.Connection{}, *ev, start, "c1")
		}
		_, _ = tr.appraise(t) // only saves
		if _, _, err := saved.Quote(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	raw, err := saved.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"an unknown document":    strings.Replace(string(raw), `"kind": "gcp-identity"`, `"kind": "x"`, 1),
		"an unknown requirement": strings.Replace(string(raw), `"gcp-identity"`, `"x"`, 1),
	} {
		if text == string(raw) {
			t.Fatalf("%s: the saved form has no such kind: %s", name, raw)
		}
		s, err := appraisal.ParseSaved([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Quote(); err == nil || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A denial has the cause that an administrator can correct.
func TestAppraise_NamesTheCause(t *testing.T) {
	manufacturer := v1alpha1.EndorsementManufacturer
	for name, c := range map[string]struct {
		trial  *trial
		change func(*trial)
		code   reason.Code
		want   string
	}{
		"a bad certificate, and the EK may still be enrolled": {newTPMTrial(t), func(tr *trial) {
			tr.manifests = machineA
			tr.spec.TPM2.Endorsements = []v1alpha1.Endorsement{v1alpha1.EndorsementEnrolled, manufacturer}
			tr.endorsers = map[v1alpha1.Endorsement]tpm2.Endorser{manufacturer: vouches{
				err: reason.Deny(reason.EKUntrusted, "an unknown authority")}}
		}, reason.EKNotEnrolled, "an unknown authority"},
		"no component names the Machine": {newTrial(evidence.GCPIdentity), func(tr *trial) {
			tr.clouds[evidence.GCPIdentity].says.ProviderID = ""
		}, reason.MachineNotFound, "its claims have no providerID"},
		"a genuine TPM, and the records cannot be read": {newTPMTrial(t), func(tr *trial) {
			tr.manifests, tr.spec.TPM2.Endorsements = machineA, []v1alpha1.Endorsement{manufacturer}
			tr.endorsers = map[v1alpha1.Endorsement]tpm2.Endorser{manufacturer: vouches{
				says: tpm2.Endorsement{Kind: tpm2.Manufacturer}}}
			tr.lookup = reason.Deny(reason.StoreUnavailable, "the API server is down")
		}, reason.StoreUnavailable, "the API server is down"},
	} {
		c.trial.passes(t, "a")
		c.change(c.trial)
		if _, err := c.trial.appraise(t); code(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A MachineAttestation without a Machine has no age that an instance could be compared with.
func TestConfirm_AnInstanceOlderThanItsEnrollment(t *testing.T) {
	tr := newTrial(evidence.GCPIdentity)
	tr.manifests = `apiVersion: mcs-attest.dev/v1alpha1
kind: MachineAttestation
metadata: {namespace: openshift-machine-api, name: a, uid: uid-a, creationTimestamp: "2026-03-01T11:30:00Z"}
spec: {pool: worker, expectedProviderID: "` + instanceA + `"}
`
	tr.clouds[evidence.GCPIdentity].says.Created = start.Add(-48 * time.Hour)
	tr.passes(t, "a")
}
