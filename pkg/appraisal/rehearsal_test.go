// SPDX-License-Identifier: Apache-2.0

package appraisal_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/eventlog/eventlogtest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// boundCloud accepts documents that are bound to one transcript.
type boundCloud struct {
	cloud
	to *trial
}

func (c boundCloud) Verify(ctx context.Context, d evidence.Document, b evidence.Binding,
	now time.Time) (evidence.Claim, error) {
	if b.Transcript != c.to.said {
		return nil, reason.Deny(reason.DocumentNotFresh, "bound to another transcript")
	}
	return c.cloud.Verify(ctx, d, b, now)
}

// Evidence of a rehearsal is no evidence for an attestation, and the reverse, even if a relay forces the same
// secret, nonce and connection on both.
func TestAttack_T74_EvidenceOfARehearsalIsNoEvidence(t *testing.T) {
	token := secret.New([]byte("the provisioning token"))
	for name, c := range map[string]struct {
		trial func() *trial
		want  reason.Code
	}{
		"the activation and the quote of a TPM": {func() *trial { return newTPMTrial(t) }, reason.ActivationInvalid},
		"a cloud's document": {func() *trial {
			tr := newTPMTrial(t, evidence.GCPIdentity)
			tr.spoil = func(in *appraisal.Context, ev *appraisal.Evidence) {
				in.Clouds[evidence.GCPIdentity] = boundCloud{*tr.clouds[evidence.GCPIdentity], tr}
				// The TPM itself answers in the conversation that the verifier expects.
				tr.rehearses = in.Rehearsal
				said := tr.said
				tr.answer(t, &in.Challenge, ev)
				tr.said = said
			}
			return tr
		}, reason.DocumentNotFresh},
		"the proof of the provisioning token": {func() *trial {
			tr := newTPMTrial(t)
			tr.required = append(tr.required, evidence.ProvisioningToken)
			all := &tr.spec.Evidence[0].All
			*all = append(*all, evidence.ProvisioningToken.String())
			tr.spoil = func(in *appraisal.Context, ev *appraisal.Evidence) {
				in.ProvisioningTokens = []secret.Bytes{token}
				ev.ProvisioningToken = transcript.ProvisioningToken(token.Expose(), tr.said)
				tr.rehearses = in.Rehearsal
				tr.answer(t, &in.Challenge, ev)
			}
			return tr
		}, reason.ProvisioningTokenInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			for _, verifier := range []bool{false, true} {
				for _, node := range []bool{false, true} {
					tr := c.trial()
					spoil := tr.spoil
					tr.rehearses = node
					tr.spoil = func(in *appraisal.Context, ev *appraisal.Evidence) {
						in.Rehearsal = verifier
						if spoil != nil {
							spoil(in, ev)
						}
					}
					if verifier == node {
						tr.passes(t, "a")
					} else {
						tr.refused(t, c.want)
					}
				}
			}
		})
	}
}

// The cap of PCR 11 is ignored only in a rehearsal, and only if the value before it is acceptable.
func TestAttack_T74_OnlyARehearsalIgnoresTheCap(t *testing.T) {
	uki := eventlogtest.Load(t, eventlogtest.SecureBootUKICapped)
	for name, c := range map[string]struct {
		pcr11     []byte
		rehearsal reason.Code // 0: accepted
		attest    reason.Code
		warns     bool
	}{
		"while the initramfs runs": {pcr11: uki.PCR("sha256", 11), warns: true},
		"capped":                   {pcr11: uki.Later("capped"), attest: reason.PCRCapped},
		"systemd ended it":         {pcr11: uki.Later("leave-initrd"), attest: reason.PCRCapped},
		"any other value": {pcr11: bytes.Repeat([]byte{1}, 32), rehearsal: reason.MeasuredBoot,
			attest: reason.MeasuredBoot, warns: true},
		"the value of another image, capped": {pcr11: eventlogtest.Load(t, eventlogtest.SecureBootUKI).PCR("sha256", 11),
			rehearsal: reason.MeasuredBoot, attest: reason.MeasuredBoot, warns: true},
	} {
		for _, rehearsal := range []bool{false, true} {
			tr := newTPMTrial(t)
			tr.refs = []measuredboot.ReferenceValues{referencesOf(t, eventlogtest.SecureBootUKICapped)}
			tr.boots(t, eventlogtest.SecureBootUKICapped)
			tr.tpm.PCRs[11] = c.pcr11
			tr.rehearses = rehearsal
			tr.spoil = func(in *appraisal.Context, _ *appraisal.Evidence) { in.Rehearsal = rehearsal }
			want := c.attest
			if rehearsal {
				want = c.rehearsal
			}
			v, err := tr.appraise(t)
			if d := reason.From(err); (d == nil) != (want == 0) || d != nil && d.Code != want {
				t.Errorf("%s, rehearsal %v: %v, want %s", name, rehearsal, err, want)
			} else if err == nil && (len(v.Warnings) > 0) != (rehearsal && c.warns) {
				t.Errorf("%s, rehearsal %v: warnings %q", name, rehearsal, v.Warnings)
			}
		}
	}
}

// The evidence of another Machine has the result of evidence that no Machine has.
func TestAttack_T74_AnotherMachinesEvidenceIsUnknown(t *testing.T) {
	of := func(tr *trial, uid string) {
		tr.rehearses = true
		tr.replace = func(all appraisal.Machines) appraisal.Machines {
			ix := all.(*machine.Index)
			m, ok := ix.ByUID(uid)
			if !ok {
				t.Fatalf("no Machine %s", uid)
			}
			return machine.Rehearsal{All: ix, Machine: m}
		}
		tr.spoil = func(in *appraisal.Context, _ *appraisal.Evidence) { in.Rehearsal = true }
	}
	for name, documents := range map[string][]evidence.Kind{"a TPM": nil, "a TPM and a document": {evidence.GCPIdentity}} {
		t.Run(name, func(t *testing.T) {
			known := newTPMTrial(t, documents...)
			of(known, "uid-a")
			known.passes(t, "a")
			of(known, "uid-b")
			_, err := known.appraise(t)
			if err == nil {
				t.Fatal("Machine a rehearses as Machine b")
			}
			calls := known.calls()

			known.manifests = machineA // not enrolled
			if documents != nil {      // and its instance belongs to no Machine
				known.manifests = strings.Replace(machineA, instanceA, instanceA+"0", 1)
			}
			_, unknown := known.appraise(t)
			if unknown == nil || err.Error() != unknown.Error() || !slices.Equal(calls, known.calls()) {
				t.Errorf("another Machine's evidence: %v, %q\nunknown evidence: %v, %q", err, calls, unknown, known.calls())
			}
			for _, e := range []error{err, unknown} {
				var r *appraisal.Refusal
				if errors.As(e, &r) && r.Machine != nil {
					t.Errorf("the denial names Machine %s", r.Machine)
				}
			}
		})
	}
}

// Only a rehearsal passes without the provisioning token, with a warning. A wrong one is denied in both.
func TestAttack_T74_OnlyARehearsalNeedsNoProvisioningToken(t *testing.T) {
	for name, c := range map[string]struct {
		proof             []byte
		attest, rehearsal reason.Code
	}{
		"absent": {nil, reason.EvidenceMissing, 0},
		"wrong":  {[]byte("wrong"), reason.ProvisioningTokenInvalid, reason.ProvisioningTokenInvalid},
	} {
		for _, rehearsal := range []bool{false, true} {
			tr := newTPMTrial(t)
			tr.rehearses, tr.required = rehearsal, append(tr.required, evidence.ProvisioningToken)
			all := &tr.spec.Evidence[0].All
			*all = append(*all, evidence.ProvisioningToken.String())
			tr.spoil = func(in *appraisal.Context, ev *appraisal.Evidence) {
				in.Rehearsal, ev.ProvisioningToken = rehearsal, c.proof
				in.ProvisioningTokens = []secret.Bytes{secret.New([]byte("the provisioning token"))}
			}
			want := c.attest
			if rehearsal {
				want = c.rehearsal
			}
			if want != 0 {
				tr.refused(t, want)
			} else if v := tr.passes(t, "a"); !slices.ContainsFunc(v.Warnings, func(w string) bool {
				return strings.Contains(w, "provisioning token")
			}) {
				t.Errorf("%s: warnings %q", name, v.Warnings)
			}
		}
	}
}

// A rehearsal runs in the real root, so it does not claim a stage of its first boot.
func TestRehearsal_TheStageIsNotAppraised(t *testing.T) {
	for _, rehearsal := range []bool{false, true} {
		tr := newTPMTrial(t)
		tr.claims = `{"stage":"` + string(v1alpha1.StageRealRoot) + `"}`
		tr.rehearses = rehearsal
		tr.spoil = func(in *appraisal.Context, _ *appraisal.Evidence) { in.Rehearsal = rehearsal }
		if _, err := tr.appraise(t); (err == nil) != rehearsal {
			t.Errorf("rehearsal %v: %v", rehearsal, err)
		}
	}
}
