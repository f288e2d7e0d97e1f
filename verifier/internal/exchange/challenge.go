// SPDX-License-Identifier: Apache-2.0

// Package exchange creates the content of challenges, and converts the evidence of a message for an appraisal.
// The attestation and its rehearsal have both in common.
package exchange

import (
	"crypto/rand"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// Terms are what a challenge depends on. The TPM comes from the caller and is untrusted.
type Terms struct {
	Issued   time.Time
	Origin   string // one that the verifier serves
	Policy   policy.Policy
	Required []evidence.Kind
	TPM      *mcsattestv1.TpmIdentity
	Exporter []byte // of the connection, or nil
	// AzureTokenResource is the resource of the token that Azure machines must present, or "".
	AzureTokenResource string
}

// Challenge is what the verifier seals, and what it sends to the node.
type Challenge struct {
	Sealed   seal.Challenge
	Required []mcsattestv1.EvidenceKind
	Binding  mcsattestv1.BindingMode
	TPM      *mcsattestv1.TpmChallenge
	Cloud    *mcsattestv1.CloudChallenge
}

// NewChallenge returns a new challenge. If a TPM is required, only the TPM with the EK and the AK of the terms
// can answer it.
func NewChallenge(t Terms) (Challenge, error) {
	hash := t.Policy.Hash()
	c := Challenge{Sealed: seal.Challenge{
		Issued: t.Issued, Nonce: random(32), Origin: t.Origin, Pool: t.Policy.Pool, PolicyHash: hash[:],
		Required: t.Required, Binding: appraisal.BindingName(t.Policy.Binding),
	}}
	c.Binding = bindings[c.Sealed.Binding]
	if c.Sealed.Binding == appraisal.BindingExporter {
		if c.Sealed.Exporter = t.Exporter; c.Sealed.Exporter == nil {
			return Challenge{}, reason.Deny(reason.BindingMissing, "no TLS 1.3 exporter")
		}
	}
	for _, k := range t.Required {
		c.Required = append(c.Required, mcsattestv1.EvidenceKind(k))
		if k == evidence.AzureAttested && t.AzureTokenResource != "" {
			c.Cloud = &mcsattestv1.CloudChallenge{AzureTokenResource: t.AzureTokenResource}
		}
		if k != evidence.TPM2 {
			continue
		}
		var err error
		if c.TPM, err = challengeTPM(&c.Sealed, t.Policy, t.TPM); err != nil {
			return Challenge{}, err
		}
	}
	return c, nil
}

// challengeTPM returns the TPM's part of a challenge: a credential that only the TPM
// with this EK and AK can activate. It adds the secret and the keys to sealed.
func challengeTPM(sealed *seal.Challenge, p policy.Policy,
	id *mcsattestv1.TpmIdentity) (*mcsattestv1.TpmChallenge, error) {
	if id == nil {
		return nil, reason.Deny(reason.EvidenceMissing, "tpm2 is required and no TPM was offered")
	}
	for _, chain := range [][][]byte{id.GetEkCertificates(), id.GetAkCertificates()} {
		if err := boundChain(chain); err != nil {
			return nil, err
		}
	}
	ek, err := tpm2.ParseEK(id.GetEkPublic())
	if err != nil {
		return nil, err
	}
	ak, err := tpm2.ParseAK(id.GetAkPublic())
	if err != nil {
		return nil, err
	}
	bank, err := p.Bank(banks(id.GetBanks()))
	if err != nil {
		return nil, err
	}
	sealed.Secret = newActivationSecret()
	blob, encrypted, err := tpm2.MakeCredential(rand.Reader, ek, ak.Name(), sealed.Secret.Expose())
	if err != nil {
		return nil, err
	}
	sealed.Bank, sealed.PCRs = bank, p.Profile.PCRs()
	sealed.EKPublic, sealed.AKPublic = id.GetEkPublic(), id.GetAkPublic()
	sealed.EKCertificates, sealed.AKCertificates = id.GetEkCertificates(), id.GetAkCertificates()
	res := &mcsattestv1.TpmChallenge{CredentialBlob: blob, EncryptedSecret: encrypted, Bank: uint32(bank),
		EventLog: p.Profile.NeedsEventLog()}
	for _, pcr := range sealed.PCRs {
		res.Pcrs = append(res.Pcrs, uint32(pcr))
	}
	return res, nil
}

func boundChain(chain [][]byte) error {
	if len(chain) > appraisal.MaxChain {
		return reason.Deny(reason.TooLarge, "%d certificates", len(chain))
	}
	for _, der := range chain {
		if len(der) > appraisal.MaxCertificate {
			return reason.Deny(reason.TooLarge, "certificate of %d bytes", len(der))
		}
	}
	return nil
}

var bindings = map[string]mcsattestv1.BindingMode{
	appraisal.BindingExporter:   mcsattestv1.BindingMode_BINDING_MODE_EXPORTER,
	appraisal.BindingTerminated: mcsattestv1.BindingMode_BINDING_MODE_TERMINATED,
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // crypto/rand.Read never fails
	return b
}

// newActivationSecret creates K: random for each challenge, and stored only in its seal.
func newActivationSecret() secret.Bytes { return secret.New(random(32)) }
