// SPDX-License-Identifier: Apache-2.0

package nodecert_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/nodecert"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// signed returns a certificate for a request, as a cluster signs it.
func signed(t *testing.T, der []byte, change func(*x509.Certificate)) []byte {
	t.Helper()
	csr, err := x509.ParseCertificateRequest(der)
	ok(t, err)
	ok(t, csr.CheckSignature())
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cluster"}}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: csr.Subject, NotAfter: time.Now().Add(time.Hour)}
	if change != nil {
		change(leaf)
	}
	out, err := x509.CreateCertificate(rand.Reader, leaf, ca, csr.PublicKey, key)
	ok(t, err)
	return out
}

func TestPair_IsWhatAKubeletReads(t *testing.T) {
	key, err := nodecert.New()
	ok(t, err)
	der, err := key.Request("worker-0")
	ok(t, err)
	again, err := key.Request("worker-0")
	ok(t, err)
	if !bytes.Equal(der, again) {
		t.Error("the machine made two requests")
	}
	csr, err := x509.ParseCertificateRequest(der)
	ok(t, err)
	sum := sha256.Sum256(csr.RawSubjectPublicKeyInfo)
	if !bytes.Equal(sum[:], key.SPKISHA256()) || csr.Subject.String() != "CN=system:node:worker-0,O=system:nodes" {
		t.Errorf("%s, key %x", csr.Subject, sum)
	}
	pair, err := key.Pair("worker-0", [][]byte{signed(t, der, nil)})
	ok(t, err)
	// The kubelet reads both from the same file.
	if _, err := tls.X509KeyPair(pair.Expose(), pair.Expose()); err != nil {
		t.Error(err)
	}
}

func TestAttack_T73_ACertificateForAnotherKeyOrName(t *testing.T) {
	key, err := nodecert.New()
	ok(t, err)
	der, err := key.Request("worker-0")
	ok(t, err)
	other, err := nodecert.New()
	ok(t, err)
	foreign, err := other.Request("worker-0")
	ok(t, err)
	for name, chain := range map[string][][]byte{
		"none":        nil,
		"garbage":     {[]byte("certificate")},
		"another key": {signed(t, foreign, nil)},
		"another name": {signed(t, der, func(c *x509.Certificate) {
			c.Subject.CommonName = "system:node:worker-1"
		})},
		"garbage behind it": {signed(t, der, nil), []byte("intermediate")},
	} {
		if pair, err := key.Pair("worker-0", chain); err == nil || !pair.Empty() {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestChoose_NeverGuesses(t *testing.T) {
	for _, c := range []struct {
		names, hostname, want string
	}{
		{"worker-0", "", "worker-0"},
		{"worker-0", "localhost", "worker-0"},
		{"w.zone.c.p.internal w.c.p.internal w", "W", "w"},
		{"w.zone.c.p.internal w.c.p.internal w", "localhost", ""},
		{"w.zone.c.p.internal w", "", ""},
		{"", "worker-0", ""},
	} {
		got, found := nodecert.Choose(strings.Fields(c.names), c.hostname)
		if got != c.want || found != (c.want != "") {
			t.Errorf("%v with host name %q: %q", c.names, c.hostname, got)
		}
	}
}
