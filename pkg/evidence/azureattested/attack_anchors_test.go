// SPDX-License-Identifier: Apache-2.0

package azureattested_test

import (
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
)

func TestAttack_T15_AnchorsThatEndOrChange(t *testing.T) {
	t.Run("an anchor that ended", func(t *testing.T) {
		w := newSetup(t)
		w.passes()
		for _, years := range []int{4, 11} { // the leaf and the intermediate, and the root
			w.now = time.Now().AddDate(years, 0, 0)
			_, err := w.verify()
			denied(t, err, reason.DocumentUntrusted)
		}
		// A cached chain is not trusted longer than its shortest part.
		w.now = time.Now().AddDate(0, 6, 1)
		_, err := w.verify()
		denied(t, err, reason.DocumentUntrusted)
	})
	t.Run("a cached chain does not outlive its bundle", func(t *testing.T) {
		w := newSetup(t)
		w.passes()
		none := x509.NewCertPool()
		w.verifier.Roots = func() (*x509.CertPool, *x509.CertPool) { return none, none }
		_, err := w.verify()
		denied(t, err, reason.DocumentUntrusted)
		roots := pool(w.cloud.Root())
		w.verifier.Roots = func() (*x509.CertPool, *x509.CertPool) { return roots, none }
		_, err = w.verify()
		denied(t, err, reason.DocumentUntrusted) // the intermediate is missing, too
	})
	t.Run("no anchors are not the system's", func(t *testing.T) {
		w := newSetup(t)
		for _, none := range []func() (*x509.CertPool, *x509.CertPool){
			func() (*x509.CertPool, *x509.CertPool) { return nil, nil }, nil,
		} {
			w.verifier.Roots = none
			_, err := w.verify()
			denied(t, err, reason.DocumentUntrusted)
			// The system's roots would deny it as well, with another message.
			if !strings.Contains(err.Error(), "no anchors") {
				t.Errorf("the chain was verified: %v", err)
			}
		}
	})
	t.Run("a bundle that is swapped in mid-flight", func(t *testing.T) {
		w := newSetup(t)
		type pools struct{ roots, intermediates *x509.CertPool }
		good, bad := &pools{pool(w.cloud.Root()), pool(w.cloud.Intermediate())},
			&pools{x509.NewCertPool(), x509.NewCertPool()}
		var current atomic.Pointer[pools]
		w.verifier.Roots = func() (*x509.CertPool, *x509.CertPool) {
			p := current.Load()
			// The bundle changes as soon as it has been read.
			if p == good {
				current.Store(bad)
			} else {
				current.Store(good)
			}
			return p.roots, p.intermediates
		}
		for range 20 {
			current.Store(good)
			w.passes() // the bundle that was read is used
			_, err := w.verify()
			denied(t, err, reason.DocumentUntrusted)
		}
	})
	t.Run("concurrent calls while it changes", func(t *testing.T) {
		w := newSetup(t)
		var on atomic.Bool
		roots, intermediates, none := pool(w.cloud.Root()), pool(w.cloud.Intermediate()), x509.NewCertPool()
		w.verifier.Roots = func() (*x509.CertPool, *x509.CertPool) {
			if on.Load() {
				return roots, intermediates
			}
			return none, none
		}
		var all sync.WaitGroup
		for n := range 8 {
			all.Go(func() {
				for i := range 50 {
					if n == 0 {
						on.Store(i%2 == 0)
					}
					if _, err := w.verifier.Verify(t.Context(), w.document, w.binding, w.now); err != nil &&
						reason.From(err).Code != reason.DocumentUntrusted {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		on.Store(false)
		_, err := w.verify()
		denied(t, err, reason.DocumentUntrusted)
	})
}

func TestAttack_T16_WhatCostsTimeOrMemory(t *testing.T) {
	huge := func(bits uint) *rsa.PublicKey {
		n := new(big.Int).Lsh(big.NewInt(1), bits-1)
		return &rsa.PublicKey{N: n.Add(n, big.NewInt(1)), E: 65537}
	}
	for name, test := range map[string]struct {
		change func(*setup)
		want   reason.Code // zero: passes
	}{
		"as it is":              {func(*setup) {}, 0},
		"a document of 200 MB":  {func(w *setup) { w.document.Raw = make([]byte, 200<<20) }, reason.DocumentInvalid},
		"a document of nothing": {func(w *setup) { w.document.Raw = nil }, reason.DocumentInvalid},
		"1000 certificates with it": {func(w *setup) {
			w.document.Certificates = slices.Repeat([][]byte{w.cloud.Intermediate().Raw}, 1000)
		}, reason.DocumentInvalid},
		"1000 certificates in it": {func(w *setup) {
			leaf, key := w.cloud.Leaf()
			w.document.Raw, _ = azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), key,
				leaf, slices.Repeat([][]byte{{0x30, 0}}, 1000)...)
		}, reason.DocumentInvalid},
		"a signer with RSA-16384": {func(w *setup) {
			own := forge(w.t, huge(16384), w.cloud.Intermediate(), nil)
			w.document.Raw, _ = azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), attacker(w.t),
				own, own.Raw)
		}, reason.DocumentInvalid},
		"an intermediate with RSA-16384": {func(w *setup) {
			between := forge(w.t, huge(16384), w.cloud.Root(), func(c *x509.Certificate) {
				c.Subject, c.IsCA, c.BasicConstraintsValid, c.KeyUsage = pkix.Name{CommonName: "between"}, true, true,
					x509.KeyUsageCertSign
			})
			own := forge(w.t, &attacker(w.t).PublicKey, between, nil)
			w.document.Raw, _ = azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), attacker(w.t),
				own, own.Raw, between.Raw)
		}, reason.DocumentUntrusted},
		"a signer with RSA-1024, by the genuine authority": {func(w *setup) {
			leaf := forge(w.t, huge(1024), w.cloud.Intermediate(), nil)
			w.document.Raw, _ = azure.Sign(w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript)), attacker(w.t),
				leaf, leaf.Raw)
		}, reason.DocumentInvalid},
		"a certificate of 100 KB": {func(w *setup) { w.document.Certificates = [][]byte{make([]byte, 100<<10)} }, 0},
		"8 certificates of 20 MB with a cached chain": {func(w *setup) {
			w.passes()
			w.document.Certificates = slices.Repeat([][]byte{make([]byte, 20<<20)}, 8)
		}, 0},
		"a certificate of nothing": {func(w *setup) { w.document.Certificates = [][]byte{{}} }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSetup(t)
			test.change(w)
			_, err := w.verify()
			if test.want == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			denied(t, err, test.want)
		})
	}
}

// A document of another machine, and one for another conversation, are replays.
func TestAttack_T14_DocumentOfANeighbor(t *testing.T) {
	w := newSetup(t)
	w.passes()
	neighbor := &azure.Instance{Name: "ocp-worker-2", ResourceGroup: w.machine.ResourceGroup,
		VMID: "22222222-24a0-41f3-b949-8baf4fd1c573"}
	if err := w.cloud.Add(neighbor); err != nil {
		t.Fatal(err)
	}
	raw, err := w.cloud.Document(neighbor, attester.Nonce(w.binding.Transcript))
	if err != nil {
		t.Fatal(err)
	}
	w.document.Raw = raw
	_, err = w.confirm(w.machine.ProviderID())
	denied(t, err, reason.EvidenceDisagrees)

	w = newSetup(t)
	w.binding = evidence.Binding{Transcript: [32]byte{9}}
	_, err = w.verify()
	denied(t, err, reason.DocumentNotFresh)
}
