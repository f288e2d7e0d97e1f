// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"testing"

	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
)

// pairs are the EKs and AKs of nodes.
var pairs = []struct{ ek, ak string }{
	{"ecc-p256", agentAK},
	{"rsa-2048", agentAK},
	{"rsa-2048", "RSA-2048 RSASSA SHA-256"},
	{"ecc-p384", agentAK},
}

func (c *conversation) title() string {
	return "EK=" + c.challenge.EK.Describe() + "/AK=" + c.challenge.AK.Describe()
}

// forEachPair runs a benchmark on valid evidence of each pair.
func forEachPair(b *testing.B, run func(b *testing.B, c *conversation)) {
	for _, p := range pairs {
		d := simulate(b)
		for pcr := range 8 {
			d.extend(pcr)
		}
		ek, ak := d.primary(tpm.TPMRHEndorsement, ekTemplates[p.ek]), d.primary(tpm.TPMRHEndorsement, akTemplates[p.ak])
		c := d.converse(ek, ak, tpm.TPMAlgSHA256, quotedPCRs, "bench")
		d.stop()
		b.Run(c.title(), func(b *testing.B) {
			b.ReportAllocs()
			run(b, c)
		})
	}
}

// BenchmarkAppraisal measures everything that this package does for one node with an enrolled EK:
// it parses both keys, creates one credential and verifies one quote.
func BenchmarkAppraisal(b *testing.B) {
	forEachPair(b, func(b *testing.B, c *conversation) {
		secret := make([]byte, 32)
		for b.Loop() {
			ek, err := tpm2.ParseEK(c.ek.public)
			if err != nil {
				b.Fatal(err)
			}
			ak, err := tpm2.ParseAK(c.ak.public)
			if err != nil {
				b.Fatal(err)
			}
			if _, _, err := tpm2.MakeCredential(rand.Reader, ek, ak.Name(), secret); err != nil {
				b.Fatal(err)
			}
			if _, err := c.verify(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkUnavoidableCrypto measures the cryptography that every implementation of the protocol
// needs: one signature verification, one encrypted or agreed seed, and 2 KiB of HMAC for the
// derivations, digests and proofs. BenchmarkAppraisal divided by it is the overhead.
func BenchmarkUnavoidableCrypto(b *testing.B) {
	forEachPair(b, func(b *testing.B, c *conversation) {
		digest := sha256.Sum256(c.evidence.Quote)
		verify := signatureOnly(b, c, digest[:])
		seed := seedOnly(b, c.challenge.EK)
		block := make([]byte, 2048)
		for b.Loop() {
			verify()
			seed()
			mac := hmac.New(sha256.New, digest[:])
			mac.Write(block)
			mac.Sum(nil)
		}
	})
}

func signatureOnly(b *testing.B, c *conversation, digest []byte) func() {
	sig, err := tpm.Unmarshal[tpm.TPMTSignature](c.evidence.Signature)
	if err != nil {
		b.Fatal(err)
	}
	switch key := c.challenge.AK.PublicKey().(type) {
	case *rsa.PublicKey:
		raw, err := sig.Signature.RSASSA()
		if err != nil {
			b.Fatal(err)
		}
		return func() {
			if err := rsa.VerifyPKCS1v15(key, crypto.SHA256, digest, raw.Sig.Buffer); err != nil {
				b.Fatal(err)
			}
		}
	case *ecdsa.PublicKey:
		// Another signature by another key costs the same, and is already in DER.
		own, err := ecdsa.GenerateKey(key.Curve, rand.Reader)
		if err != nil {
			b.Fatal(err)
		}
		der, err := ecdsa.SignASN1(rand.Reader, own, digest)
		if err != nil {
			b.Fatal(err)
		}
		return func() {
			if !ecdsa.VerifyASN1(&own.PublicKey, digest, der) {
				b.Fatal("not verified")
			}
		}
	}
	b.Fatal("unknown key")
	return nil
}

func seedOnly(b *testing.B, ek *tpm2.EK) func() {
	if key, ok := ek.PublicKey().(*rsa.PublicKey); ok {
		seed := make([]byte, 32)
		return func() {
			if _, err := rsa.EncryptOAEP(sha256.New(), rand.Reader, key, seed, []byte("IDENTITY\x00")); err != nil {
				b.Fatal(err)
			}
		}
	}
	var peer *ecdh.PublicKey
	peer, err := ek.PublicKey().(*ecdsa.PublicKey).ECDH()
	if err != nil {
		b.Fatal(err)
	}
	return func() {
		ephemeral, err := peer.Curve().GenerateKey(rand.Reader)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := ephemeral.ECDH(peer); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerifyQuote(b *testing.B) {
	forEachPair(b, func(b *testing.B, c *conversation) {
		for b.Loop() {
			if _, err := c.verify(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkMakeCredential(b *testing.B) {
	for _, file := range []string{"ek-rsa2048.pub", "ek-p256.pub", "ek-p384.pub"} {
		ek := mustEK(b, capture(b, file))
		name, secret := mustAK(b, capture(b, "ak-p256.pub")).Name(), make([]byte, 32)
		b.Run(ek.Describe(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := tpm2.MakeCredential(rand.Reader, ek, name, secret); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, file := range []string{"ek-rsa2048.pub", "ek-p256.pub", "ek-p384.pub"} {
		public := capture(b, file)
		b.Run(file, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tpm2.ParseEK(public); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	public := capture(b, "ak-p256.pub")
	b.Run("ak-p256.pub", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := tpm2.ParseAK(public); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkVerifyEKCertificate(b *testing.B) {
	roots := captureRoots(b)
	for _, name := range []string{"ek-rsa2048", "ek-p384"} {
		ek := mustEK(b, capture(b, name+".pub"))
		chain := [][]byte{capture(b, name+".der"), capture(b, "issuer.der")}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tpm2.VerifyEKCertificate(chain, ek, roots, captureTime); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAKCertificate measures an AK's certificate: those of the clouds, and the worst that a
// node with its own TPM can send.
func BenchmarkAKCertificate(b *testing.B) {
	endorser := tpm2.NewAKCertificateEndorser(tpm2.DefaultAKRoots())
	for _, name := range []string{"gce-ak", "azure-ak"} {
		b.Run(name, func(b *testing.B) {
			cert := published(b, name)
			id := tpm2.Identity{AK: akOf(b, cert.PublicKey), AKCertificates: [][]byte{cert.Raw}}
			for b.Loop() {
				if _, err := endorser.Endorse(b.Context(), id, today); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("seven candidates of one name that lead nowhere", func(b *testing.B) {
		key, err := rsa.GenerateKey(rand.Reader, 4096)
		if err != nil {
			b.Fatal(err)
		}
		p := newPlatform(b)
		p.intermediate = authorityWithKey(b, "candidate", key, &key.PublicKey, nil, nil)
		chain := p.issue(b, nil)
		for range 6 {
			chain = append(chain, authorityWithKey(b, "candidate", key, &key.PublicKey, nil, nil).cert.Raw)
		}
		for b.Loop() {
			if _, err := endorser.Endorse(b.Context(), tpm2.Identity{AK: p.ak, AKCertificates: chain}, today); err == nil {
				b.Fatal("accepted")
			}
		}
	})
}
