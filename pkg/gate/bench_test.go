package gate

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/token"
)

// discard is a client that reads everything and keeps nothing.
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

// BenchmarkGate compares the gate's own cost for a request, without a network,
// with http.ServeContent of the same bytes. "x-ServeContent" is how many times
// its duration the gate takes; both are measured in the same run.
func BenchmarkGate(b *testing.B) {
	keys, err := token.KeySet{}.Rotate(noon, rand.Reader, 0)
	if err != nil {
		b.Fatal(err)
	}
	raw, err := keys.Sign(noon, token.Claims{
		Issuer: "https://api-int.example:22623", Audience: token.Audience, Subject: "ns/worker-a", MachineUID: "uid", Pool: "worker",
		ID: "jti", Expiry: noon.Add(time.Hour), Status: token.Affirming,
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
		own := Source{Config: func(string) (*Rendered, bool) { return rendered, true }}
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

// serveContent is the time that http.ServeContent takes for config. It copies
// through a buffer, as it does to a TLS connection.
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

// BenchmarkTokenVerify is the part of it that is cryptography.
func BenchmarkTokenVerify(b *testing.B) {
	keys, err := token.KeySet{}.Rotate(noon, rand.Reader, 0)
	if err != nil {
		b.Fatal(err)
	}
	raw, err := keys.Sign(noon, token.Claims{
		Issuer: "i", Audience: token.Audience, Subject: "s", MachineUID: "u", Pool: "worker", ID: "j", Expiry: noon.Add(time.Hour),
		Status: token.Affirming, Submods: map[string]token.Appraisal{"tpm2": {Status: token.Affirming}},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := keys.Verify(noon, raw.Expose(), token.Audience); err != nil {
			b.Fatal(err)
		}
	}
}
