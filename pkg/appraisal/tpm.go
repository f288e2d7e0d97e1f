// SPDX-License-Identifier: Apache-2.0

package appraisal

import (
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// verifyTPM computes the transcript, and checks the TPM's quote if it is required.
func (a *appraisal) verifyTPM() error {
	if err := a.transcribe(); err != nil {
		return err
	}
	if a.identity.AK == nil {
		return nil
	}
	c := a.Challenge
	quote, err := tpm2.VerifyQuote(tpm2.Challenge{
		EK: a.identity.EK, AK: a.identity.AK, Secret: c.Secret, Bank: c.Bank, PCRs: c.PCRs, Transcript: a.transcript,
	}, *a.ev.TPM2)
	if err != nil {
		return err
	}
	a.quote = quote
	a.accepted(evidence.TPM2, a.ev.TPM2.Quote, quoteSummary(quote))
	return nil
}

// transcribe computes the transcript. If TPM evidence is required, it first reads the TPM's keys.
func (a *appraisal) transcribe() error {
	c := a.Challenge
	f := transcript.Fields{
		Rehearsal: a.Rehearsal, Sealed: a.ev.Sealed, Nonce: c.Nonce, Binding: c.Binding, Exporter: c.Exporter,
		ServerSPKI: a.ev.ServerSPKI, Origin: c.Origin, Pool: c.Pool,
		Required: transcript.Required(c.Required, c.Bank, c.PCRs),
		CSRSPKI:  a.ev.CSRSPKI, Claims: a.ev.Claims,
	}
	if slices.Contains(c.Required, evidence.TPM2) {
		ek, err := tpm2.ParseEK(c.EKPublic)
		if err != nil {
			return err
		}
		ak, err := tpm2.ParseAK(c.AKPublic)
		if err != nil {
			return err
		}
		hash := ek.SPKIHash()
		f.EKSPKI, f.AKName = hash[:], ak.Name()
		a.identity = tpm2.Identity{EK: ek, EKCertificates: c.EKCertificates, AK: ak, AKCertificates: c.AKCertificates}
	}
	a.transcript = f.Hash()
	return nil
}
