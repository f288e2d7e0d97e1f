// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"testing"

	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
)

func TestValidTPMsAreAcceptedWithEveryTypeOfKey(t *testing.T) {
	for ekKind := range ekTemplates {
		for akKind := range akTemplates {
			t.Run("EK "+ekKind+", AK "+akKind, func(t *testing.T) {
				_, c := honest(t, ekKind, akKind)
				q, err := c.verify()
				if err != nil {
					t.Fatal(err)
				}
				if q.EK != c.challenge.EK || q.AK != c.challenge.AK || q.Bank != tpm2.BankSHA256 || len(q.PCRs) != len(quotedPCRs) {
					t.Errorf("verified %+v", q)
				}
				for i, p := range quotedPCRs {
					if !bytes.Equal(q.PCRs[p], c.evidence.PCRValues[i]) {
						t.Errorf("PCR %d is %x, want %x", p, q.PCRs[p], c.evidence.PCRValues[i])
					}
				}
				if q.EK.Describe() != ekKind {
					t.Errorf("EK is %s", q.EK.Describe())
				}
			})
		}
	}
}

func TestBothBanksAreAccepted(t *testing.T) {
	d := simulate(t)
	ek := d.primary(tpm.TPMRHEndorsement, tpm.ECCEKTemplate)
	for _, akKind := range []string{agentAK, "P-384 ECDSA SHA-384"} {
		ak := d.primary(tpm.TPMRHEndorsement, akTemplates[akKind])
		for _, bank := range []tpm.TPMAlgID{tpm.TPMAlgSHA256, tpm.TPMAlgSHA384} {
			if _, err := d.converse(ek, ak, bank, []int{11}, "bank").verify(); err != nil {
				t.Errorf("%s, bank %v: %v", akKind, bank, err)
			}
		}
		d.flush(ak)
	}
}

func TestQuotesOverAllPCRsAreAccepted(t *testing.T) {
	d := simulate(t)
	ek, ak := d.primary(tpm.TPMRHEndorsement, tpm.ECCEKTemplate), d.primary(tpm.TPMRHEndorsement, akTemplates[agentAK])
	all := make([]int, 24)
	for i := range all {
		all[i] = i
	}
	q, err := d.converse(ek, ak, tpm.TPMAlgSHA256, all, "all").verify()
	if err != nil || len(q.PCRs) != 24 {
		t.Errorf("%+v, %v", q, err)
	}
}

func TestQuoteContainsTheTPMsCounters(t *testing.T) {
	d, c := honest(t, "ecc-p256", agentAK)
	q, err := c.verify()
	if err != nil {
		t.Fatal(err)
	}
	clock, err := tpm.ReadClock{}.Execute(d.tpm)
	if err != nil {
		t.Fatal(err)
	}
	// Equal values mean that those in the quote are not obfuscated (Part 1, 36.7).
	if info := clock.CurrentTime.ClockInfo; q.ResetCount != info.ResetCount || q.RestartCount != info.RestartCount ||
		q.Clock > info.Clock {
		t.Errorf("quote has %+v, the TPM %+v", q, info)
	}
	if q.FirmwareVersion == 0 {
		t.Error("no firmware version")
	}
}

func TestKeyHashesAreThoseOfTheSubjectPublicKeyInfo(t *testing.T) {
	_, c := honest(t, "rsa-2048", agentAK)
	for name, key := range map[string]interface {
		SPKIHash() [32]byte
		PublicKey() crypto.PublicKey
	}{"EK": c.challenge.EK, "AK": c.challenge.AK} {
		der, err := x509.MarshalPKIXPublicKey(key.PublicKey())
		if err != nil {
			t.Fatal(err)
		}
		if got := key.SPKIHash(); got != sha256.Sum256(der) {
			t.Errorf("%s: %x", name, got)
		}
	}
}
