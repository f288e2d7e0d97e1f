// SPDX-License-Identifier: Apache-2.0

package azureattested_test

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
)

// BenchmarkUnavoidable measures the one signature check that every document needs: the signer's key
// over the content.
func BenchmarkUnavoidable(b *testing.B) {
	w := newSetup(b)
	_, key := w.cloud.Leaf()
	content := w.cloud.Content(w.machine, attester.Nonce(w.binding.Transcript))
	digest := sha256.Sum256(content)
	signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, digest[:])
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		digest := sha256.Sum256(content)
		if err := rsa.VerifyPKCS1v15(&key.PublicKey, crypto.SHA256, digest[:], signature); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKnownChain measures a document whose signer's chain is cached: one signature check and
// the rest of the work.
func BenchmarkKnownChain(b *testing.B) {
	w := newSetup(b)
	w.passes()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.verify(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkUnavoidableChain measures the three signature checks of a chain that is not cached.
func BenchmarkUnavoidableChain(b *testing.B) {
	w := newSetup(b)
	leaf, _ := w.cloud.Leaf()
	b.ReportAllocs()
	for b.Loop() {
		for _, pair := range [][2]*x509.Certificate{{leaf, w.cloud.Intermediate()}, {w.cloud.Intermediate(), w.cloud.Root()},
			{leaf, w.cloud.Intermediate()}} {
			if err := pair[0].CheckSignatureFrom(pair[1]); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkNewChain measures the first document of a signer.
func BenchmarkNewChain(b *testing.B) {
	w := newSetup(b)
	roots, intermediates := w.verifier.Roots()
	b.ReportAllocs()
	for b.Loop() {
		v := &azureattested.Verifier{
			Roots: func() (*x509.CertPool, *x509.CertPool) { return roots, intermediates },
			Names: w.verifier.Names, Subscriptions: w.verifier.Subscriptions, Resolve: w,
		}
		if _, err := v.Verify(b.Context(), w.document, w.binding, w.now); err != nil {
			b.Fatal(err)
		}
	}
}
