// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"math/big"
	"testing"

	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

func TestAttack_T20_AKThatIsNotAnAttestationKey(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	honest := softwareAK(&key.PublicKey)
	if _, err := tpm2.ParseAK(tpm.Marshal(honest)); err != nil {
		t.Fatalf("the valid case: %v", err)
	}

	attribute := func(change func(*tpm.TPMAObject)) func(*tpm.TPMTPublic) {
		return func(p *tpm.TPMTPublic) { change(&p.ObjectAttributes) }
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
	point := func(x, y []byte) func(*tpm.TPMTPublic) {
		return func(p *tpm.TPMTPublic) {
			p.Unique = tpm.NewTPMUPublicID(tpm.TPMAlgECC,
				&tpm.TPMSECCPoint{X: tpm.TPM2BECCParameter{Buffer: x}, Y: tpm.TPM2BECCParameter{Buffer: y}})
		}
	}
	xy, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	x, y := xy[1:33], xy[33:]

	for name, change := range map[string]func(*tpm.TPMTPublic){
		"not restricted: signs anything":          attribute(func(a *tpm.TPMAObject) { a.Restricted = false }),
		"not fixed to its TPM: can be duplicated": attribute(func(a *tpm.TPMAObject) { a.FixedTPM = false }),
		"not fixed to its parent":                 attribute(func(a *tpm.TPMAObject) { a.FixedParent = false }),
		"imported: not created in the TPM":        attribute(func(a *tpm.TPMAObject) { a.SensitiveDataOrigin = false }),
		"does not sign":                           attribute(func(a *tpm.TPMAObject) { a.SignEncrypt = false }),
		"decrypts":                                attribute(func(a *tpm.TPMAObject) { a.Decrypt = true }),
		"decrypts instead": attribute(func(a *tpm.TPMAObject) {
			a.Decrypt, a.SignEncrypt = true, false
		}),
		"with encrypted duplication":    attribute(func(a *tpm.TPMAObject) { a.EncryptedDuplication = true }),
		"cleared at every start":        attribute(func(a *tpm.TPMAObject) { a.STClear = true }),
		"signs X.509 certificates":      attribute(func(a *tpm.TPMAObject) { a.X509Sign = true }),
		"name algorithm SHA-1":          func(p *tpm.TPMTPublic) { p.NameAlg = tpm.TPMAlgSHA1 },
		"name algorithm SHA-512":        func(p *tpm.TPMTPublic) { p.NameAlg = tpm.TPMAlgSHA512 },
		"no name algorithm":             func(p *tpm.TPMTPublic) { p.NameAlg = tpm.TPMAlgNull },
		"policy digest of a wrong size": func(p *tpm.TPMTPublic) { p.AuthPolicy.Buffer = make([]byte, 20) },
		"NULL scheme": parameters(func(p *tpm.TPMSECCParms) {
			p.Scheme = tpm.TPMTECCScheme{Scheme: tpm.TPMAlgNull}
		}),
		"signatures with SHA-1": parameters(func(p *tpm.TPMSECCParms) {
			p.Scheme = ecdsaScheme(tpm.TPMAlgSHA1)
		}),
		"a storage key's symmetric algorithm": parameters(func(p *tpm.TPMSECCParms) { p.Symmetric = aesCFB(128) }),
		"curve P-224":                         parameters(func(p *tpm.TPMSECCParms) { p.CurveID = tpm.TPMECCNistP224 }),
		"curve BN P-256":                      parameters(func(p *tpm.TPMSECCParms) { p.CurveID = tpm.TPMECCBNP256 }),
		"point of another curve":              parameters(func(p *tpm.TPMSECCParms) { p.CurveID = tpm.TPMECCNistP384 }),
		"key derivation scheme":               parameters(func(p *tpm.TPMSECCParms) { p.KDF = kdf() }),
		"point off its curve":                 point(x, x),
		"point at infinity":                   point(nil, nil),
		"point with x beyond the field":       point(bytes.Repeat([]byte{0xFF}, 32), y),
		"coordinate with a byte too many":     point(append([]byte{0}, x...), y),
		"keyed hash object":                   func(p *tpm.TPMTPublic) { *p = keyedHash() },
		"symmetric object":                    func(p *tpm.TPMTPublic) { *p = symmetricCipher() },
		"RSA-1024":                            func(p *tpm.TPMTPublic) { *p = rsaPublic(1024, 65537, nil) },
		"RSA-16384": func(p *tpm.TPMTPublic) {
			*p = rsaPublic(4096, 65537, func(n []byte) []byte { return make([]byte, 2048) })
		},
		"RSA with exponent 3": func(p *tpm.TPMTPublic) { *p = rsaPublic(2048, 3, nil) },
		"RSA with exponent 1": func(p *tpm.TPMTPublic) { *p = rsaPublic(2048, 1, nil) },
		"RSA with an even modulus": func(p *tpm.TPMTPublic) {
			*p = rsaPublic(2048, 0, func(n []byte) []byte { n[255] &^= 1; return n })
		},
		"RSA with a modulus one bit short": func(p *tpm.TPMTPublic) {
			*p = rsaPublic(2048, 0, func(n []byte) []byte { n[0] &= 0x7F; return n })
		},
		"RSA with a modulus of another size": func(p *tpm.TPMTPublic) {
			*p = rsaPublic(2048, 0, func(n []byte) []byte { return n[:128] })
		},
		"RSA-3072 that states 2048": func(p *tpm.TPMTPublic) {
			*p = rsaPublic(2048, 0, func(n []byte) []byte { return append(n, n[:128]...) })
		},
		"RSA with the ROCA weakness": func(p *tpm.TPMTPublic) {
			*p = rsaPublic(2048, 0, func([]byte) []byte { return rocaModulus(t) })
		},
		"only a type (an empty public area)": func(p *tpm.TPMTPublic) {
			*p = tpm.TPMTPublic{Type: tpm.TPMAlgECC, NameAlg: tpm.TPMAlgSHA256}
		},
	} {
		t.Run(name, func(t *testing.T) {
			changed := honest
			change(&changed)
			_, err := tpm2.ParseAK(tpm.Marshal(changed))
			denied(t, err, reason.AKUnacceptable)
		})
	}
	t.Run("trailing bytes after the public area", func(t *testing.T) {
		_, err := tpm2.ParseAK(append(tpm.Marshal(honest), 0))
		denied(t, err, reason.AKUnacceptable)
	})
	t.Run("every prefix of the public area", func(t *testing.T) {
		whole := tpm.Marshal(honest)
		for n := range whole {
			_, err := tpm2.ParseAK(whole[:n])
			denied(t, err, reason.AKUnacceptable)
		}
	})
	t.Run("key derivation scheme without its hash", func(t *testing.T) {
		curveAndKDF := []byte{0x00, 0x03, 0x00, 0x10}
		_, err := tpm2.ParseAK(bytes.Replace(tpm.Marshal(honest), curveAndKDF, []byte{0x00, 0x03, 0x00, 0x20}, 1))
		denied(t, err, reason.AKUnacceptable)
	})
	t.Run("ECDSA on an RSA key, RSASSA, ECDAA or SM2 on an ECC key", func(t *testing.T) {
		for _, b := range [][]byte{
			swapScheme(tpm.Marshal(rsaPublic(2048, 0, nil)), 0x14, 0x18),
			swapScheme(tpm.Marshal(honest), 0x18, 0x14),
			swapScheme(tpm.Marshal(honest), 0x18, 0x1A),
			swapScheme(tpm.Marshal(honest), 0x18, 0x1B),
		} {
			_, err := tpm2.ParseAK(b)
			denied(t, err, reason.AKUnacceptable)
		}
	})
}

// The TPM rejects what the parser cannot detect: a well-formed public area without its private part
// in that TPM.
func TestAttack_T20_SoftwareAK(t *testing.T) {
	d, c := honest(t, "ecc-p256", agentAK)
	if _, err := c.verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	d.another()
	ek := d.primary(tpm.TPMRHEndorsement, tpm.ECCEKTemplate)
	genuine := d.primary(tpm.TPMRHEndorsement, akTemplates[agentAK])
	parsedEK, err := tpm2.ParseEK(ek.public)
	if err != nil {
		t.Fatal(err)
	}
	f := newForger(t)
	parsedAK, err := tpm2.ParseAK(f.akPublic)
	if err != nil {
		t.Fatalf("its form is that of a genuine one: %v", err)
	}
	blob, encrypted, err := tpm2.MakeCredential(nil, parsedEK, parsedAK.Name(), make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.activate(ek, genuine, blob, encrypted); !errors.Is(err, tpm.TPMRCIntegrity) {
		t.Errorf("with the TPM's own AK: %v, want TPM_RC_INTEGRITY", err)
	}
	loaded, err := tpm.LoadExternal{InPublic: tpm.BytesAs2B[tpm.TPMTPublic](f.akPublic),
		Hierarchy: tpm.TPMRHNull}.Execute(d.tpm)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.activate(ek, &object{loaded.ObjectHandle, loaded.Name, f.akPublic}, blob, encrypted); !errors.Is(err,
		tpm.TPMRCAuthUnavailable) {
		t.Errorf("with the public part loaded: %v, want TPM_RC_AUTH_UNAVAILABLE", err)
	}
	// So the node can sign the transcript, but does not have the secret.
	forged := f.forgery(t, nil)
	if _, err := forged.verify(); err != nil {
		t.Fatalf("with the secret the forgery would pass: %v", err)
	}
	forged.evidence.Activation = make([]byte, 32)
	_, err = forged.verify()
	denied(t, err, reason.ActivationInvalid)
}

func TestAttack_T20_AKOfAnotherHierarchy(t *testing.T) {
	d := simulate(t)
	ek := d.primary(tpm.TPMRHEndorsement, tpm.ECCEKTemplate)
	ak := d.primary(tpm.TPMRHEndorsement, akTemplates[agentAK])
	if _, err := d.converse(ek, ak, tpm.TPMAlgSHA256, []int{11}, "endorsement").verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	d.flush(ak)
	for name, hierarchy := range map[string]tpm.TPMHandle{"owner": tpm.TPMRHOwner, "null": tpm.TPMRHNull,
		"platform": tpm.TPMRHPlatform} {
		ak := d.primary(hierarchy, akTemplates[agentAK])
		_, err := d.converse(ek, ak, tpm.TPMAlgSHA256, []int{11}, name).verify()
		denied(t, err, reason.QuoteInvalid)
		d.flush(ak)
	}
}

func TestAttack_T21_KeysSwappedBetweenChallengeAndAttest(t *testing.T) {
	d, c := honest(t, "ecc-p256", agentAK)
	if _, err := c.verify(); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	other := d.primary(tpm.TPMRHEndorsement, akTemplates["P-384 ECDSA SHA-384"])
	attest, signature := d.quote(other, c.challenge.Transcript[:], selected(tpm.TPMAlgSHA256, quotedPCRs...))
	parsedEK, parsedOther := c.challenge.EK, mustAK(t, other.public)

	t.Run("a quote by another AK of the same TPM", func(t *testing.T) {
		swapped := c.clone()
		swapped.evidence.Quote, swapped.evidence.Signature = attest, signature
		_, err := swapped.verify()
		denied(t, err, reason.QuoteInvalid)
	})
	t.Run("a credential for one AK is not released for another", func(t *testing.T) {
		blob, encrypted, err := tpm2.MakeCredential(nil, parsedEK, c.challenge.AK.Name(), make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.activate(c.ek, other, blob, encrypted); !errors.Is(err, tpm.TPMRCIntegrity) {
			t.Errorf("%v, want TPM_RC_INTEGRITY", err)
		}
		if _, err := tpm2.ParseAK(other.public); err != nil || bytes.Equal(parsedOther.Name(), c.challenge.AK.Name()) {
			t.Errorf("the other AK is as good as the first: %v", err)
		}
	})
	t.Run("a credential for the EK of another TPM is not released", func(t *testing.T) {
		foreign := c.challenge.EK
		d.another()
		ek, ak := d.primary(tpm.TPMRHEndorsement, tpm.ECCEKTemplate), d.primary(tpm.TPMRHEndorsement, akTemplates[agentAK])
		blob, encrypted, err := tpm2.MakeCredential(nil, foreign, mustAK(t, ak.public).Name(), make([]byte, 32))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.activate(ek, ak, blob, encrypted); err == nil {
			t.Error("the secret was released")
		}
	})
}

func TestAttack_T35_ROCAWeakEK(t *testing.T) {
	pub := tpm.RSAEKTemplate
	set := func(n []byte) []byte {
		pub.Unique = tpm.NewTPMUPublicID(tpm.TPMAlgRSA, &tpm.TPM2BPublicKeyRSA{Buffer: n})
		return tpm.Marshal(pub)
	}
	if _, err := tpm2.ParseEK(set(soundModulus(2048))); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	for range 3 {
		_, err := tpm2.ParseEK(set(rocaModulus(t)))
		denied(t, err, reason.EKUnacceptable)
	}
}

// rocaModulus creates an RSA modulus like the flawed library (Nemec et al., CCS 2017, 2.1): p = k*M
// + (65537^a mod M), M the product of the first 126 primes for a modulus of 2048 bits.
func rocaModulus(t testing.TB) []byte {
	t.Helper()
	m := big.NewInt(1)
	for p, n := int64(2), 0; n < 126; p++ {
		if big.NewInt(p).ProbablyPrime(0) {
			m.Mul(m, big.NewInt(p))
			n++
		}
	}
	prime := func() *big.Int {
		low := new(big.Int).Lsh(big.NewInt(3), 1022) // both top bits: the product has 2048
		for {
			a, err := rand.Int(rand.Reader, m)
			if err != nil {
				t.Fatal(err)
			}
			k, err := rand.Int(rand.Reader, new(big.Int).Div(new(big.Int).Lsh(big.NewInt(1), 1022), m))
			if err != nil {
				t.Fatal(err)
			}
			p := new(big.Int).Div(low, m)
			p.Add(p, k).Add(p, big.NewInt(1)).Mul(p, m)
			p.Add(p, new(big.Int).Exp(big.NewInt(65537), a, m))
			if p.BitLen() == 1024 && p.ProbablyPrime(8) {
				return p
			}
		}
	}
	return new(big.Int).Mul(prime(), prime()).Bytes()
}

func mustAK(t testing.TB, public []byte) *tpm2.AK {
	t.Helper()
	ak, err := tpm2.ParseAK(public)
	if err != nil {
		t.Fatal(err)
	}
	return ak
}
