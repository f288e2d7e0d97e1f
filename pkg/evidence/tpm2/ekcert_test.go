// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

func TestAttack_T21_EKCertificateOfAnotherTPM(t *testing.T) {
	p := newPKI(t)
	chain := p.issue(t, nil)
	if _, err := p.verify(chain); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	for name, other := range map[string]*tpm2.EK{
		"another key of the same type": mustEK(t, tpm.Marshal(softwareEK(t))),
		"another type of key":          mustEK(t, capture(t, "ek-rsa2048.pub")),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tpm2.VerifyEKCertificate(chain, other, anchors(p.root.cert), today)
			denied(t, err, reason.EKCertificateInvalid)
		})
	}
	t.Run("the EK's certificate second, another's first", func(t *testing.T) {
		other := *p
		other.ek = mustEK(t, tpm.Marshal(softwareEK(t)))
		_, err := p.verify([][]byte{other.issue(t, nil)[0], chain[0], chain[1]})
		denied(t, err, reason.EKCertificateInvalid)
	})
}

func TestAttack_T34_DirectoryNameOnly(t *testing.T) {
	p := newPKI(t)
	chain := p.issue(t, nil)
	cert, err := p.verify(chain)
	if err != nil {
		t.Fatalf("must pass: %v", err)
	}
	if cert.Manufacturer != "id:494E5443" || cert.Model != "Model" || cert.Version != "id:00010002" ||
		cert.Subject != "" || cert.Issuer != "CN=intermediate" {
		t.Errorf("%+v", cert)
	}
	if cert.SHA256 != sha256.Sum256(chain[0]) {
		t.Error("the hash is not the certificate's")
	}
}

func TestAttack_T34_UnknownCriticalExtension(t *testing.T) {
	p := newPKI(t)
	extension := func(critical bool) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			c.ExtraExtensions = append(c.ExtraExtensions,
				pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Critical: critical, Value: []byte{5, 0}})
		}
	}
	if _, err := p.verify(p.issue(t, extension(false))); err != nil {
		t.Fatalf("the valid case, not critical: %v", err)
	}
	_, err := p.verify(p.issue(t, extension(true)))
	denied(t, err, reason.EKCertificateInvalid)

	t.Run("in the intermediate", func(t *testing.T) {
		p := *p
		p.intermediate = newAuthority(t, "intermediate", p.root, extension(true))
		_, err := p.verify(p.issue(t, nil))
		denied(t, err, reason.EKUntrusted)
	})
}

func TestAttack_T34_ExpiredCertificates(t *testing.T) {
	p := newPKI(t)
	t.Run("an intermediate that expired after the EK's issue is accepted", func(t *testing.T) {
		p := *p
		p.intermediate = newAuthority(t, "intermediate", p.root,
			func(c *x509.Certificate) { c.NotAfter = today.AddDate(-1, 0, 0) })
		if _, err := p.verify(p.issue(t, nil)); err != nil {
			t.Error(err)
		}
	})
	t.Run("an intermediate that was renewed after the EK's issue is accepted", func(t *testing.T) {
		p := *p
		p.intermediate = newAuthority(t, "intermediate", p.root,
			func(c *x509.Certificate) { c.NotBefore = today.AddDate(-1, 0, 0) })
		if _, err := p.verify(p.issue(t, nil)); err != nil {
			t.Error(err)
		}
	})
	t.Run("an intermediate that had expired before the EK's issue", func(t *testing.T) {
		p := *p
		p.intermediate = newAuthority(t, "intermediate", p.root,
			func(c *x509.Certificate) { c.NotAfter = today.AddDate(-3, 0, 0) })
		_, err := p.verify(p.issue(t, nil))
		denied(t, err, reason.EKUntrusted)
	})
	t.Run("an expired EK certificate", func(t *testing.T) {
		_, err := p.verify(p.issue(t, func(c *x509.Certificate) { c.NotAfter = today.AddDate(0, 0, -1) }))
		denied(t, err, reason.EKCertificateInvalid)
	})
	t.Run("an EK certificate of tomorrow", func(t *testing.T) {
		_, err := p.verify(p.issue(t, func(c *x509.Certificate) { c.NotBefore = today.AddDate(0, 0, 1) }))
		denied(t, err, reason.EKCertificateInvalid)
	})
	t.Run("an EK certificate of five minutes ahead is accepted, one of a second more is not", func(t *testing.T) {
		ahead := func(d time.Duration) error {
			_, err := p.verify(p.issue(t, func(c *x509.Certificate) { c.NotBefore = today.Add(d) }))
			return err
		}
		if err := ahead(5 * time.Minute); err != nil {
			t.Error(err)
		}
		denied(t, ahead(5*time.Minute+time.Second), reason.EKCertificateInvalid)
	})
}

func TestAttack_T34_SHA1Intermediate(t *testing.T) {
	p := newPKI(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p.root = authorityWithKey(t, "root", key, key.Public(), nil, nil)
	p.intermediate = newAuthority(t, "intermediate", p.root, nil)
	if _, err := p.verify(p.issue(t, nil)); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	p.intermediate = newAuthority(t, "intermediate", p.root,
		func(c *x509.Certificate) { c.SignatureAlgorithm = x509.SHA1WithRSA })
	chain := p.issue(t, nil)
	_, err = p.verify(chain)
	denied(t, err, reason.EKUntrusted)

	t.Run("it is accepted as a configured anchor", func(t *testing.T) {
		if _, err := tpm2.VerifyEKCertificate(chain, p.ek, anchors(p.intermediate.cert), today); err != nil {
			t.Error(err)
		}
	})
}

func TestAttack_T34_NegativeSerial(t *testing.T) {
	p := newPKI(t)
	chain := p.issue(t, nil)
	if _, err := p.verify(chain); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	for name, serial := range map[string][]byte{"negative": {0x02, 0x02, 0x92, 0x34}, "zero": {0x02, 0x02, 0x00, 0x00}} {
		t.Run(name, func(t *testing.T) {
			changed := bytes.Replace(chain[0], []byte{0x02, 0x02, 0x12, 0x34}, serial, 1)
			if bytes.Equal(changed, chain[0]) {
				t.Fatal("no serial number found")
			}
			_, err := p.verify([][]byte{changed, chain[1]})
			denied(t, err, reason.EKCertificateInvalid)
		})
	}
}

func TestAttack_T16_ChainsThatCostTooMuch(t *testing.T) {
	p := newPKI(t)
	chain := p.issue(t, nil)
	filled := func(n int) [][]byte {
		out := bytesOf(chain)
		for len(out) < n {
			out = append(out, chain[1])
		}
		return out
	}
	if _, err := p.verify(filled(tpm2.MaxChain)); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	for name, chain := range map[string][][]byte{
		"none":               nil,
		"one too many":       filled(tpm2.MaxChain + 1),
		"1000 certificates":  filled(1000),
		"200 MB certificate": {make([]byte, 200<<20)},
		"an empty one":       {{}},
		"garbage after it":   {append(bytes.Clone(chain[0]), 0xFF), chain[1]},
		"garbage in second":  {chain[0], {0x30, 0x80}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := p.verify(chain)
			denied(t, err, reason.EKCertificateInvalid)
		})
	}
	t.Run("a certificate that is good but for its size", func(t *testing.T) {
		_, err := p.verify(p.issue(t, func(c *x509.Certificate) {
			c.ExtraExtensions = append(c.ExtraExtensions,
				pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Value: make([]byte, tpm2.MaxCertificateSize)})
		}))
		denied(t, err, reason.EKCertificateInvalid)
	})
	for size, want := range map[int]string{8192: "certificate 2: x509: ",
		8193: "certificate 2 of 8193 bytes; at most 8192"} {
		_, err := p.verify([][]byte{chain[0], make([]byte, size)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ofBits := func(bits uint) crypto.PublicKey {
		n := new(big.Int).Lsh(big.NewInt(1), bits-1)
		return &rsa.PublicKey{N: n.Add(n, big.NewInt(1)), E: 65537}
	}
	for name, c := range map[string]struct {
		key  crypto.PublicKey
		want string // "": it is accepted
	}{
		"RSA-1024":  {ofBits(1024), "certificate 3: RSA key of 1024 bits; 2048 to 4096 are accepted"},
		"RSA-2047":  {ofBits(2047), "certificate 3: RSA key of 2047 bits; 2048 to 4096 are accepted"},
		"RSA-2048":  {ofBits(2048), ""},
		"RSA-4096":  {ofBits(4096), ""},
		"RSA-4097":  {ofBits(4097), "certificate 3: RSA key of 4097 bits; 2048 to 4096 are accepted"},
		"RSA-16384": {ofBits(16384), "certificate 3: RSA key of 16384 bits; 2048 to 4096 are accepted"},
		"P-224":     {p224.Public(), "certificate 3: key on P-224 is not accepted"},
		"Ed25519":   {make(ed25519.PublicKey, ed25519.PublicKeySize), "certificate 3: key of type ed25519.PublicKey"},
	} {
		t.Run("an intermediate with "+name, func(t *testing.T) {
			third := authorityWithKey(t, "intermediate", nil, c.key, p.root, nil)
			_, err := p.verify(append(bytesOf(chain), third.cert.Raw))
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			denied(t, err, reason.EKCertificateInvalid)
			if err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v does not contain %q", err, c.want)
			}
		})
	}
	t.Run("intermediates that all have one name are bounded work", func(t *testing.T) {
		var cross [][]byte
		for range tpm2.MaxChain - 1 {
			cross = append(cross, newAuthority(t, "intermediate", newAuthority(t, "intermediate", nil, nil), nil).cert.Raw)
		}
		_, err := p.verify(append([][]byte{chain[0]}, cross...))
		denied(t, err, reason.EKUntrusted)
	})
}

func TestEKCertificatesOutsideTheProfileAreDenied(t *testing.T) {
	p := newPKI(t)
	if _, err := p.verify(p.issue(t, nil)); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	for name, change := range map[string]func(*x509.Certificate){
		"a CA": func(c *x509.Certificate) {
			c.IsCA, c.KeyUsage = true, c.KeyUsage|x509.KeyUsageCertSign
		},
		"no basic constraints":       func(c *x509.Certificate) { c.BasicConstraintsValid = false },
		"no key usage":               func(c *x509.Certificate) { c.KeyUsage = 0 },
		"key usage of a signing key": func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature },
		"no subjectAltName":          func(c *x509.Certificate) { c.ExtraExtensions = nil },
		"a web server's subjectAltName": func(c *x509.Certificate) {
			c.ExtraExtensions, c.DNSNames = nil, []string{"tpm.example.com"}
		},
		"usages without the EK's": func(c *x509.Certificate) {
			c.UnknownExtKeyUsage, c.ExtKeyUsage = nil, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		},
		"the AK certificate's usage": func(c *x509.Certificate) {
			c.UnknownExtKeyUsage = []asn1.ObjectIdentifier{{2, 23, 133, 8, 3}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := p.verify(p.issue(t, change))
			denied(t, err, reason.EKCertificateInvalid)
		})
	}
	t.Run("no extended key usage at all, as in old certificates, is accepted", func(t *testing.T) {
		if _, err := p.verify(p.issue(t, func(c *x509.Certificate) { c.UnknownExtKeyUsage = nil })); err != nil {
			t.Error(err)
		}
	})
	t.Run("a key with RSAES-OAEP has a hint", func(t *testing.T) {
		p := *p
		p.ek = mustEK(t, capture(t, "ek-rsa2048.pub"))
		chain := p.issue(t, nil)
		if _, err := p.verify(chain); err != nil {
			t.Fatalf("the valid case: %v", err)
		}
		rsaEncryption := []byte{0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x01}
		oaep := bytes.Clone(rsaEncryption)
		oaep[len(oaep)-1] = 7
		_, err := p.verify([][]byte{bytes.Replace(chain[0], rsaEncryption, oaep, 1), chain[1]})
		denied(t, err, reason.EKCertificateInvalid)
		if err == nil || !strings.Contains(err.Error(), "enroll this TPM by the hash of its EK") {
			t.Errorf("no hint in %v", err)
		}
	})
}

func TestEKCertificatesChainToConfiguredRootsOnly(t *testing.T) {
	p := newPKI(t)
	chain := p.issue(t, nil)
	if _, err := p.verify(chain); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	stranger := newPKI(t)
	for name, x := range map[string]struct {
		chain [][]byte
		roots tpm2.Roots
	}{
		"no roots are not the system's":      {chain, tpm2.Roots{}},
		"an empty set of roots":              {chain, anchors()},
		"roots of another manufacturer":      {chain, anchors(stranger.root.cert)},
		"the chain brings its own root":      {append(bytesOf(chain), p.root.cert.Raw), anchors(stranger.root.cert)},
		"the intermediate is left out":       {chain[:1], anchors(p.root.cert)},
		"signed by another of the same name": {stranger.issueFor(t, p.ek), anchors(p.root.cert)},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tpm2.VerifyEKCertificate(x.chain, p.ek, x.roots, today)
			denied(t, err, reason.EKUntrusted)
		})
	}
	t.Run("without roots the error names the cause", func(t *testing.T) {
		_, err := tpm2.VerifyEKCertificate(chain, p.ek, tpm2.Roots{}, today)
		if err == nil || !strings.Contains(err.Error(), "no roots are configured") {
			t.Errorf("%v", err)
		}
	})
	t.Run("intermediates in any order, and from the configuration", func(t *testing.T) {
		second := newAuthority(t, "second", p.intermediate, nil)
		deep := pki{p.root, second, p.ek}
		leaf := deep.issue(t, nil)[0]
		if _, err := p.verify([][]byte{leaf, p.intermediate.cert.Raw, second.cert.Raw}); err != nil {
			t.Error(err)
		}
		roots := anchors(p.root.cert)
		roots.Intermediates = anchors(p.intermediate.cert).Anchors
		if _, err := tpm2.VerifyEKCertificate([][]byte{leaf, second.cert.Raw}, p.ek, roots, today); err != nil {
			t.Error(err)
		}
		// The certificates of one node must not complete another node's chain.
		_, err := tpm2.VerifyEKCertificate([][]byte{leaf}, p.ek, roots, today)
		denied(t, err, reason.EKUntrusted)
	})
	t.Run("an EK certificate issues nothing", func(t *testing.T) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := ekTemplate(t, p.ek)
		template.Subject, template.SubjectKeyId = pkix.Name{CommonName: "leaf"}, []byte("leaf")
		leaf := &authority{key, sign(t, template, p.intermediate, key.Public())}
		below := pki{p.root, leaf, p.ek}
		_, err = p.verify(append(below.issue(t, nil), p.intermediate.cert.Raw))
		denied(t, err, reason.EKUntrusted)
	})
}

// Keys on P-521 are a hundred times as slow as RSA. A node cannot cause the verification of such
// keys; a manufacturer with such a key must be configured.
func TestAttack_T16_SlowKeysInAChain(t *testing.T) {
	p := newPKI(t)
	slow := func(parent *authority) *authority {
		key, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return authorityWithKey(t, "intermediate", key, key.Public(), parent, nil)
	}
	chain := p.issue(t, nil)
	if _, err := p.verify(chain); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	for len(chain) < tpm2.MaxChain {
		chain = append(chain, slow(slow(nil)).cert.Raw)
	}
	if _, err := p.verify(chain); err != nil {
		t.Errorf("with a valid chain: %v", err)
	}
	below := *p
	below.intermediate = slow(p.root)
	chain = below.issue(t, nil)
	_, err := p.verify(chain)
	denied(t, err, reason.EKUntrusted) // not used, although the root certified it
	roots := anchors(p.root.cert)
	roots.Intermediates = anchors(below.intermediate.cert).Anchors
	for _, sent := range [][][]byte{chain, chain[:1]} {
		if _, err := tpm2.VerifyEKCertificate(sent, p.ek, roots, today); err != nil {
			t.Errorf("configured: %v", err)
		}
	}
	// The first certificate must be the TPM's own, and no accepted TPM has such a key.
	_, err = p.verify([][]byte{below.intermediate.cert.Raw, chain[0]})
	if denied(t, err, reason.EKCertificateInvalid); !strings.Contains(err.Error(), "P-521") {
		t.Error(err)
	}
}

func (p *pki) issueFor(t testing.TB, ek *tpm2.EK) [][]byte {
	t.Helper()
	other := *p
	other.ek = ek
	return other.issue(t, nil)
}

func TestManufacturerEndorser(t *testing.T) {
	p := newPKI(t)
	endorser := tpm2.ManufacturerEndorser{Roots: anchors(p.root.cert)}
	e, err := endorser.Endorse(t.Context(), tpm2.Identity{EK: p.ek, EKCertificates: p.issue(t, nil)}, today)
	if err != nil {
		t.Fatal(err)
	}
	if e.Kind != tpm2.Manufacturer || e.EKSHA256 != p.ek.SPKIHash() || e.Certificate == nil || e.ProviderID != "" {
		t.Errorf("%+v", e)
	}
	if _, err := endorser.Endorse(t.Context(), tpm2.Identity{EK: p.ek}, today); !errors.Is(err, tpm2.ErrNotMine) {
		t.Errorf("without a certificate: %v", err)
	}
	_, err = endorser.Endorse(t.Context(), tpm2.Identity{EK: p.ek, EKCertificates: newPKI(t).issue(t, nil)}, today)
	denied(t, err, reason.EKUntrusted)
}
