package gcpidentity_test

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
)

// BenchmarkVerify is a whole verification with warm keys. Its "x-rsa" is the
// multiple of the one RSA-2048 verification that nobody could do without.
func BenchmarkVerify(b *testing.B) {
	w := newWorld(b)
	token := w.honest(b)
	d := evidence.Document{Kind: evidence.GCPIdentity, Raw: token}
	floor := rsaAlone(b, token, w)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := w.verifier.Verify(b.Context(), d, binding, today); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/floor, "x-rsa")
}

// rsaAlone is the time of SHA-256 and RSA over the token's signed part, in the same run.
func rsaAlone(b *testing.B, token []byte, w world) float64 {
	b.Helper()
	signed, last, _ := strings.Cut(string(token), ".")
	payload, last, _ := strings.Cut(last, ".")
	signed += "." + payload
	signature, err := base64.RawURLEncoding.DecodeString(last)
	if err != nil {
		b.Fatal(err)
	}
	_, key := w.cloud.SigningKey()
	const rounds = 2000
	begin := time.Now()
	for range rounds {
		digest := sha256.Sum256([]byte(signed))
		if err := rsa.VerifyPKCS1v15(&key.PublicKey, crypto.SHA256, digest[:], signature); err != nil {
			b.Fatal(err)
		}
	}
	return float64(time.Since(begin).Nanoseconds()) / rounds
}

// BenchmarkRefuse is a token that nobody signed: what a stranger can make the verifier do.
func BenchmarkRefuse(b *testing.B) {
	w := newWorld(b)
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
