// SPDX-License-Identifier: Apache-2.0

package anchors

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type ca struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func ecKey(t testing.TB) crypto.Signer {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// issue creates a CA certificate that is valid for one year; with changes it. Without an issuer it
// is a root.
func issue(t testing.TB, issuer *ca, name string, key crypto.Signer, with func(*x509.Certificate)) ca {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: start, NotAfter: start.AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, SubjectKeyId: []byte(name),
	}
	if with != nil {
		with(template)
	}
	parent, signer := template, key
	if issuer != nil {
		parent, signer = issuer.cert, issuer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return ca{cert, key}
}

func encode(c ca) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.cert.Raw}))
}

func TestParse(t *testing.T) {
	root := issue(t, nil, "Root", ecKey(t), nil)
	middle := issue(t, &root, "Middle", ecKey(t), nil)
	bundle := "# Example Semiconductor, EK root\n# https://pki.example.org/root.cer, fetched 2026-11-20\n" + encode(root) +
		"\nissued by it\n" + encode(middle)
	all, err := Parse("ek-roots/example.pem", []byte(bundle))
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	if a := all[0]; !a.Root || a.Line != 3 ||
		a.Provenance != "Example Semiconductor, EK root\nhttps://pki.example.org/root.cer, fetched 2026-11-20" {
		t.Errorf("root: %+v", a)
	}
	lines := 2 + strings.Count(encode(root), "\n") + 2 + 1
	if a := all[1]; a.Root || a.Line != lines || a.Provenance != "issued by it" ||
		a.String() != "CN=Middle (ek-roots/example.pem:"+strconv.Itoa(lines)+")" {
		t.Errorf("intermediate: %s", a)
	}

	set := NewSet(all, all)
	leaf := issue(t, &middle, "Leaf", ecKey(t), func(c *x509.Certificate) { c.IsCA = false })
	if _, err := leaf.cert.Verify(x509.VerifyOptions{Roots: set.Roots(), Intermediates: set.Intermediates(),
		CurrentTime: start, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		t.Errorf("a leaf under the set: %v", err)
	}
	if set.Len() != 2 || len(set.All()) != 2 {
		t.Errorf("the set: %d", set.Len())
	}
	only := NewSet(all[1:])
	if _, err := leaf.cert.Verify(x509.VerifyOptions{Roots: only.Roots(), Intermediates: only.Intermediates(),
		CurrentTime: start, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
		t.Error("an intermediate by itself was trusted")
	}
}

func TestExpiry(t *testing.T) {
	end := func(years int) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.NotAfter = start.AddDate(years, 0, 0) }
	}
	var bundle string
	for i, name := range []string{"one", "three", "two"} {
		bundle += encode(issue(t, nil, name, ecKey(t), end([]int{1, 3, 2}[i])))
	}
	all, err := Parse("f", []byte(bundle))
	if err != nil {
		t.Fatal(err)
	}
	set := NewSet(all)
	for _, c := range []struct {
		now  time.Time
		next int // years; 0 means none
	}{{start, 1}, {start.AddDate(1, 0, 0), 1}, {start.AddDate(1, 0, 30), 2}, {start.AddDate(2, 6, 0), 3},
		{start.AddDate(3, 0, 29), 3}, {start.AddDate(9, 0, 0), 0}} {
		next, ok := set.NotAfter(c.now)
		if ok != (c.next > 0) || ok && !next.Equal(start.AddDate(c.next, 0, 0)) {
			t.Errorf("at %s: next %s", c.now, next)
		}
	}
	if _, ok := NewSet().NotAfter(start); ok {
		t.Error("an empty set has an end")
	}
}

func TestParse_ReportsTheFault(t *testing.T) {
	root := issue(t, nil, "Root", ecKey(t), nil)
	good := encode(root)
	rsaKey := func(bits int) crypto.Signer {
		k, err := rsa.GenerateKey(rand.Reader, bits)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	_, edKey, _ := ed25519.GenerateKey(rand.Reader)
	damaged := bytes.Clone(root.cert.Raw)
	damaged[len(damaged)-1] ^= 1
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	for name, c := range map[string]struct {
		raw  string
		line int
		want string
	}{
		"an empty file": {"", 0, "no certificate in it"},
		"text":          {"hello\n", 0, "no certificate in it"},
		"DER":           {string(root.cert.Raw), 0, "the file is DER; PEM: openssl x509 -inform der"},
		"a private key": {good + block("EC PRIVATE KEY", []byte{1}), 1 + strings.Count(good, "\n"),
			"remove the private key"},
		"a request": {block("CERTIFICATE REQUEST", []byte{1}), 1,
			`a block of type "CERTIFICATE REQUEST"`},
		"a truncated block":                  {"# a\n" + good[:len(good)/2], 2, "truncated or damaged"},
		"a truncated block, then a good one": {good[:len(good)/2] + "\n" + good, 1, "truncated or damaged"},
		"a block that is not base64":         {strings.Replace(good, "MII", "M!!", 1), 1, "truncated or damaged"},
		"a block that is not a certificate":  {block("CERTIFICATE", []byte("x")), 1, "the certificate does not parse"},
		"bytes after the certificate": {block("CERTIFICATE", append(bytes.Clone(root.cert.Raw), 0)),
			1, "the certificate does not parse"},
		"a broken signature": {block("CERTIFICATE", damaged), 1, "its own signature does not verify"},
		"an EK certificate": {encode(issue(t, &root, "EK", ecKey(t), func(c *x509.Certificate) { c.IsCA = false })), 1,
			"not a CA's certificate; the root of the TPM's manufacturer; to trust one single TPM, enroll its EK"},
		"a CA that may not sign": {encode(issue(t, nil, "X", ecKey(t), func(c *x509.Certificate) {
			c.KeyUsage = x509.KeyUsageCRLSign
		})), 1, "its key usage does not allow signing certificates"},
		"a small RSA key":  {encode(issue(t, nil, "X", rsaKey(1024), nil)), 1, "an RSA key of 1024 bits; 2048 to 4096"},
		"an Ed25519 key":   {encode(issue(t, nil, "X", edKey, nil)), 1, "a key of type Ed25519"},
		"a file too large": {strings.Repeat("#", MaxBundle+1), 0, "at most 1048576"},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := Parse("f.pem", []byte(c.raw))
			var at *Error
			if all != nil || !errors.As(err, &at) {
				t.Fatalf("%v, %v", all, err)
			}
			if at.Line != c.line || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "f.pem:") {
				t.Errorf("%q on line %d, expected %q on line %d", err, at.Line, c.want, c.line)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	good := encode(issue(f, nil, "Root", ecKey(f), nil))
	f.Add([]byte(good))
	f.Add([]byte("# text\n" + good + good[:40]))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Add([]byte("-----BEGIN -----BEGIN A-----\nAAAA\n-----END A-----\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		all, err := Parse("f", raw)
		if (err == nil) != (len(all) > 0) {
			t.Errorf("%d anchors, %v", len(all), err)
		}
		NewSet(all)
	})
}
