// SPDX-License-Identifier: Apache-2.0

package gcpidentity_test

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
)

// BenchmarkVerify measures a whole verification with cached keys. Its "x-rsa" is the ratio to one
// SHA-256 and one RSA-2048 verification, which cannot be avoided. It is the ratio of the medians of
// alternating runs, so that the load of the machine affects both.
func BenchmarkVerify(b *testing.B) {
	w := newSetup(b)
	token := w.honest(b)
	d := evidence.Document{Kind: evidence.GCPIdentity, Raw: token}
	end := strings.LastIndexByte(string(token), '.')
	signature, err := base64.RawURLEncoding.DecodeString(string(token[end+1:]))
	if err != nil {
		b.Fatal(err)
	}
	_, key := w.cloud.SigningKey()
	var whole, floor []time.Duration
	for b.Loop() {
		begin := time.Now()
		if _, err := w.verifier.Verify(b.Context(), d, binding, today); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		digest := sha256.Sum256(token[:end])
		if err := rsa.VerifyPKCS1v15(&key.PublicKey, crypto.SHA256, digest[:], signature); err != nil {
			b.Fatal(err)
		}
		whole, floor = append(whole, middle.Sub(begin)), append(floor, time.Since(middle))
	}
	slices.Sort(whole)
	slices.Sort(floor)
	b.ReportMetric(float64(whole[len(whole)/2]), "verify-ns")
	b.ReportMetric(float64(whole[len(whole)/2])/float64(floor[len(floor)/2]), "x-rsa")
	allocations := testing.AllocsPerRun(100, func() { _, _ = w.verifier.Verify(b.Context(), d, binding, today) })
	b.ReportMetric(allocations, "verify-allocs")
}

// BenchmarkRefuse measures a token without a valid signature: the work that any caller can cause.
func BenchmarkRefuse(b *testing.B) {
	w := newSetup(b)
	token := w.honest(b)
	token[len(token)-10] ^= 1
	d := evidence.Document{Kind: evidence.GCPIdentity, Raw: token}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.verifier.Verify(b.Context(), d, binding, today); err == nil {
			b.Fatal("accepted")
		}
	}
}
