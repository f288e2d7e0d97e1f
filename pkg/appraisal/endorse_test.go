// SPDX-License-Identifier: Apache-2.0

package appraisal_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// vouches is an endorser with one answer about the EK or the AK of the caller.
type vouches struct {
	says tpm2.Endorsement
	err  error
}

func (v vouches) Endorse(_ context.Context, id tpm2.Identity, _ time.Time) (*tpm2.Endorsement, error) {
	if v.err != nil {
		return nil, v.err
	}
	says := v.says
	if says.Kind == tpm2.AKCertificate {
		says.AKSHA256 = id.AK.SPKIHash()
	} else {
		says.EKSHA256 = id.EK.SPKIHash()
	}
	return &says, nil
}

// directory is a provider's API for one instance.
type directory struct {
	genuine bool // the caller's EK is the instance's
	err     error
	asked   *[]string
}

func (d directory) EndorsementKeys(_ context.Context, providerID string, ek *tpm2.EK) (tpm2.ProviderKeys, error) {
	*d.asked = append(*d.asked, "keys "+providerID)
	keys := tpm2.ProviderKeys{InstanceID: "aws:i-0aaaaaaaaaaaaaaaa"}
	if d.genuine {
		spki, err := x509.MarshalPKIXPublicKey(ek.PublicKey())
		if err != nil {
			return keys, err
		}
		keys.SPKI = [][]byte{spki}
	}
	return keys, d.err
}

// Each case changes a trial in which the EK is enrolled for Machine a. The endorsements are tried in
// their fixed order, and an attacker cannot choose a weaker one.
func TestEndorse(t *testing.T) {
	const (
		provider     = v1alpha1.EndorsementProvider
		certificate  = v1alpha1.EndorsementAKCertificate
		enrolled     = v1alpha1.EndorsementEnrolled
		manufacturer = v1alpha1.EndorsementManufacturer
	)
	bad := reason.Deny(reason.EKUntrusted, "an unknown authority")
	genuine := vouches{says: tpm2.Endorsement{Kind: tpm2.Manufacturer}}
	claimsA := fmt.Sprintf(`{"providerID":%q}`, instanceA)
	unenrolled := func(tr *trial) { tr.manifests = machineA }
	for name, c := range map[string]struct {
		documents    []evidence.Kind
		endorsements []v1alpha1.Endorsement
		change       func(*trial)
		want         reason.Code // 0: accepted
		by           v1alpha1.Endorsement
		calls        int  // of the provider
		noted        bool // the denial is noted at Machine a
		stranger     bool // the denial has the EK of a caller without a Machine
		genuine      bool // and its endorsement
	}{
		"enrolled": {endorsements: []v1alpha1.Endorsement{enrolled}, by: enrolled},
		"not enrolled": {endorsements: []v1alpha1.Endorsement{enrolled}, change: unenrolled,
			want: reason.EKNotEnrolled, stranger: true},
		"enrolled, but the policy does not accept it": {endorsements: []v1alpha1.Endorsement{manufacturer},
			want: reason.EKNotEnrolled, stranger: true},
		"a bad certificate, and the EK may still be enrolled": {
			endorsements: []v1alpha1.Endorsement{enrolled, manufacturer},
			change:       func(tr *trial) { unenrolled(tr); tr.endorsers[manufacturer] = vouches{err: bad} },
			want:         reason.EKNotEnrolled, stranger: true},
		"a bad certificate, and the policy accepts no other endorsement": {endorsements: []v1alpha1.Endorsement{manufacturer},
			change: func(tr *trial) { tr.endorsers[manufacturer] = vouches{err: bad} }, want: reason.EKUntrusted},
		"an unknown authority and a bad certificate": {endorsements: []v1alpha1.Endorsement{certificate, manufacturer},
			change: func(tr *trial) {
				tr.endorsers[certificate] = vouches{err: reason.Deny(reason.DocumentUntrusted, "no anchor")}
				tr.endorsers[manufacturer] = vouches{err: bad}
			}, want: reason.DocumentUntrusted},
		"a bad AK certificate, and the EK is enrolled": {endorsements: []v1alpha1.Endorsement{certificate, enrolled},
			change: func(tr *trial) { tr.endorsers[certificate] = vouches{err: bad} }, by: enrolled},
		"genuine, and an administrator must approve it": {endorsements: []v1alpha1.Endorsement{enrolled, manufacturer},
			change: func(tr *trial) { unenrolled(tr); tr.endorsers[manufacturer] = genuine },
			want:   reason.PendingApproval, stranger: true, genuine: true},
		"genuine at first use": {documents: []evidence.Kind{evidence.GCPIdentity},
			endorsements: []v1alpha1.Endorsement{enrolled, manufacturer},
			change: func(tr *trial) {
				unenrolled(tr)
				tr.endorsers[manufacturer], tr.spec.TPM2.Approval = genuine, v1alpha1.ApprovalFirstUse
			}, by: manufacturer},
		"genuine, beside a document, without first use": {documents: []evidence.Kind{evidence.GCPIdentity},
			endorsements: []v1alpha1.Endorsement{enrolled, manufacturer},
			change:       func(tr *trial) { unenrolled(tr); tr.endorsers[manufacturer] = genuine },
			want:         reason.PendingApproval, stranger: true, genuine: true},
		"genuine, but another EK is enrolled for the Machine": {documents: []evidence.Kind{evidence.GCPIdentity},
			endorsements: []v1alpha1.Endorsement{enrolled, manufacturer},
			change: func(tr *trial) {
				tr.tpm = newSoftTPM(t)
				tr.endorsers[manufacturer], tr.spec.TPM2.Approval = genuine, v1alpha1.ApprovalFirstUse
			}, want: reason.PendingApproval, stranger: true, genuine: true},
		"the provider names the EK": {endorsements: []v1alpha1.Endorsement{provider}, change: func(tr *trial) {
			unenrolled(tr)
			tr.claims, tr.directory = claimsA, directory{genuine: true, asked: &tr.asked}
		}, by: provider, calls: 1},
		"the provider is not asked about an enrolled EK": {endorsements: []v1alpha1.Endorsement{provider, enrolled},
			change: func(tr *trial) { tr.claims, tr.directory = claimsA, directory{asked: &tr.asked} }, by: enrolled},
		"the provider is not asked without a claim": {endorsements: []v1alpha1.Endorsement{provider},
			change: func(tr *trial) { unenrolled(tr); tr.directory = directory{genuine: true, asked: &tr.asked} },
			want:   reason.EKNotEnrolled, stranger: true},
		"the provider is asked about an EK that is not enrolled": {
			endorsements: []v1alpha1.Endorsement{provider, enrolled}, change: func(tr *trial) {
				unenrolled(tr)
				tr.claims, tr.directory = claimsA, directory{genuine: true, asked: &tr.asked}
			}, by: provider, calls: 1},
		"an enrollment that the policy does not accept": {endorsements: []v1alpha1.Endorsement{provider},
			change: func(tr *trial) { tr.claims, tr.directory = claimsA, directory{genuine: true, asked: &tr.asked} },
			by:     provider, calls: 1},
		"a claim of no Machine, and the EK is enrolled": {endorsements: []v1alpha1.Endorsement{provider, enrolled},
			change: func(tr *trial) {
				tr.claims = `{"providerID":"aws:///eu-central-1a/i-0cccccccccccccccc"}`
				tr.directory = directory{asked: &tr.asked}
			}, by: enrolled},
		"a claim, but the policy asks no provider": {endorsements: []v1alpha1.Endorsement{enrolled},
			change: func(tr *trial) {
				tr.claims, tr.directory = fmt.Sprintf(`{"providerID":%q}`, instanceB), directory{asked: &tr.asked}
			}, by: enrolled},
		"a claim, but the verifier has no provider": {endorsements: []v1alpha1.Endorsement{provider, enrolled},
			change: func(tr *trial) { tr.claims = fmt.Sprintf(`{"providerID":%q}`, instanceB) }, by: enrolled},
		"a bad AK certificate beside a document, and the EK is enrolled": {
			documents:    []evidence.Kind{evidence.GCPIdentity},
			endorsements: []v1alpha1.Endorsement{certificate, enrolled},
			change:       func(tr *trial) { tr.endorsers[certificate] = vouches{err: bad} }, by: enrolled},
		"the provider does not name the EK": {endorsements: []v1alpha1.Endorsement{provider},
			change: func(tr *trial) { unenrolled(tr); tr.claims, tr.directory = claimsA, directory{asked: &tr.asked} },
			want:   reason.EKUntrusted, calls: 1},
		"it is claimed, and genuine by its manufacturer": {
			endorsements: []v1alpha1.Endorsement{provider, manufacturer}, change: func(tr *trial) {
				unenrolled(tr)
				tr.claims, tr.directory, tr.endorsers[manufacturer] = claimsA, directory{asked: &tr.asked}, genuine
			}, want: reason.PendingApproval, calls: 1, stranger: true, genuine: true},
		"an unavailable provider does not lead to a weaker endorsement": {
			endorsements: []v1alpha1.Endorsement{provider, manufacturer}, change: func(tr *trial) {
				unenrolled(tr)
				tr.claims, tr.endorsers[manufacturer] = claimsA, genuine
				tr.directory = directory{asked: &tr.asked, err: reason.Deny(reason.ProviderUnavailable, "EC2 is down")}
			}, want: reason.ProviderUnavailable, calls: 1},
		"a document names the instance, so the provider's denial is final": {
			documents: []evidence.Kind{evidence.GCPIdentity}, endorsements: []v1alpha1.Endorsement{provider, enrolled},
			change: func(tr *trial) { tr.directory = directory{asked: &tr.asked} },
			want:   reason.EKUntrusted, calls: 1, noted: true},
		"a document and the provider name the instance": {documents: []evidence.Kind{evidence.GCPIdentity},
			endorsements: []v1alpha1.Endorsement{provider},
			change:       func(tr *trial) { unenrolled(tr); tr.directory = directory{genuine: true, asked: &tr.asked} },
			by:           provider, calls: 1},
		"a certified AK of the document's instance": {documents: []evidence.Kind{evidence.GCPIdentity},
			endorsements: []v1alpha1.Endorsement{certificate}, change: func(tr *trial) {
				unenrolled(tr)
				tr.endorsers[certificate] = vouches{says: tpm2.Endorsement{Kind: tpm2.AKCertificate, ProviderID: instanceA,
					InstanceID: "aws:i-0aaaaaaaaaaaaaaaa"}}
			}, by: certificate},
		"a certified AK of another instance": {documents: []evidence.Kind{evidence.GCPIdentity},
			endorsements: []v1alpha1.Endorsement{certificate}, change: func(tr *trial) {
				unenrolled(tr)
				tr.endorsers[certificate] = vouches{says: tpm2.Endorsement{Kind: tpm2.AKCertificate,
					InstanceID: "aws:i-0bbbbbbbbbbbbbbbb"}}
			}, want: reason.EvidenceDisagrees, stranger: true},
		"a certified AK of another Machine": {documents: []evidence.Kind{evidence.GCPIdentity},
			endorsements: []v1alpha1.Endorsement{certificate}, change: func(tr *trial) {
				unenrolled(tr)
				tr.endorsers[certificate] = vouches{says: tpm2.Endorsement{Kind: tpm2.AKCertificate, ProviderID: instanceB}}
			}, want: reason.EvidenceDisagrees, stranger: true},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTPMTrial(t, c.documents...)
			tr.endorsers = map[v1alpha1.Endorsement]tpm2.Endorser{}
			tr.spec.TPM2.Endorsements = c.endorsements
			if c.change != nil {
				c.change(tr)
			}
			asked := func() int {
				n := 0
				for _, call := range tr.asked {
					if call == "keys "+instanceA {
						n++
					}
				}
				return n
			}
			if c.want == 0 {
				v := tr.passes(t, "a")
				if v.Endorsement != c.by || v.Replayable || asked() != c.calls {
					t.Errorf("endorsement %q, replayable %v, asked %q", v.Endorsement, v.Replayable, tr.asked)
				}
				return
			}
			_, err := tr.appraise(t)
			if d := reason.From(err); d == nil || d.Code != c.want {
				t.Fatalf("error %v, want %s", err, c.want)
			}
			var r *appraisal.Refusal
			if !errors.As(err, &r) {
				r = &appraisal.Refusal{}
			}
			ek := tr.tpm.EKSPKI
			if (r.Machine != nil) != c.noted || (r.EKSHA256 == ek) != c.stranger || (r.Unenrolled != nil) != c.genuine ||
				asked() != c.calls {
				t.Errorf("Machine %v, EK %x, endorsement %+v, asked %q: %v", r.Machine, r.EKSHA256, r.Unenrolled, tr.asked, err)
			}
		})
	}
}

// The record gets the identity that was proven, and the TPM's counters.
func TestVerdict_HasTheProvenIdentity(t *testing.T) {
	tr := newTPMTrial(t, evidence.GCPIdentity)
	v := tr.passes(t, "a")
	ek := tr.tpm.EKSPKI
	if id := v.Identity; id.EKSHA256 != fmt.Sprintf("%x", ek) || id.AKSHA256 != "" || id.ProviderID != instanceA ||
		id.InstanceID != "aws:i-0aaaaaaaaaaaaaaaa" {
		t.Errorf("%+v", id)
	}
	if v.TPM == nil || *v.TPM != (v1alpha1.TPMCounters{ResetCount: 5, RestartCount: 2, Clock: 1000}) {
		t.Errorf("counters %+v", v.TPM)
	}
	if s := v.Evidence[0].Summary; s["resetCount"] != "5" || s["bank"] != "sha256" || s["ek"] != "ecc-p256" ||
		s["firmwareVersion"] != "0x7" {
		t.Errorf("summary %v", s)
	}
	if newTrial(evidence.GCPIdentity).passes(t, "a").TPM != nil {
		t.Error("counters without a TPM")
	}
}
