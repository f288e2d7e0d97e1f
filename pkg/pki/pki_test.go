// SPDX-License-Identifier: Apache-2.0

package pki_test

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
)

func TestServe_CertificateIsValidOnlyForItsHosts(t *testing.T) {
	now := time.Now()
	ca, err := pki.NewCA("test CA", now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Serve([]string{"api-int.example.com", "192.0.2.1", "2001:db8::1"}, now)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pki.ParseServing([][]byte{leaf.Certificate, leaf.Key.Expose()})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca.Certificate) {
		t.Fatal("no CA")
	}
	for host, want := range map[string]bool{"api-int.example.com": true, "192.0.2.1": true, "2001:db8::1": true,
		"example.com": false, "192.0.2.2": false} {
		_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: now})
		if (err == nil) != want {
			t.Errorf("%s: %v", host, err)
		}
	}
	block, _ := pem.Decode(ca.Certificate)
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if cert.Leaf.NotAfter.After(root.NotAfter) || cert.Leaf.IsCA || !root.MaxPathLenZero {
		t.Errorf("leaf until %v, CA until %v, leaf is a CA: %v", cert.Leaf.NotAfter, root.NotAfter, cert.Leaf.IsCA)
	}
	if printed := fmt.Sprintf("%v %+v", leaf, leaf); strings.Contains(printed, "PRIVATE") {
		t.Error("the key prints")
	}
}

func TestParseServing_RejectsAnIncompletePair(t *testing.T) {
	now := time.Now()
	a, err := pki.NewCA("a", now)
	if err != nil {
		t.Fatal(err)
	}
	b, err := pki.NewCA("b", now)
	if err != nil {
		t.Fatal(err)
	}
	for name, contents := range map[string][][]byte{
		"another key": {a.Certificate, b.Key.Expose()}, "no key": {a.Certificate, nil}, "one file": {a.Certificate},
	} {
		if _, err := pki.ParseServing(contents); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
