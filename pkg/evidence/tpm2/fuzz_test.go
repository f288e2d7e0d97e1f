// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tpm "github.com/google/go-tpm/tpm2"
)

// The fuzz targets call the parsers directly, because VerifyQuote parses nothing before the
// activation is proven. go-tpm must read and write every accepted input in the same way, so that no
// two inputs have the same meaning.

func seed(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "swtpm-0.7.1", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func FuzzPublic(f *testing.F) {
	for _, name := range []string{"ek-rsa2048.pub", "ek-p256.pub", "ek-p384.pub", "ak-p256.pub"} {
		f.Add(seed(f, name))
		f.Add(append(seed(f, name), 0))
		f.Add(seed(f, name)[:40])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ek, ekErr := ParseEK(b)
		ak, akErr := ParseAK(b)
		if ekErr != nil && akErr != nil {
			return
		}
		if ekErr == nil && akErr == nil {
			t.Fatal("one key is both an EK and an AK")
		}
		public, err := tpm.Unmarshal[tpm.TPMTPublic](b)
		if err != nil {
			t.Fatalf("accepted, but go-tpm returns %v", err)
		}
		if !bytes.Equal(tpm.Marshal(*public), b) {
			t.Fatal("accepted, but go-tpm would write it in another way")
		}
		if ek != nil {
			if _, _, err := MakeCredential(nil, ek, []byte("name"), make([]byte, 32)); err != nil {
				t.Fatalf("no credential for an accepted EK: %v", err)
			}
			return
		}
		name, err := tpm.ObjectName(public)
		if err != nil || !bytes.Equal(name.Buffer, ak.Name()) {
			t.Fatalf("Name %x, go-tpm's is %x, %v", ak.Name(), name.Buffer, err)
		}
	})
}

func FuzzAttestation(f *testing.F) {
	quote := seed(f, "quote.attest")
	f.Add(quote)
	f.Add(append(bytes.Clone(quote), 0))
	f.Add(quote[:len(quote)-1])
	many := bytes.Clone(quote)
	copy(many[len(many)-44:], []byte{0xFF, 0xFF, 0xFF, 0xFF})
	f.Add(many)
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAttestation(b)
		if err != nil {
			return
		}
		_ = describe(a.selections...)
		att, err := tpm.Unmarshal[tpm.TPMSAttest](b)
		if err != nil {
			t.Fatalf("accepted, but go-tpm returns %v", err)
		}
		if !bytes.Equal(tpm.Marshal(*att), b) {
			t.Fatal("accepted, but go-tpm would write it in another way")
		}
		if !bytes.Equal(att.ExtraData.Buffer, a.extraData) || !bytes.Equal(att.QualifiedSigner.Buffer, a.qualifiedSigner) {
			t.Fatal("read differently from go-tpm")
		}
	})
}

func FuzzSignature(f *testing.F) {
	sig := seed(f, "quote.sig")
	f.Add(sig)
	f.Add(append(bytes.Clone(sig), 0))
	f.Add([]byte{0x00, 0x10})
	f.Add(append([]byte{0x00, 0x14, 0x00, 0x0B, 0x01, 0x00}, make([]byte, 256)...))
	f.Add(append([]byte{0x00, 0x16, 0x00, 0x0B, 0x01, 0x00}, make([]byte, 256)...))
	ak, err := ParseAK(seed(f, "ak-p256.pub"))
	if err != nil {
		f.Fatal(err)
	}
	message := seed(f, "quote.attest")
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSignature(b)
		if err != nil {
			return
		}
		parsed, err := tpm.Unmarshal[tpm.TPMTSignature](b)
		if err != nil {
			t.Fatalf("accepted, but go-tpm returns %v", err)
		}
		if !bytes.Equal(tpm.Marshal(*parsed), b) {
			t.Fatal("accepted, but go-tpm would write it in another way")
		}
		if err := ak.verify(append(bytes.Clone(message), 0), s); err == nil {
			t.Fatal("a signature over something that was never signed")
		}
	})
}

func FuzzEKCertificate(f *testing.F) {
	issuer := seed(f, "issuer.der")
	root, err := x509.ParseCertificate(seed(f, "root.der"))
	if err != nil {
		f.Fatal(err)
	}
	roots := Roots{Anchors: x509.NewCertPool()}
	roots.Anchors.AddCert(root)
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	eks := map[string]*EK{}
	for _, name := range []string{"ek-rsa2048", "ek-p384"} {
		if eks[name], err = ParseEK(seed(f, name+".pub")); err != nil {
			f.Fatal(err)
		}
		f.Add(seed(f, name+".der"), issuer)
		f.Add(seed(f, name+".der"), seed(f, "root.der"))
	}
	f.Fuzz(func(t *testing.T, leaf, intermediate []byte) {
		for name, ek := range eks {
			cert, err := VerifyEKCertificate([][]byte{leaf, intermediate}, ek, roots, now)
			if err == nil && (cert.NotAfter.Before(now) || cert.Manufacturer == "") {
				t.Fatalf("%s: %+v", name, cert)
			}
		}
	})
}

func FuzzGCEInstance(f *testing.F) {
	// The extension of a certificate that Google issued; see testdata/akcert.
	genuine := []byte("\x30\x59\x0c\x0dus-central1-a\x02\x06\x00\xe7\xaf\x73\x5e\x9c\x0c\x08core-eso\x02\x08\x5a\x8c\x62\x35\xb8\x97\xb1\x85\x0c\x0ainstance-1" +
		"\xa0\x20\x30\x1e\xa0\x03\x02\x01\x00\xa1\x03\x01\x01\xff\xa2\x03\x01\x01\xff\xa3\x03\x01\x01\x00\xa4\x03\x01\x01\x00\xa5\x03\x01\x01\x00")
	if g, err := parseGCEInstance(genuine); err != nil || !g.production ||
		g.providerID() != "gce://core-eso/us-central1-a/instance-1" {
		f.Fatalf("%+v, %v", g, err)
	}
	f.Add(genuine)
	f.Add(append(bytes.Clone(genuine), 0))
	f.Add(genuine[:40])
	f.Add(bytes.Replace(genuine, []byte{0x01, 0x01, 0xff}, []byte{0x01, 0x01, 0x01}, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := parseGCEInstance(b)
		if err != nil {
			return
		}
		if strings.Count(g.providerID(), "/") != 4 || g.id == 0 {
			t.Fatalf("accepted: %+v", g)
		}
		// encoding/asn1, which skips unknown elements, reads the same name.
		var other struct {
			Zone          string `asn1:"utf8"`
			ProjectNumber *big.Int
			ProjectID     string `asn1:"utf8"`
			InstanceID    *big.Int
			Name          string `asn1:"utf8"`
		}
		if _, err := asn1.Unmarshal(b, &other); err != nil {
			t.Fatalf("accepted, but encoding/asn1 returns %v", err)
		}
		if other.Zone != g.zone || other.ProjectID != g.projectID || other.Name != g.name ||
			other.InstanceID.Uint64() != g.id {
			t.Fatalf("%+v is not %+v", g, other)
		}
	})
}
