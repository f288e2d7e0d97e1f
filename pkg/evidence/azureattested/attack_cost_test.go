// SPDX-License-Identifier: Apache-2.0

package azureattested_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
)

// maze creates the worst case for path building: authorities of one name that certify each other,
// below a name of the genuine cloud, and leaves below them that all have the issuer and the serial
// number of the signer.
func maze(t *testing.T, w *setup, curve elliptic.Curve, authorities int,
	leafKeys ...crypto.PublicKey) (cas, leaves [][]byte) {
	t.Helper()
	made := func(c, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) []byte {
		c.NotBefore, c.NotAfter = w.now.Add(-time.Hour), w.now.Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, c, parent, public, signer)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	parent := &x509.Certificate{Subject: w.cloud.Intermediate().Subject, RawSubject: w.cloud.Intermediate().RawSubject}
	keys := make([]*ecdsa.PrivateKey, max(authorities, 1))
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(curve, rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	for i := range authorities {
		cas = append(cas, made(&x509.Certificate{
			SerialNumber: big.NewInt(int64(100 + i)), Subject: parent.Subject, IsCA: true, BasicConstraintsValid: true,
			KeyUsage: x509.KeyUsageCertSign,
		}, parent, &keys[i].PublicKey, keys[(i+1)%authorities]))
	}
	leaf, _ := w.cloud.Leaf()
	for _, key := range leafKeys {
		leaves = append(leaves, made(&x509.Certificate{
			SerialNumber: leaf.SerialNumber, Subject: leaf.Subject, DNSNames: leaf.DNSNames,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: leaf.ExtKeyUsage,
		}, parent, key, keys[0]))
	}
	return cas, leaves
}

// Before anything is proven, a document costs a limited number of signature checks. None of them
// uses a slow key, and none of the attacker's certificates is checked against another one of the
// attacker's.
func TestAttack_T16_CertificatesThatCertifyOneAnother(t *testing.T) {
	slow, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	own := &attacker(t).PublicKey
	for name, test := range map[string]struct {
		curve            elliptic.Curve
		authorities      int
		leaves           []crypto.PublicKey
		want             reason.Code // zero: the genuine chain is found
		signers, reached int
		genuine          bool // the genuine certificates are included, too
	}{
		"no other certificates": {genuine: true, signers: 1, reached: 1},
		"fourteen signers and ten authorities, all slow": {elliptic.P521(), 10,
			slices.Repeat([]crypto.PublicKey{&slow.PublicKey}, 14), reason.DocumentInvalid, 0, 0, false},
		"a signer and ten authorities, all slow": {elliptic.P521(), 10, []crypto.PublicKey{&slow.PublicKey},
			reason.DocumentInvalid, 0, 0, false},
		"a signer with RSA, slow authorities": {elliptic.P521(), 10, []crypto.PublicKey{own}, reason.DocumentUntrusted, 1,
			0, false},
		"two signers with RSA, eight authorities": {elliptic.P384(), 8, []crypto.PublicKey{own, own},
			reason.DocumentUntrusted, 2, 8, false},
		"three signers":    {elliptic.P384(), 0, []crypto.PublicKey{own, own, own}, reason.DocumentInvalid, 0, 0, false},
		"nine authorities": {elliptic.P384(), 9, []crypto.PublicKey{own}, reason.DocumentInvalid, 0, 0, false},
		"a signer and seven, with the genuine ones": {elliptic.P384(), 7, []crypto.PublicKey{own}, reason.DocumentInvalid,
			2, 8, true},
		"ten slow authorities with the genuine ones": {elliptic.P521(), 10, nil, 0, 1, 1, true},
		"seven authorities with the genuine ones":    {elliptic.P384(), 7, nil, 0, 1, 8, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSetup(t)
			if test.curve == nil {
				test.curve = elliptic.P256()
			}
			cas, leaves := maze(t, w, test.curve, test.authorities, test.leaves...)
			leaf, key := w.cloud.Leaf()
			if test.want != 0 {
				key = attacker(t)
			}
			bag := slices.Concat(cas, leaves)
			if test.genuine {
				bag = append(bag, leaf.Raw, w.cloud.Intermediate().Raw)
			}
			in := min(len(bag), 16)
			raw, err := azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), key, leaf, bag[:in]...)
			if err != nil {
				t.Fatal(err)
			}
			w.document.Raw, w.document.Certificates = raw, bag[in:]
			_, err = w.verify()
			if test.want != 0 {
				denied(t, err, test.want)
			} else if err != nil {
				t.Fatal(err)
			}
			signers, authorities, pool, err := w.verifier.Usable(raw, bag[in:], w.now)
			if len(signers) != test.signers || len(authorities) != test.reached {
				t.Fatalf("%d signers and %d authorities are looked at (%v)", len(signers), len(authorities), err)
			}
			_, configured := w.verifier.Roots()
			if err == nil && !pool.Equal(configured) {
				t.Fatal("the attacker's certificates take part in building chains")
			}
		})
	}
}

// For an old document, no certificate is verified.
func TestAttack_T16_OneDocumentSentRepeatedly(t *testing.T) {
	w := newSetup(t)
	chains, roots := 0, w.verifier.Roots
	w.verifier.Roots = func() (*x509.CertPool, *x509.CertPool) { chains++; return roots() }
	w.passes()
	if chains != 1 {
		t.Fatalf("the anchors were asked for %d times", chains)
	}
	w.binding.Transcript[0]++
	for range 100 {
		_, err := w.verify()
		denied(t, err, reason.DocumentNotFresh)
	}
	if chains != 1 {
		t.Fatal("certificates were looked at")
	}
}

// Received authorities are used if they chain to a root, in any order, even if one of them depends
// on another.
func TestReceivedAuthorities(t *testing.T) {
	w := newSetup(t)
	roots := pool(w.cloud.Root())
	w.verifier.Roots = func() (*x509.CertPool, *x509.CertPool) { return roots, nil }
	w.document.Certificates = [][]byte{w.cloud.Root().Raw, w.cloud.Intermediate().Raw}
	for range 2 {
		w.passes()
		slices.Reverse(w.document.Certificates)
	}
	// Usable sorts them by their bytes, so the serial number decides which of them is first.
	now, key := w.now, attacker(t)
	for _, serials := range [][2]int64{{2, 3}, {3, 2}} {
		root := issuer{t, nil, key}.issue(1, now.Add(-time.Hour), now.Add(time.Hour), &key.PublicKey, true)
		upper := issuer{t, root, key}.issue(serials[0], now.Add(-time.Hour), now.Add(time.Hour), &key.PublicKey, true)
		lower := issuer{t, upper, key}.issue(serials[1], now.Add(-time.Hour), now.Add(time.Hour), &key.PublicKey, true)
		leaf := issuer{t, lower, key}.issue(4, now.Add(-time.Hour), now.Add(time.Hour), &key.PublicKey, false)
		raw, err := azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), key, leaf, leaf.Raw,
			lower.Raw, upper.Raw)
		if err != nil {
			t.Fatal(err)
		}
		below := newSetup(t)
		anchors := pool(root)
		below.verifier.Roots = func() (*x509.CertPool, *x509.CertPool) { return anchors, nil }
		below.document.Raw = raw
		below.passes()
	}
	// A received root is not a trusted root.
	none := x509.NewCertPool()
	w.verifier.Roots = func() (*x509.CertPool, *x509.CertPool) { return none, nil }
	_, err := w.verify()
	denied(t, err, reason.DocumentUntrusted)
}

// The chain of a known signer is not verified again, so its document needs no intermediate.
func TestAKnownSignerNeedsNoChain(t *testing.T) {
	w := newSetup(t)
	roots := pool(w.cloud.Root())
	w.verifier.Roots = func() (*x509.CertPool, *x509.CertPool) { return roots, nil }
	_, err := w.verify()
	denied(t, err, reason.DocumentUntrusted)
	w.document.Certificates = [][]byte{w.cloud.Intermediate().Raw}
	w.passes()
	w.document.Certificates = nil
	w.passes()
}

// The denial does not depend on the order of the certificates. It concerns the certificate that
// signed.
func TestDenialConcernsTheSigningCertificate(t *testing.T) {
	w := newSetup(t)
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, signer := maze(t, w, elliptic.P256(), 0, &attacker(t).PublicKey)
	_, beside := maze(t, w, elliptic.P256(), 0, &other.PublicKey)
	leaf, _ := w.cloud.Leaf()
	named := forge(t, &other.PublicKey, w.cloud.Intermediate(), func(c *x509.Certificate) {
		c.SerialNumber, c.DNSNames = leaf.SerialNumber, []string{"beside.example"}
	})
	var messages []string
	for _, bag := range [][][]byte{{signer[0], named.Raw}, {named.Raw, signer[0]}, {{0x30, 0}, named.Raw, signer[0]}} {
		raw, err := azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), attacker(t), leaf, bag...)
		if err != nil {
			t.Fatal(err)
		}
		w.document.Raw = raw
		_, err = w.verify()
		denied(t, err, reason.DocumentUntrusted)
		messages = append(messages, err.Error())
	}
	if messages[0] != messages[1] || messages[0] != messages[2] || strings.Contains(messages[0], "beside.example") {
		t.Fatalf("%q", messages)
	}
	// No certificate made the signature, so no authority is missing.
	raw, err := azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), attacker(t), leaf, named.Raw,
		beside[0])
	if err != nil {
		t.Fatal(err)
	}
	w.document.Raw = raw
	_, err = w.verify()
	denied(t, err, reason.DocumentInvalid)
}

// An unknown authority is a temporary denial, until the administrator adds it.
func TestVerify_DeniesAnUnknownAuthorityTemporarily(t *testing.T) {
	w := newSetup(t)
	w.passes()
	roots, none := pool(w.cloud.Root()), x509.NewCertPool()
	w.verifier.Roots = func() (*x509.CertPool, *x509.CertPool) { return roots, none }
	_, err := w.verify()
	denied(t, err, reason.DocumentUntrusted)
	if !reason.From(err).Code.Info().Temporary {
		t.Fatal("final")
	}
	if !strings.Contains(err.Error(), w.cloud.Intermediate().Subject.CommonName) {
		t.Fatalf("the authority is not named: %v", err)
	}
}
