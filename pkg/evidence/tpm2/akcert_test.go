// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tpm "github.com/google/go-tpm/tpm2"

	trust "github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// published reads a certificate that a cloud issued; the text before it names the source.
func published(t testing.TB, name string) *x509.Certificate {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "akcert", name+".pem"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		t.Fatalf("%s holds no PEM block", name)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// akOf returns an AK of the form that both clouds certify, with the key of a certificate.
func akOf(t testing.TB, key crypto.PublicKey) *tpm2.AK {
	t.Helper()
	switch key := key.(type) {
	case *rsa.PublicKey:
		public := rsaAK(tpm.TPMAlgRSASSA)
		public.Unique = tpm.NewTPMUPublicID(tpm.TPMAlgRSA, &tpm.TPM2BPublicKeyRSA{Buffer: key.N.Bytes()})
		return mustAK(t, tpm.Marshal(public))
	case *ecdsa.PublicKey:
		return mustAK(t, tpm.Marshal(softwareAK(key)))
	}
	t.Fatalf("key of type %T", key)
	return nil
}

func TestPublishedAKCertificates(t *testing.T) {
	endorser := tpm2.NewAKCertificateEndorser(tpm2.DefaultAKRoots())
	for _, c := range []struct {
		name, providerID, instanceID string
	}{
		{"gce-ak", "gce://core-eso/us-central1-a/instance-1", "gcp:6524697943022743941"},
		{"gce-ak-2022", "gce://google.com:wuale-gcp-testing/us-central1-a/cs-debug", "gcp:5780156274199835632"},
		{"azure-ak", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cert := published(t, c.name)
			id := tpm2.Identity{EK: mustEK(t, capture(t, "ek-p256.pub")), AK: akOf(t, cert.PublicKey),
				AKCertificates: [][]byte{cert.Raw}}
			got, err := endorser.Endorse(t.Context(), id, today)
			if err != nil {
				t.Fatal(err)
			}
			want := tpm2.Endorsement{Kind: tpm2.AKCertificate, ProviderID: c.providerID, InstanceID: c.instanceID,
				AKSHA256: sha256.Sum256(cert.RawSubjectPublicKeyInfo)}
			if *got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
			// The same certificate with only the other cloud's roots.
			other := map[string]string{"gce-ak": "Microsoft", "gce-ak-2022": "Microsoft", "azure-ak": "Google"}[c.name]
			var roots []trust.Anchor
			for _, a := range tpm2.DefaultAKRoots() {
				if a.Root && strings.Contains(a.Certificate.Subject.String(), other) {
					roots = append(roots, a)
				}
			}
			_, err = tpm2.NewAKCertificateEndorser(roots).Endorse(t.Context(), id, today)
			denied(t, err, reason.DocumentUntrusted)
		})
	}
	for _, name := range []string{"gce-ek", "gce-ek-2022"} {
		t.Run("the EK certificate of the same machine is not an AK's: "+name, func(t *testing.T) {
			cert := published(t, name)
			_, err := endorser.Endorse(t.Context(),
				tpm2.Identity{AK: akOf(t, cert.PublicKey), AKCertificates: [][]byte{cert.Raw}}, today)
			denied(t, err, reason.EKCertificateInvalid)
		})
	}
}

// An anchor that is close to its end needs the administrator's attention and must not be part of a
// release.
func TestDefaultAKRootsAreValidFor180Days(t *testing.T) {
	all := tpm2.DefaultAKRoots()
	set := trust.NewSet(all)
	if len(all) != set.Len() || len(all) != 8 {
		t.Errorf("%d anchors, %d of them different", len(all), set.Len())
	}
	for _, a := range all {
		if a.Provenance == "" {
			t.Errorf("%s: where is it from?", a)
		}
		if left := time.Until(a.Certificate.NotAfter); left < 180*24*time.Hour {
			t.Errorf("%s ends in %d days", a, left/(24*time.Hour))
		}
		marked := strings.Contains(a.Provenance, tpm2.VouchesForGCE)
		google := a.Certificate.Subject.Organization != nil && a.Certificate.Subject.Organization[0] == "Google LLC"
		if marked != (google && a.Root) {
			t.Errorf("%s: vouches for instances of Compute Engine: %t", a, marked)
		}
		// Each intermediate is signed by one of the roots, or by a certificate below a root.
		if _, err := a.Certificate.Verify(x509.VerifyOptions{Roots: set.Roots(), Intermediates: set.Intermediates(),
			CurrentTime: today, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
}

// platform is a cloud with an authority for AKs, and one AK.
type platform struct {
	root, intermediate *authority
	key                *rsa.PrivateKey
	ak                 *tpm2.AK
}

func newPlatform(t testing.TB) *platform {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	root := newAuthority(t, "AK root", nil, nil)
	return &platform{root, newAuthority(t, "AK issuer", root, nil), key, akOf(t, &key.PublicKey)}
}

// endorser trusts the platform's root; gce allows the root to name instances.
func (p *platform) endorser(t testing.TB, gce bool) tpm2.AKCertificateEndorser {
	t.Helper()
	text := "A root of this test.\n"
	if gce {
		text += "# " + tpm2.VouchesForGCE + "\n"
	}
	all, err := trust.Parse("ak-roots/test.pem",
		append([]byte(text), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.root.cert.Raw})...))
	if err != nil {
		t.Fatal(err)
	}
	return tpm2.NewAKCertificateEndorser(all)
}

// issue returns the chain for the platform's AK, in Google's form, with one change.
func (p *platform) issue(t testing.TB, change func(*x509.Certificate)) [][]byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(0x77), Subject: pkix.Name{CommonName: "6524697943022743941"},
		NotBefore: today.AddDate(0, -1, 0), NotAfter: today.AddDate(1, 0, 0), BasicConstraintsValid: true,
		KeyUsage:        x509.KeyUsageDigitalSignature,
		ExtraExtensions: []pkix.Extension{gceExtension(t, nil)},
	}
	if change != nil {
		change(template)
	}
	return [][]byte{sign(t, template, p.intermediate, &p.key.PublicKey).Raw, p.intermediate.cert.Raw}
}

func (p *platform) endorse(t testing.TB, chain [][]byte) (*tpm2.Endorsement, error) {
	t.Helper()
	return p.endorser(t, true).Endorse(t.Context(), tpm2.Identity{AK: p.ak, AKCertificates: chain}, today)
}

func TestAKCertificates(t *testing.T) {
	p := newPlatform(t)
	aik := asn1.ObjectIdentifier{2, 23, 133, 8, 3}
	for _, c := range []struct {
		name   string
		change func(*x509.Certificate)
		want   reason.Code // 0: endorsed
	}{
		{"as Google issues it", nil, 0},
		{"with tcg-kp-AIKCertificate, as Microsoft issues it", func(c *x509.Certificate) {
			c.UnknownExtKeyUsage = []asn1.ObjectIdentifier{{1, 3, 6, 1, 4, 1, 311, 10, 3, 12}, aik}
		}, 0},
		{"for a server", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} },
			reason.EKCertificateInvalid},
		{"for an EK", func(c *x509.Certificate) { c.UnknownExtKeyUsage = []asn1.ObjectIdentifier{{2, 23, 133, 8, 1}} },
			reason.EKCertificateInvalid},
		{"whose key may only encrypt", func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment },
			reason.EKCertificateInvalid},
		{"without a key usage", func(c *x509.Certificate) { c.KeyUsage = 0 }, reason.EKCertificateInvalid},
		{"of an authority", func(c *x509.Certificate) { c.IsCA = true }, reason.EKCertificateInvalid},
		{"whose key may sign certificates", func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign; c.IsCA = true },
			reason.EKCertificateInvalid},
		{"whose key may sign certificates, although it is no authority's", func(c *x509.Certificate) {
			c.KeyUsage |= x509.KeyUsageCertSign
		}, reason.EKCertificateInvalid},
		{"that ended yesterday", func(c *x509.Certificate) { c.NotAfter = today.AddDate(0, 0, -1) },
			reason.EKCertificateInvalid},
		{"that begins in four minutes: clocks differ",
			func(c *x509.Certificate) { c.NotBefore = today.Add(4 * time.Minute) }, 0},
		{"that begins in an hour", func(c *x509.Certificate) { c.NotBefore = today.Add(time.Hour) },
			reason.EKCertificateInvalid},
		{"with an unknown critical extension", func(c *x509.Certificate) {
			c.ExtraExtensions = append(c.ExtraExtensions,
				pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3}, Critical: true, Value: []byte{5, 0}})
		}, reason.DocumentUntrusted},
	} {
		t.Run("a certificate "+c.name, func(t *testing.T) {
			e, err := p.endorse(t, p.issue(t, c.change))
			if c.want != 0 {
				denied(t, err, c.want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if e.EKSHA256 != ([32]byte{}) || e.AKSHA256 != p.ak.SPKIHash() ||
				e.ProviderID != "gce://project-1/europe-west3-b/worker-0" || e.InstanceID != "gcp:6524697943022743941" {
				t.Errorf("%+v", e)
			}
		})
	}
	t.Run("without a certificate the result is ErrNotMine", func(t *testing.T) {
		if _, err := p.endorse(t, nil); !errors.Is(err, tpm2.ErrNotMine) {
			t.Error(err)
		}
	})
	t.Run("without anchors nothing is trusted", func(t *testing.T) {
		for _, e := range []tpm2.AKCertificateEndorser{{}, tpm2.NewAKCertificateEndorser(nil)} {
			_, err := e.Endorse(t.Context(), tpm2.Identity{AK: p.ak, AKCertificates: p.issue(t, nil)}, today)
			denied(t, err, reason.DocumentUntrusted)
		}
	})
	t.Run("an intermediate is needed, from wherever", func(t *testing.T) {
		chain := p.issue(t, nil)
		_, err := p.endorse(t, chain[:1])
		denied(t, err, reason.DocumentUntrusted)
		e := p.endorser(t, true)
		e.Roots.Intermediates = anchors(p.intermediate.cert).Anchors
		if _, err := e.Endorse(t.Context(), tpm2.Identity{AK: p.ak, AKCertificates: chain[:1]}, today); err != nil {
			t.Error(err)
		}
	})
	t.Run("an AK on P-256", func(t *testing.T) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(p.issue(t, nil)[0])
		if err != nil {
			t.Fatal(err)
		}
		cert.ExtraExtensions = cert.Extensions
		chain := [][]byte{sign(t, cert, p.intermediate, &key.PublicKey).Raw, p.intermediate.cert.Raw}
		if _, err := p.endorser(t, true).Endorse(t.Context(),
			tpm2.Identity{AK: akOf(t, &key.PublicKey), AKCertificates: chain}, today); err != nil {
			t.Error(err)
		}
	})
}

func TestAttack_T21_AKCertificateOfAnotherAK(t *testing.T) {
	p, neighbor := newPlatform(t), newPlatform(t)
	chain := p.issue(t, nil)
	if _, err := p.endorse(t, chain); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	_, err := p.endorser(t, true).Endorse(t.Context(), tpm2.Identity{AK: neighbor.ak, AKCertificates: chain}, today)
	denied(t, err, reason.EKCertificateInvalid)
	// A certificate for the attacker's AK by the attacker's own authority, with the genuine
	// certificates as candidates.
	_, err = p.endorser(t, true).Endorse(t.Context(),
		tpm2.Identity{AK: neighbor.ak, AKCertificates: append(neighbor.issue(t, nil), chain...)}, today)
	denied(t, err, reason.DocumentUntrusted)
	// The attacker's own authority as a candidate for an intermediate, and even as a root.
	_, err = p.endorser(t, true).Endorse(t.Context(),
		tpm2.Identity{AK: neighbor.ak, AKCertificates: append(neighbor.issue(t, nil), neighbor.root.cert.Raw)}, today)
	denied(t, err, reason.DocumentUntrusted)
}

// An authority vouches only for its own cloud. Even the operator of one cloud's authority cannot
// name an instance of another cloud.
func TestAttack_T21_InstanceNamedByAnAuthorityOfAnotherCloud(t *testing.T) {
	p := newPlatform(t)
	id := tpm2.Identity{AK: p.ak, AKCertificates: p.issue(t, nil)}
	if _, err := p.endorser(t, true).Endorse(t.Context(), id, today); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	_, err := p.endorser(t, false).Endorse(t.Context(), id, today)
	denied(t, err, reason.DocumentUntrusted)

	// Without the extension the same authority may vouch for the key.
	id.AKCertificates = p.issue(t, func(c *x509.Certificate) { c.ExtraExtensions = nil })
	e, err := p.endorser(t, false).Endorse(t.Context(), id, today)
	if err != nil || e.ProviderID != "" || e.InstanceID != "" {
		t.Errorf("%+v, %v", e, err)
	}
	// The mark before an intermediate has no effect.
	all, err := trust.Parse("f", append([]byte("# "+tpm2.VouchesForGCE+"\n"),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.intermediate.cert.Raw})...))
	if err != nil {
		t.Fatal(err)
	}
	if e := tpm2.NewAKCertificateEndorser(all); len(e.GCE) != 0 {
		t.Error("an intermediate vouches for instances")
	}
}

func TestAttack_T16_AKCertificateChainsThatCostTooMuch(t *testing.T) {
	p := newPlatform(t)
	chain := p.issue(t, nil)
	if _, err := p.endorse(t, append(chain, chain[1], chain[1], chain[1], chain[1], chain[1], chain[1])); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	small := authorityWithKey(t, "small", weak, &weak.PublicKey, p.root, nil)
	for name, chain := range map[string][][]byte{
		"nine certificates": append(chain[:2:2], chain[1], chain[1], chain[1], chain[1], chain[1], chain[1],
			chain[1]),
		"a certificate of over 16 KiB": {chain[0], make([]byte, tpm2.MaxAKCertificateSize+1)},
		"bytes after the leaf":         {append(append([]byte{}, chain[0]...), 0), chain[1]},
		"a leaf that is padded":        {append(append([]byte{}, chain[0]...), make([]byte, 100)...), chain[1]},
		"no certificate":               {nil},
		"an RSA-1024 candidate":        {chain[0], chain[1], small.cert.Raw},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := p.endorse(t, chain)
			denied(t, err, reason.EKCertificateInvalid)
		})
	}
	for size, want := range map[int]string{16384: "x509: ", 16385: "certificate 2 of 16385 bytes; at most 16384"} {
		_, err := p.endorse(t, [][]byte{chain[0], make([]byte, size)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// No byte of a certificate can be changed, removed or repeated.
func TestAKCertificateIsNotMalleable(t *testing.T) {
	p := newPlatform(t)
	chain := p.issue(t, nil)
	leaf := chain[0]
	endorser := p.endorser(t, true)
	try := func(what string, at int, changed []byte) {
		if e, err := endorser.Endorse(t.Context(), tpm2.Identity{AK: p.ak, AKCertificates: [][]byte{changed, chain[1]}},
			today); err == nil {
			t.Errorf("%s at %d: %+v", what, at, e)
		}
	}
	for i := range leaf {
		flipped := append([]byte{}, leaf...)
		flipped[i] ^= 1 << (i % 8)
		try("a bit flipped", i, flipped)
		try("cut", i, leaf[:i])
		if i%16 == 0 {
			try("16 bytes taken out", i, append(append([]byte{}, leaf[:i]...), leaf[min(i+16, len(leaf)):]...))
		}
	}
	try("repeated", 0, append(append([]byte{}, leaf...), leaf...))
}
