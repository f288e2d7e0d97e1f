// SPDX-License-Identifier: Apache-2.0

package azureattested_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
)

// issuer is an authority of the test, below itself or another one.
type issuer struct {
	t    *testing.T
	cert *x509.Certificate
	key  *rsa.PrivateKey
}

func (i issuer) issue(serial int64, from, until time.Time, key *rsa.PublicKey, ca bool) *x509.Certificate {
	i.t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "metadata.azure.com"},
		DNSNames: []string{"metadata.azure.com"}, NotBefore: from, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ca {
		c.Subject.CommonName, c.DNSNames, c.ExtKeyUsage = fmt.Sprint("authority ", serial), nil, nil
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	}
	parent := i.cert
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key, i.key)
	if err != nil {
		i.t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		i.t.Fatal(err)
	}
	return made
}

// A cached chain is trusted as long as each certificate in it, and not before the signer's begins.
func TestAttack_T15_ACachedChainEndsWithItsShortestPart(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	hours := func(n int) time.Time { return now.Add(time.Duration(n) * time.Hour) }
	key := attacker(t)
	for name, c := range map[string]struct{ root, intermediate, leaf int }{
		"the root":         {2, 9, 9},
		"the intermediate": {9, 2, 9},
		"the signer":       {9, 9, 2},
	} {
		t.Run(name, func(t *testing.T) {
			root := issuer{t, nil, key}.issue(1, hours(-9), hours(c.root), &key.PublicKey, true)
			intermediate := issuer{t, root, key}.issue(2, hours(-9), hours(c.intermediate), &key.PublicKey, true)
			leaf := issuer{t, intermediate, key}.issue(3, hours(-3), hours(c.leaf), &key.PublicKey, false)
			roots, intermediates := pool(root), pool(intermediate)
			v := &azureattested.Verifier{Names: []string{"metadata.azure.com"},
				Roots: func() (*x509.CertPool, *x509.CertPool) { return roots, intermediates }}
			raw, err := azure.Sign([]byte("content"), key, leaf, leaf.Raw)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range []struct {
				when time.Time
				want bool
			}{{now, true}, {hours(2), true}, {hours(2).Add(time.Second), false}, {hours(1), true},
				{hours(-3), true}, {hours(-3).Add(-time.Second), false}, {now, true}} {
				content, err := v.Signed(raw, at.when)
				if at.want && (err != nil || string(content) != "content") {
					t.Errorf("at %s: %q, %v", at.when.Sub(now), content, err)
				}
				if !at.want {
					denied(t, err, reason.DocumentUntrusted)
				}
			}
		})
	}
}

// The authorities that come with a document are used for that document only.
func TestAttack_T15_AReceivedAuthorityIsNotKept(t *testing.T) {
	w := newSetup(t)
	roots, intermediates := pool(w.cloud.Root()), x509.NewCertPool()
	w.verifier.Roots = func() (*x509.CertPool, *x509.CertPool) { return roots, intermediates }
	w.document.Certificates = [][]byte{w.cloud.Intermediate().Raw}
	w.passes()
	if !intermediates.Equal(x509.NewCertPool()) || !roots.Equal(pool(w.cloud.Root())) {
		t.Error("the configured pools have changed")
	}
}

func TestCheckKey_Bounds(t *testing.T) {
	ofRSA := func(bits uint) any {
		n := new(big.Int).Lsh(big.NewInt(1), bits-1)
		return &rsa.PublicKey{N: n.Add(n, big.NewInt(1)), E: 65537}
	}
	onCurve := func(c elliptic.Curve) any { return &ecdsa.PublicKey{Curve: c} }
	for name, c := range map[string]struct {
		key any
		ok  bool
	}{
		"RSA-2047": {ofRSA(2047), false},
		"RSA-2048": {ofRSA(2048), true},
		"RSA-4096": {ofRSA(4096), true},
		"RSA-4097": {ofRSA(4097), false},
		"P-224":    {onCurve(elliptic.P224()), false},
		"P-256":    {onCurve(elliptic.P256()), true},
		"P-384":    {onCurve(elliptic.P384()), true},
		"P-521":    {onCurve(elliptic.P521()), false},
		"Ed25519":  {ed25519.PublicKey{}, false},
	} {
		if err := azureattested.CheckKey(&x509.Certificate{PublicKey: c.key}); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
