// SPDX-License-Identifier: Apache-2.0

package azureattested_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
)

var attackerKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

func attacker(t testing.TB) *rsa.PrivateKey {
	t.Helper()
	key, err := attackerKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// forge creates a certificate of the attacker, signed by the attacker's key under the name of
// parent.
func forge(t testing.TB, key *rsa.PublicKey, parent *x509.Certificate,
	change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "metadata.azure.com"},
		DNSNames:  []string{"metadata.azure.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if change != nil {
		change(c)
	}
	if parent == nil {
		parent = c
	}
	signer := attacker(t)
	named := &x509.Certificate{Subject: parent.Subject, RawSubject: parent.RawSubject, PublicKey: signer.Public(),
		SubjectKeyId: parent.SubjectKeyId}
	der, err := x509.CreateCertificate(rand.Reader, c, named, key, signer)
	if err != nil {
		t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestAttack_T11_TheSignerIsNotTheCertificateInTheBag(t *testing.T) {
	newSetup(t).passes()
	for name, test := range map[string]struct {
		document func(w *setup, content []byte) ([]byte, error)
		want     reason.Code
	}{
		"the genuine certificate in the bag and named, the signature of another": {func(w *setup,
			content []byte) ([]byte, error) {
			leaf, _ := w.cloud.Leaf()
			return azure.Sign(content, attacker(t), leaf, leaf.Raw)
		}, reason.DocumentInvalid},
		"the genuine certificate first, the signer's behind it": {func(w *setup, content []byte) ([]byte, error) {
			leaf, _ := w.cloud.Leaf()
			own := forge(t, &attacker(t).PublicKey, nil, nil)
			return azure.Sign(content, attacker(t), own, leaf.Raw, own.Raw)
		}, reason.DocumentUntrusted},
		"the genuine certificate and another of its issuer and serial number": {func(w *setup,
			content []byte) ([]byte, error) {
			leaf, _ := w.cloud.Leaf()
			own := forge(t, &attacker(t).PublicKey, w.cloud.Intermediate(),
				func(c *x509.Certificate) { c.SerialNumber = leaf.SerialNumber })
			return azure.Sign(content, attacker(t), leaf, own.Raw, leaf.Raw)
		}, reason.DocumentInvalid},
		"only another of its issuer and serial number": {func(w *setup, content []byte) ([]byte, error) {
			leaf, _ := w.cloud.Leaf()
			own := forge(t, &attacker(t).PublicKey, w.cloud.Intermediate(), func(c *x509.Certificate) {
				c.SerialNumber = leaf.SerialNumber
			})
			return azure.Sign(content, attacker(t), leaf, own.Raw)
		}, reason.DocumentUntrusted},
		"a whole chain of the attacker with its root": {func(w *setup, content []byte) ([]byte, error) {
			root := forge(t, &attacker(t).PublicKey, nil, func(c *x509.Certificate) {
				c.Subject, c.IsCA, c.BasicConstraintsValid, c.KeyUsage = w.cloud.Root().Subject, true, true, x509.KeyUsageCertSign
			})
			own := forge(t, &attacker(t).PublicKey, root, nil)
			return azure.Sign(content, attacker(t), own, own.Raw, root.Raw)
		}, reason.DocumentUntrusted},
		"a certificate that the genuine leaf would have issued": {func(w *setup, content []byte) ([]byte, error) {
			leaf, _ := w.cloud.Leaf()
			own := forge(t, &attacker(t).PublicKey, leaf, nil)
			return azure.Sign(content, attacker(t), own, own.Raw, leaf.Raw)
		}, reason.DocumentUntrusted},
		"no certificate of the signer": {func(w *setup, content []byte) ([]byte, error) {
			leaf, key := w.cloud.Leaf()
			return azure.Sign(content, key, leaf)
		}, reason.DocumentInvalid},
		"no signer": {func(w *setup, content []byte) ([]byte, error) {
			leaf, key := w.cloud.Leaf()
			return azure.Pack(content, nil, key, leaf, leaf.Raw)
		}, reason.DocumentInvalid},
		"two signers": {func(w *setup, content []byte) ([]byte, error) {
			leaf, key := w.cloud.Leaf()
			return azure.Pack(content, [][]byte{nil, nil}, key, leaf, leaf.Raw)
		}, reason.DocumentInvalid},
		"two signers, of which the second did not sign": {func(w *setup, content []byte) ([]byte, error) {
			leaf, key := w.cloud.Leaf()
			return azure.Pack(content, [][]byte{nil, make([]byte, 256)}, key, leaf, leaf.Raw)
		}, reason.DocumentInvalid},
		"the chain good and the signature of zeros": {func(w *setup, content []byte) ([]byte, error) {
			leaf, key := w.cloud.Leaf()
			return azure.Pack(content, [][]byte{make([]byte, 256)}, key, leaf, leaf.Raw)
		}, reason.DocumentInvalid},
		"the chain good and no signature": {func(w *setup, content []byte) ([]byte, error) {
			leaf, key := w.cloud.Leaf()
			return azure.Pack(content, [][]byte{{}}, key, leaf, leaf.Raw)
		}, reason.DocumentInvalid},
		"the signature of the same machine's other document": {func(w *setup, content []byte) ([]byte, error) {
			leaf, key := w.cloud.Leaf()
			other, err := azure.Sign(bytes.Replace(content, []byte("aro_420"), []byte("aro_421"), 1), key, leaf, leaf.Raw)
			return bytes.Replace(other, []byte("aro_421"), []byte("aro_420"), 1), err
		}, reason.DocumentInvalid},
	} {
		for _, warm := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, warm %v", name, warm), func(t *testing.T) {
				w := newSetup(t)
				if warm {
					w.passes() // the genuine chain is now cached
				}
				raw, err := test.document(w, w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)))
				if err != nil {
					t.Fatal(err)
				}
				w.document.Raw = raw
				_, err = w.verify()
				denied(t, err, test.want)
			})
		}
	}
}

// Another customer of the same public authority, with a certificate for another name or use, is not
// Azure.
func TestAttack_T11_AnotherCustomerOfTheSameAuthority(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*x509.Certificate)
		want   reason.Code // zero: passes
	}{
		"for metadata.azure.com": {nil, 0},
		"for a region of it":     {func(c *x509.Certificate) { c.DNSNames = []string{"uksouth.metadata.azure.com"} }, 0},
		"for all of its regions": {func(c *x509.Certificate) { c.DNSNames = []string{"*.metadata.azure.com"} }, 0},
		"in capitals":            {func(c *x509.Certificate) { c.DNSNames = []string{"METADATA.Azure.com"} }, 0},
		"for a host that begins so": {func(c *x509.Certificate) {
			c.DNSNames = []string{"metadata.azure.com.evil.example"}
		}, reason.DocumentUntrusted},
		"for a host that ends so": {func(c *x509.Certificate) {
			c.DNSNames = []string{"evilmetadata.azure.com"}
		}, reason.DocumentUntrusted},
		"for the government's cloud": {func(c *x509.Certificate) { c.DNSNames = []string{"metadata.azure.us"} },
			reason.DocumentUntrusted},
		"for the domain above": {func(c *x509.Certificate) {
			c.DNSNames = []string{"azure.com", "*.azure.com"}
		}, reason.DocumentUntrusted},
		"with the name only in its common name": {func(c *x509.Certificate) { c.DNSNames = []string{"evil.example"} },
			reason.DocumentUntrusted},
		"with the name in its e-mail address": {func(c *x509.Certificate) {
			c.DNSNames, c.EmailAddresses = nil, []string{"x@metadata.azure.com"}
		}, reason.DocumentUntrusted},
		"for code": {func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning} },
			reason.DocumentUntrusted},
		"not for signatures": {func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment },
			reason.DocumentUntrusted},
		"without a usage of its key": {func(c *x509.Certificate) { c.KeyUsage = 0 }, 0},
		"that is a CA's":             {func(c *x509.Certificate) { c.IsCA = true }, reason.DocumentUntrusted},
		"that ended": {func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) },
			reason.DocumentUntrusted},
		"that has not begun": {func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) },
			reason.DocumentUntrusted},
		"with an unknown critical extension": {func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: []int{1, 2, 3, 4}, Critical: true, Value: []byte{5, 0}}}
		}, reason.DocumentUntrusted},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSetup(t)
			leaf, err := w.cloud.Issue(attacker(t), test.change)
			if err != nil {
				t.Fatal(err)
			}
			w.document.Raw, err = azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), attacker(t),
				leaf, leaf.Raw)
			if err != nil {
				t.Fatal(err)
			}
			if test.want == 0 {
				w.passes()
				return
			}
			_, err = w.verify()
			denied(t, err, test.want)
		})
	}
}

// Every change of a signed document is rejected. A change of an unsigned part (the optional
// parameters of an algorithm) must not change the content.
func TestAttack_T11_EveryByteFlippedCutRepeated(t *testing.T) {
	w := newSetup(t)
	want, honest := w.passes(), w.document.Raw
	fresh := w.verifier
	try := func(what string, raw []byte) {
		t.Helper()
		// With an empty cache, and with the genuine chain in the cache.
		cold := &azureattested.Verifier{Roots: fresh.Roots, Names: fresh.Names, Subscriptions: fresh.Subscriptions,
			Resolve: w}
		for _, v := range []*azureattested.Verifier{cold, fresh} {
			w.verifier, w.document.Raw = v, raw
			if got, err := w.confirm(w.machine.ProviderID()); err == nil && !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: accepted with %+v", what, got)
			} else if err == nil && len(raw) == len(honest) {
				t.Fatalf("%s: accepted", what)
			}
		}
	}
	for i := range honest {
		changed := bytes.Clone(honest)
		changed[i] ^= 1 << (i % 8)
		try(fmt.Sprintf("bit %d of byte %d", i%8, i), changed)
	}
	for at := 0; at < len(honest); at += 19 {
		for _, n := range []int{1, 2, 16, 300} {
			end := min(at+n, len(honest))
			try(fmt.Sprintf("without %d to %d", at, end), slices.Concat(honest[:at], honest[end:]))
		}
		try(fmt.Sprintf("%d repeated", at), slices.Concat(honest[:at+1], honest[at:]))
		try(fmt.Sprintf("only %d", at), honest[:at])
		try(fmt.Sprintf("from %d", at+1), honest[at+1:])
	}
	try("a byte behind", append(bytes.Clone(honest), 0))
	try("twice", slices.Concat(honest, honest))
}

func TestAttack_T11_EveryCharacterOfTheToken(t *testing.T) {
	w := newSetup(t)
	w.withIdentity()
	w.passes()
	honest := w.document.Token
	for i := range honest {
		changed := bytes.Clone(honest)
		if changed[i]++; changed[i] == '[' || changed[i] == '{' || changed[i] == ':' {
			changed[i] = '-'
		}
		w.document.Token = changed
		if _, err := w.verify(); err == nil {
			t.Fatalf("character %d changed", i)
		}
		if i%5 != 0 {
			continue
		}
		w.document.Token = slices.Concat(honest[:i], honest[i+1:])
		if _, err := w.verify(); err == nil {
			t.Fatalf("character %d left out", i)
		}
	}
	for _, tail := range []string{".", "=", "\n", " ", "A", ".A"} {
		w.document.Token = append(bytes.Clone(honest), tail...)
		if _, err := w.verify(); err == nil {
			t.Fatalf("with %q behind", tail)
		}
	}
}

func TestAttack_T12_NothingThatACertificateNamesIsFetched(t *testing.T) {
	var fetched atomic.Int32
	w := newSetup(t)
	w.passes()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/redirect" {
			http.Redirect(rw, r, "/intermediate.crt", http.StatusFound)
			return
		}
		_, _ = rw.Write(w.cloud.Intermediate().Raw)
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			fetched.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	host := server.Listener.Addr().String()
	roots := pool(w.cloud.Root())
	for _, url := range []string{
		"http://" + host + "/intermediate.crt", "http://www.microsoft.com@" + host + "/intermediate.crt",
		"http://" + host + "/redirect",
		"http://169.254.169.254/metadata/identity/oauth2/token", "http://www.microsoft.com.evil.example/pkiops/certs/ca.crt",
		"ldap://" + host + "/x", "file:///etc/passwd",
	} {
		leaf, err := w.cloud.Issue(attacker(t), func(c *x509.Certificate) {
			c.IssuingCertificateURL, c.OCSPServer, c.CRLDistributionPoints = []string{url}, []string{url}, []string{url}
		})
		if err != nil {
			t.Fatal(err)
		}
		w.document.Raw, err = azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), attacker(t),
			leaf, leaf.Raw)
		if err != nil {
			t.Fatal(err)
		}
		// A request would return the missing intermediate.
		w.verifier.Roots = func() (*x509.CertPool, *x509.CertPool) { return roots, nil }
		_, err = w.verify()
		denied(t, err, reason.DocumentUntrusted)
		w.document.Certificates = [][]byte{w.cloud.Intermediate().Raw}
		w.passes()
		w.document.Certificates = nil
	}
	if n := fetched.Load(); n != 0 {
		t.Fatalf("%d connections", n)
	}
}
