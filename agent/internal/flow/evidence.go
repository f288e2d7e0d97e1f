// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"
	"fmt"
	"slices"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/nodecert"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

func (f *Flow) challengeRequest(t Target) *mcsattestv1.ChallengeRequest {
	req := &mcsattestv1.ChallengeRequest{Pool: t.Pool, Origin: t.Origin, AgentVersion: f.Version}
	if !t.Provisioning.Empty() {
		req.Offered = append(req.Offered, mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN)
	}
	if f.Cloud != nil {
		for _, k := range f.Cloud.Offers() {
			req.Offered = append(req.Offered, mcsattestv1.EvidenceKind(k))
		}
	}
	if f.TPM == nil {
		return req
	}
	id := f.TPM.Identity()
	req.Offered = append(req.Offered, mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2)
	req.Tpm = &mcsattestv1.TpmIdentity{EkPublic: id.EKPublic, EkCertificates: id.EKCertificates, AkPublic: id.AKPublic,
		AkCertificates: id.AKCertificates}
	for _, b := range id.Banks {
		req.Tpm.Banks = append(req.Tpm.Banks, uint32(b))
	}
	return req
}

// challenge is what the challenges of an attestation and of a rehearsal have in common.
type challenge interface {
	GetSealed() []byte
	GetNonce() []byte
	GetBinding() mcsattestv1.BindingMode
	GetRequired() []mcsattestv1.EvidenceKind
	GetTpm() *mcsattestv1.TpmChallenge
	GetPool() string
	GetOrigin() string
	GetCloud() *mcsattestv1.CloudChallenge
}

// evidence collects what the challenge requires and this machine can produce, bound to this connection
// and to the kubelet's key, if it is not nil. Evidence of a rehearsal is of no use for an attestation,
// and the other way round.
func (f *Flow) evidence(ctx context.Context, s *client.Session, t Target, ch challenge, key *nodecert.Key) (
	*mcsattestv1.AttestRequest, error) {
	claims := f.Claims(ctx)
	fields := transcript.Fields{
		Sealed: ch.GetSealed(), Nonce: ch.GetNonce(), ServerSPKI: s.ServerSPKI(),
		Origin: ch.GetOrigin(), Pool: ch.GetPool(), Claims: claims,
	}
	_, fields.Rehearsal = ch.(*mcsattestv1.RehearseChallengeResponse)
	switch ch.GetBinding() {
	case mcsattestv1.BindingMode_BINDING_MODE_EXPORTER:
		exporter, err := s.Exporter()
		if err != nil {
			return nil, fmt.Errorf("TLS exporter: %w", err)
		}
		fields.Binding, fields.Exporter = "exporter", exporter
	case mcsattestv1.BindingMode_BINDING_MODE_TERMINATED:
		fields.Binding = "terminated"
	default:
		return nil, final{fmt.Errorf("the verifier asked for binding mode %v, which this agent does not support",
			ch.GetBinding())}
	}
	if key != nil {
		fields.CSRSPKI = key.SPKISHA256()
	}
	req := &mcsattestv1.AttestRequest{Sealed: ch.GetSealed(), ServerSpkiSha256: fields.ServerSPKI, Claims: claims,
		CsrSpkiSha256: fields.CSRSPKI}
	// What is required and missing is left out: the verifier decides about it.
	kinds := required(ch)
	proves := func(kind evidence.Kind) bool { return slices.Contains(kinds, kind) && f.has(t, ch, kind) }
	var bank uint16
	var pcrs []int
	if proves(evidence.TPM2) {
		tc := ch.GetTpm()
		bank = uint16(tc.GetBank())
		for _, p := range tc.GetPcrs() {
			pcrs = append(pcrs, int(p))
		}
		id := f.TPM.Identity()
		fields.EKSPKI, fields.AKName = id.EKSPKI[:], id.AKName
	}
	fields.Required = transcript.Required(kinds, bank, pcrs)
	h := fields.Hash()
	// The clouds come first: their services answer within milliseconds, or not at all.
	var err error
	if req.Cloud, err = f.gather(ctx, kinds, evidence.Binding{Transcript: h, Origin: fields.Origin},
		ch.GetCloud(), fields.Rehearsal); err != nil {
		return nil, err
	}
	if proves(evidence.TPM2) {
		if f.waitKey == "" {
			f.Console.Step("proving this machine with its TPM (%s)", fields.Required)
		}
		ev, err := f.quote(ch.GetTpm(), bank, pcrs, h)
		if err != nil {
			return nil, err
		}
		req.Tpm2 = ev
	}
	if proves(evidence.ProvisioningToken) {
		req.ProvisioningToken = transcript.ProvisioningToken(t.Provisioning.Expose(), h)
	}
	return req, nil
}

// required returns the required kinds of evidence.
func required(ch challenge) []evidence.Kind {
	var kinds []evidence.Kind
	for _, k := range ch.GetRequired() {
		kinds = append(kinds, evidence.Kind(k))
	}
	return kinds
}

// has reports whether this machine can produce a kind of evidence.
func (f *Flow) has(t Target, ch challenge, kind evidence.Kind) bool {
	return kind == evidence.TPM2 && f.TPM != nil && ch.GetTpm() != nil ||
		kind == evidence.ProvisioningToken && !t.Provisioning.Empty() ||
		f.Cloud != nil && f.Cloud.Makes(kind)
}

// missing returns the required kinds of evidence that this machine cannot produce.
func (f *Flow) missing(t Target, ch challenge) []evidence.Kind {
	return slices.DeleteFunc(required(ch), func(k evidence.Kind) bool { return f.has(t, ch, k) })
}

// onlyProvisioningToken reports whether the provisioning token is the only required evidence.
func onlyProvisioningToken(ch *mcsattestv1.ChallengeResponse) bool {
	return slices.Equal(ch.GetRequired(),
		[]mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN})
}

func (f *Flow) quote(tc *mcsattestv1.TpmChallenge, bank uint16, pcrs []int,
	h transcript.Hash) (*mcsattestv1.Tpm2Evidence, error) {
	out := &mcsattestv1.Tpm2Evidence{}
	if tc.GetEventLog() && f.EventLog != nil {
		log, err := f.EventLog()
		if err != nil {
			// The verifier decides whether an empty log is acceptable.
			f.Console.Step("no event log: %v", err)
		}
		out.EventLog = log
	}
	ev, err := f.TPM.Attest(attester.Challenge{
		CredentialBlob:  tc.GetCredentialBlob(),
		EncryptedSecret: tc.GetEncryptedSecret(),
		Bank:            bank,
		PCRs:            pcrs,
	}, h)
	if err != nil {
		return nil, &tpmError{err}
	}
	out.Quote, out.Signature, out.Activation, out.PcrValues = ev.Quote, ev.Signature, ev.Activation, ev.PCRValues
	return out, nil
}

// TPM is the machine's TPM with its keys prepared.
type TPM interface {
	Identity() attester.Identity
	Attest(attester.Challenge, transcript.Hash) (*attester.Evidence, error)
}
