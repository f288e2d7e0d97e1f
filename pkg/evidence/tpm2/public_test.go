// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"bytes"
	"crypto/sha256"
	"testing"

	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

func TestEKsThatDifferFromTheDefaultTemplatesAreDenied(t *testing.T) {
	valid := softwareEK(t)
	if _, err := tpm2.ParseEK(tpm.Marshal(valid)); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	parameters := func(change func(*tpm.TPMSECCParms)) func(*tpm.TPMTPublic) {
		return func(p *tpm.TPMTPublic) {
			parms, err := p.Parameters.ECCDetail()
			if err != nil {
				t.Fatal(err)
			}
			changed := *parms
			change(&changed)
			p.Parameters = tpm.NewTPMUPublicParms(tpm.TPMAlgECC, &changed)
		}
	}
	for name, change := range map[string]func(*tpm.TPMTPublic){
		"not restricted":          func(p *tpm.TPMTPublic) { p.ObjectAttributes.Restricted = false },
		"not fixed to its TPM":    func(p *tpm.TPMTPublic) { p.ObjectAttributes.FixedTPM = false },
		"not fixed to its parent": func(p *tpm.TPMTPublic) { p.ObjectAttributes.FixedParent = false },
		"imported":                func(p *tpm.TPMTPublic) { p.ObjectAttributes.SensitiveDataOrigin = false },
		"does not decrypt":        func(p *tpm.TPMTPublic) { p.ObjectAttributes.Decrypt = false },
		"signs":                   func(p *tpm.TPMTPublic) { p.ObjectAttributes.SignEncrypt = true },
		"name algorithm of another key": func(p *tpm.TPMTPublic) {
			p.NameAlg = tpm.TPMAlgSHA384
			p.AuthPolicy.Buffer = make([]byte, 48)
		},
		"AES-256 with P-256": parameters(func(p *tpm.TPMSECCParms) { p.Symmetric = aesCFB(256) }),
		"no symmetric algorithm": parameters(func(p *tpm.TPMSECCParms) {
			p.Symmetric = tpm.TPMTSymDefObject{Algorithm: tpm.TPMAlgNull}
		}),
		"a signing scheme":               parameters(func(p *tpm.TPMSECCParms) { p.Scheme = ecdsaScheme(tpm.TPMAlgSHA256) }),
		"P-384 with SHA-256 and AES-128": parameters(func(p *tpm.TPMSECCParms) { p.CurveID = tpm.TPMECCNistP384 }),
	} {
		t.Run(name, func(t *testing.T) {
			changed := valid
			change(&changed)
			_, err := tpm2.ParseEK(tpm.Marshal(changed))
			denied(t, err, reason.EKUnacceptable)
		})
	}
	t.Run("trailing bytes", func(t *testing.T) {
		_, err := tpm2.ParseEK(append(tpm.Marshal(valid), 0))
		denied(t, err, reason.EKUnacceptable)
	})
	t.Run("an AK in its place, and it in an AK's", func(t *testing.T) {
		_, err := tpm2.ParseEK(newForger(t).akPublic)
		denied(t, err, reason.EKUnacceptable)
		_, err = tpm2.ParseAK(tpm.Marshal(valid))
		denied(t, err, reason.AKUnacceptable)
	})
	t.Run("empty", func(t *testing.T) {
		_, err := tpm2.ParseEK(nil)
		denied(t, err, reason.EKUnacceptable)
	})
}

func TestBothRangesOfEKTemplatesAreAccepted(t *testing.T) {
	high := tpm.RSAEKTemplate
	high.ObjectAttributes.UserWithAuth = true
	high.Unique = rsaPublic(2048, 0, nil).Unique
	low := tpm.RSAEKTemplate
	low.Unique = high.Unique
	a, err := tpm2.ParseEK(tpm.Marshal(low))
	if err != nil {
		t.Fatal(err)
	}
	b, err := tpm2.ParseEK(tpm.Marshal(high))
	if err != nil {
		t.Fatal(err)
	}
	if a.SPKIHash() != b.SPKIHash() {
		t.Error("the same key has two identities")
	}
}

func TestLargeRSAEKs(t *testing.T) {
	for bits, kind := range map[int]string{3072: "rsa-3072", 4096: "rsa-4096"} {
		pub := tpm.RSAEKTemplate
		pub.NameAlg = tpm.TPMAlgSHA384
		pub.AuthPolicy.Buffer = policyBSHA384
		pub.Parameters = tpm.NewTPMUPublicParms(tpm.TPMAlgRSA,
			&tpm.TPMSRSAParms{Symmetric: aesCFB(256), KeyBits: tpm.TPMKeyBits(bits)})
		pub.Unique = rsaPublic(bits, 0, nil).Unique
		ek, err := tpm2.ParseEK(tpm.Marshal(pub))
		if err != nil {
			t.Errorf("%d: %v", bits, err)
		} else if ek.Describe() != kind {
			t.Errorf("%d: described as %s", bits, ek.Describe())
		}
	}
}

// Attack T16, the part of this package: sizes are checked before any work.
func TestAttack_T16_OversizedStructures(t *testing.T) {
	f := newForger(t)
	if _, err := f.forgery(t, nil).verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	huge := make([]byte, 200<<20)
	_, err := tpm2.ParseEK(huge)
	denied(t, err, reason.EKUnacceptable)
	_, err = tpm2.ParseAK(huge)
	denied(t, err, reason.AKUnacceptable)
	c := f.forgery(t, nil)
	c.evidence.Quote = huge
	_, err = c.verify()
	denied(t, err, reason.QuoteInvalid)
	c = f.forgery(t, nil)
	c.evidence.Signature = huge
	_, err = c.verify()
	denied(t, err, reason.QuoteInvalid)
	c = f.forgery(t, nil)
	c.evidence.PCRValues = make([][]byte, 1<<20)
	_, err = c.verify()
	denied(t, err, reason.PCRDigest)
	c = f.forgery(t, func(s *statement) { s.banks = 0xFFFFFFFF })
	_, err = c.verify()
	denied(t, err, reason.QuoteInvalid)
}

func ecdsaScheme(hash tpm.TPMAlgID) tpm.TPMTECCScheme {
	return tpm.TPMTECCScheme{Scheme: tpm.TPMAlgECDSA,
		Details: tpm.NewTPMUAsymScheme(tpm.TPMAlgECDSA, &tpm.TPMSSigSchemeECDSA{HashAlg: hash})}
}

func aesCFB(bits tpm.TPMKeyBits) tpm.TPMTSymDefObject {
	return tpm.TPMTSymDefObject{
		Algorithm: tpm.TPMAlgAES,
		KeyBits:   tpm.NewTPMUSymKeyBits(tpm.TPMAlgAES, bits),
		Mode:      tpm.NewTPMUSymMode(tpm.TPMAlgAES, tpm.TPMAlgCFB),
	}
}

func kdf() tpm.TPMTKDFScheme {
	return tpm.TPMTKDFScheme{Scheme: tpm.TPMAlgKDF1SP80056A,
		Details: tpm.NewTPMUKDFScheme(tpm.TPMAlgKDF1SP80056A, &tpm.TPMSKDFSchemeKDF1SP80056A{HashAlg: tpm.TPMAlgSHA256})}
}

func keyedHash() tpm.TPMTPublic {
	return tpm.TPMTPublic{
		Type: tpm.TPMAlgKeyedHash, NameAlg: tpm.TPMAlgSHA256, ObjectAttributes: akAttributes(),
		Parameters: tpm.NewTPMUPublicParms(tpm.TPMAlgKeyedHash, &tpm.TPMSKeyedHashParms{}),
		Unique:     tpm.NewTPMUPublicID(tpm.TPMAlgKeyedHash, &tpm.TPM2BDigest{Buffer: make([]byte, 32)}),
	}
}

func symmetricCipher() tpm.TPMTPublic {
	return tpm.TPMTPublic{
		Type: tpm.TPMAlgSymCipher, NameAlg: tpm.TPMAlgSHA256, ObjectAttributes: akAttributes(),
		Parameters: tpm.NewTPMUPublicParms(tpm.TPMAlgSymCipher, &tpm.TPMSSymCipherParms{Sym: aesCFB(128)}),
		Unique:     tpm.NewTPMUPublicID(tpm.TPMAlgSymCipher, &tpm.TPM2BDigest{Buffer: make([]byte, 32)}),
	}
}

// soundModulus returns an odd number of that many bits; the tests do not need its factors.
func soundModulus(bits int) []byte {
	n := make([]byte, 0, bits/8)
	for i := byte(0); len(n) < bits/8; i++ {
		sum := sha256.Sum256([]byte{i})
		n = append(n, sum[:]...)
	}
	n[0] |= 0xC0
	n[len(n)-1] |= 1
	return n
}

func rsaPublic(bits int, exponent uint32, change func([]byte) []byte) tpm.TPMTPublic {
	pub := rsaAK(tpm.TPMAlgRSASSA)
	parms, err := pub.Parameters.RSADetail()
	if err != nil {
		panic(err)
	}
	parms.KeyBits, parms.Exponent = tpm.TPMKeyBits(bits), exponent
	n := soundModulus(bits)
	if change != nil {
		n = change(n)
	}
	pub.Unique = tpm.NewTPMUPublicID(tpm.TPMAlgRSA, &tpm.TPM2BPublicKeyRSA{Buffer: n})
	return pub
}

// swapScheme replaces the first scheme identifier, which follows the symmetric algorithm
// TPM_ALG_NULL in an AK's public area.
func swapScheme(public []byte, from, to byte) []byte {
	return bytes.Replace(public, []byte{0x00, 0x10, 0x00, from}, []byte{0x00, 0x10, 0x00, to}, 1)
}
