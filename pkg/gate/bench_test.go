// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

// discard is a client that reads everything and discards it.
type discard struct {
	header http.Header
	status int
	bytes  int
}

func (d *discard) Header() http.Header  { return d.header }
func (d *discard) WriteHeader(code int) { d.status = code }
func (d *discard) Write(p []byte) (int, error) {
	d.bytes += len(p)
	return len(p), nil
}

func benchRequest(h http.Handler, r *http.Request, size int) error {
	w := discard{header: http.Header{}, status: 200}
	h.ServeHTTP(&w, r)
	if w.status != 200 || w.bytes != size {
		return fmt.Errorf("status %d, %d bytes", w.status, w.bytes)
	}
	return nil
}

// BenchmarkGate compares the gate's own cost for a request, without a network, with
// http.ServeContent for the same bytes. "x-ServeContent" is the ratio of their durations in
// the same run.
func BenchmarkGate(b *testing.B) {
	keys, err := token.KeySet{}.Rotate(noon, rand.Reader, 0)
	if err != nil {
		b.Fatal(err)
	}
	raw, err := keys.Sign(noon, token.Claims{
		Issuer: "https://api-int.example:22623", Audience: token.Audience, Subject: "ns/worker-a", MachineUID: "uid",
		Pool: "worker",
		ID:   "jti", Expiry: noon.Add(time.Hour), Status: token.Affirming,
		Submods: map[string]token.Appraisal{"tpm2": {Status: token.Affirming}},
	})
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{500_000, 1_000_000} {
		const head = `{"ignition":{"version":"3.4.0"},"x":"`
		config := []byte(head + strings.Repeat("a", size-len(head)-2) + `"}`)
		rendered, err := NewRendered(config)
		if err != nil {
			b.Fatal(err)
		}
		own := Source{Config: func(string, specversion.Accept) (*Rendered, error) { return rendered, nil }}
		for _, c := range []struct {
			name     string
			mode     Mode
			upstream http.Handler
		}{
			{"token/own configs", Enforce, own},
			{"off/own configs", Off, own},
			{"token/any upstream", Enforce, serveBytes(config)},
		} {
			b.Run(fmt.Sprintf("%s/%dkB", c.name, size/1000), func(b *testing.B) {
				f := newFixture()
				f.Observe, f.Requested = nil, nil
				f.policy.Mode, f.Upstream = c.mode, c.upstream
				f.Tokens = token.Checker{Keys: func() token.KeySet { return keys }}
				h, r := New(f.Config), get("/config/worker", string(raw.Expose()))
				b.ReportAllocs()
				for b.Loop() {
					if err := benchRequest(h, r, size); err != nil {
						b.Fatal(err)
					}
				}
				gate := b.Elapsed() / time.Duration(b.N)
				b.ReportMetric(float64(time.Second)/float64(gate), "requests/s")
				b.ReportMetric(float64(gate)/float64(serveContent(b, config)), "x-ServeContent")
			})
		}
	}
}

func serveBytes(config []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(config)))
		_, _ = w.Write(config)
	})
}

// serveContent returns the duration of http.ServeContent for config. It copies through a
// buffer, as for a TLS connection.
func serveContent(b *testing.B, config []byte) time.Duration {
	b.Helper()
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "worker.ign", noon, struct{ io.ReadSeeker }{bytes.NewReader(config)})
	})
	r := get("/config/worker", "")
	const rounds = 200
	start := time.Now()
	for range rounds {
		if err := benchRequest(h, r, len(config)); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start) / rounds
}

// BenchmarkTokenVerify measures the cryptographic part.
func BenchmarkTokenVerify(b *testing.B) {
	keys, err := token.KeySet{}.Rotate(noon, rand.Reader, 0)
	if err != nil {
		b.Fatal(err)
	}
	raw, err := keys.Sign(noon, token.Claims{
		Issuer: "i", Audience: token.Audience, Subject: "s", MachineUID: "u", Pool: "worker", ID: "j",
		Expiry: noon.Add(time.Hour),
		Status: token.Affirming, Submods: map[string]token.Appraisal{"tpm2": {Status: token.Affirming}},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := keys.Verify(noon, raw.Expose()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGateOverTLS sends requests to the gate, with a token, and to http.ServeContent in
// turn, each over one TLS connection, and compares the times that a node sees.
func BenchmarkGateOverTLS(b *testing.B) {
	keys, err := token.KeySet{}.Rotate(noon, rand.Reader, 0)
	if err != nil {
		b.Fatal(err)
	}
	raw, err := keys.Sign(noon, token.Claims{
		Issuer: "i", Audience: token.Audience, Subject: "s", MachineUID: "u", Pool: "worker", ID: "j",
		Expiry: noon.Add(time.Hour),
		Status: token.Affirming, Submods: map[string]token.Appraisal{"tpm2": {Status: token.Affirming}},
	})
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{500_000, 1_000_000} {
		b.Run(fmt.Sprintf("%dkB", size/1000), func(b *testing.B) {
			const head = `{"ignition":{"version":"3.4.0"},"x":"`
			config := []byte(head + strings.Repeat("a", size-len(head)-2) + `"}`)
			rendered, err := NewRendered(config)
			if err != nil {
				b.Fatal(err)
			}
			f := newFixture()
			f.Observe, f.Requested = nil, nil
			f.Upstream = Source{Config: func(string, specversion.Accept) (*Rendered, error) { return rendered, nil }}
			f.Tokens = token.Checker{Keys: func() token.KeySet { return keys }}
			gate := httptest.NewTLSServer(New(f.Config))
			defer gate.Close()
			static := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				http.ServeContent(w, r, "worker.ign", noon, bytes.NewReader(config))
			}))
			defer static.Close()
			var took [2]time.Duration
			for b.Loop() {
				for i, s := range []*httptest.Server{gate, static} {
					r, err := http.NewRequest(http.MethodGet, s.URL+"/config/worker", nil)
					if err != nil {
						b.Fatal(err)
					}
					r.Header.Set("Accept", ignition34)
					r.Header.Set("Authorization", "Bearer "+string(raw.Expose()))
					start := time.Now()
					res, err := s.Client().Do(r)
					if err != nil {
						b.Fatal(err)
					}
					n, err := io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
					took[i] += time.Since(start)
					if err != nil || n != int64(size) || res.StatusCode != http.StatusOK {
						b.Fatalf("status %d, %d bytes, %v", res.StatusCode, n, err)
					}
				}
			}
			b.ReportMetric(float64(b.N)/took[0].Seconds(), "requests/s")
			b.ReportMetric(float64(took[0])/float64(took[1]), "x-ServeContent")
		})
	}
}
