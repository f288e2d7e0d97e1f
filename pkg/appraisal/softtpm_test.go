// SPDX-License-Identifier: Apache-2.0

package appraisal_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"testing"

	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/appraisal"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/seal"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// softTPM answers challenges like a TPM, with keys in software. It can have any PCRs.
type softTPM struct {
	ek, ak []byte // TPMT_PUBLIC
	key    *ecdsa.PrivateKey
	pcrs   map[int][]byte // of bank sha256
}

func newSoftTPM(t *testing.T) *softTPM {
	t.Helper()
	var keys [2]*ecdsa.PrivateKey
	var points [2]tpm.TPMUPublicID
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
		point, err := keys[i].PublicKey.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		points[i] = tpm.NewTPMUPublicID(tpm.TPMAlgECC, &tpm.TPMSECCPoint{
			X: tpm.TPM2BECCParameter{Buffer: point[1:33]}, Y: tpm.TPM2BECCParameter{Buffer: point[33:]},
		})
	}
	ek := tpm.ECCEKTemplate
	ek.Unique = points[0]
	ak := tpm.TPMTPublic{
		Type: tpm.TPMAlgECC, NameAlg: tpm.TPMAlgSHA256, Unique: points[1],
		ObjectAttributes: tpm.TPMAObject{FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true,
			Restricted: true, SignEncrypt: true},
		Parameters: tpm.NewTPMUPublicParms(tpm.TPMAlgECC, &tpm.TPMSECCParms{
			Scheme: tpm.TPMTECCScheme{Scheme: tpm.TPMAlgECDSA,
				Details: tpm.NewTPMUAsymScheme(tpm.TPMAlgECDSA, &tpm.TPMSSigSchemeECDSA{HashAlg: tpm.TPMAlgSHA256})},
			CurveID: tpm.TPMECCNistP256,
		}),
	}
	return &softTPM{ek: tpm.Marshal(ek), ak: tpm.Marshal(ak), key: keys[1], pcrs: map[int][]byte{11: make([]byte, 32)}}
}

// ekHash returns the identity of its EK.
func (d *softTPM) ekHash(t *testing.T) [sha256.Size]byte {
	t.Helper()
	ek, err := tpm2.ParseEK(d.ek)
	if err != nil {
		t.Fatal(err)
	}
	return ek.SPKIHash()
}

// answer completes a challenge for the TPM, and adds its evidence.
func (d *softTPM) answer(t *testing.T, c *seal.Challenge, ev *appraisal.Evidence) {
	t.Helper()
	ak, err := tpm2.ParseAK(d.ak)
	if err != nil {
		t.Fatal(err)
	}
	k := make([]byte, 32)
	c.EKPublic, c.AKPublic, c.Secret = d.ek, d.ak, secret.New(k)
	c.Bank, c.PCRs = tpm2.BankSHA256, slices.Sorted(maps.Keys(d.pcrs))
	ek := d.ekHash(t)
	said := transcript.Fields{Origin: c.Origin, Pool: c.Pool, Required: transcript.Required(c.Required, c.Bank, c.PCRs),
		EKSPKI: ek[:], AKName: ak.Name(), CSRSPKI: ev.CSRSPKI, Claims: ev.Claims}.Hash()
	values, selected := sha256.New(), make([]uint, 0, len(c.PCRs))
	ev.TPM2 = &tpm2.Evidence{Activation: transcript.Activation(k, said)}
	for _, pcr := range c.PCRs {
		values.Write(d.pcrs[pcr])
		selected = append(selected, uint(pcr))
		ev.TPM2.PCRValues = append(ev.TPM2.PCRValues, d.pcrs[pcr])
	}
	endorsement := []byte{0x40, 0x00, 0x00, 0x0B}
	signer := sha256.Sum256(append(endorsement, ak.Name()...))
	ev.TPM2.Quote = tpm.Marshal(tpm.TPMSAttest{
		Magic: tpm.TPMGeneratedValue, Type: tpm.TPMSTAttestQuote,
		QualifiedSigner: tpm.TPM2BName{Buffer: append([]byte{0x00, 0x0B}, signer[:]...)},
		ExtraData:       tpm.TPM2BData{Buffer: said[:]},
		ClockInfo:       tpm.TPMSClockInfo{Clock: 1000, ResetCount: 5, RestartCount: 2, Safe: true},
		FirmwareVersion: 7,
		Attested: tpm.NewTPMUAttest(tpm.TPMSTAttestQuote, &tpm.TPMSQuoteInfo{
			PCRSelect: tpm.TPMLPCRSelection{PCRSelections: []tpm.TPMSPCRSelection{
				{Hash: tpm.TPMAlgSHA256, PCRSelect: tpm.PCClientCompatible.PCRs(selected...)}}},
			PCRDigest: tpm.TPM2BDigest{Buffer: values.Sum(nil)},
		}),
	})
	digest := sha256.Sum256(ev.TPM2.Quote)
	r, s, err := ecdsa.Sign(rand.Reader, d.key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	ev.TPM2.Signature = tpm.Marshal(tpm.TPMTSignature{SigAlg: tpm.TPMAlgECDSA,
		Signature: tpm.NewTPMUSignature(tpm.TPMAlgECDSA, &tpm.TPMSSignatureECC{Hash: tpm.TPMAlgSHA256,
			SignatureR: tpm.TPM2BECCParameter{Buffer: r.Bytes()}, SignatureS: tpm.TPM2BECCParameter{Buffer: s.Bytes()}})})
}

// newTPMTrial returns a trial that passes and requires a TPM, whose EK is enrolled for Machine a, and
// documents of these kinds.
func newTPMTrial(t *testing.T, documents ...evidence.Kind) *trial {
	t.Helper()
	tr := newTrial(documents...)
	tr.tpm = newSoftTPM(t)
	tr.required = append([]evidence.Kind{evidence.TPM2}, documents...)
	all := &tr.spec.Evidence[0].All
	*all = append([]string{evidence.TPM2.String()}, *all...)
	tr.enroll(t)
	return tr
}

// enroll enrolls the TPM's EK for Machine a, which must be the first of the manifests.
func (tr *trial) enroll(t *testing.T) {
	t.Helper()
	ek := tr.tpm.ekHash(t)
	tr.manifests = strings.Replace(machineA, "name: a,",
		"name: a, annotations: {"+v1alpha1.AnnotationEKSHA256+": \""+hex.EncodeToString(ek[:])+"\"},", 1)
}
