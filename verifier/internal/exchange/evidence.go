// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// Message is the request of an attestation or a rehearsal.
type Message interface {
	GetSealed() []byte
	GetServerSpkiSha256() []byte
	GetClaims() []byte
	GetTpm2() *mcsattestv1.Tpm2Evidence
	GetCloud() []*mcsattestv1.CloudEvidence
}

// Received converts the untrusted evidence of a message. Only an attestation presents the provisioning token.
func Received(req Message) appraisal.Evidence {
	ev := appraisal.Evidence{
		Sealed: req.GetSealed(), ServerSPKI: req.GetServerSpkiSha256(), Claims: req.GetClaims(),
	}
	if attest, ok := req.(*mcsattestv1.AttestRequest); ok {
		ev.ProvisioningToken = attest.GetProvisioningToken()
	}
	if t := req.GetTpm2(); t != nil {
		ev.TPM2 = &tpm2.Evidence{Quote: t.GetQuote(), Signature: t.GetSignature(), Activation: t.GetActivation(),
			PCRValues: t.GetPcrValues()}
		ev.EventLog = t.GetEventLog()
	}
	for _, d := range req.GetCloud() {
		ev.Cloud = append(ev.Cloud, evidence.Document{
			Kind: evidence.Kind(d.GetKind()), Raw: d.GetDocument(), Certificates: d.GetCertificates(), Token: d.GetToken(),
		})
	}
	return ev
}

// maxOffered is the maximum number of offered kinds that are read. Fewer kinds exist.
const maxOffered = 16

// Kinds returns the known kinds among those that a caller offers.
func Kinds(offered []mcsattestv1.EvidenceKind) []evidence.Kind {
	var all []evidence.Kind
	for _, k := range offered[:min(len(offered), maxOffered)] {
		if kind := evidence.Kind(k); kind.Valid() {
			all = append(all, kind)
		}
	}
	return all
}

func banks(offered []uint32) []uint16 {
	var all []uint16
	for _, b := range offered[:min(len(offered), 8)] {
		if b <= 0xFFFF {
			all = append(all, uint16(b))
		}
	}
	return all
}
