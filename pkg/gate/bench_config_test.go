// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/mcs"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

// servedConfig is the size of the responses, as for a worker.
const servedConfig = 500_000

// ignition2x is the header of an Ignition 2.16.
const ignition2x = "application/vnd.coreos.ignition+json;version=3.4.0, */*;q=0.1"

// served returns a pool's cached responses with all additions of the server. The server's
// MachineConfig contains the whole config a second time.
func served(b *testing.B) *mcs.Answers {
	b.Helper()
	const rest = 5_000
	noise := make([]byte, (servedConfig-rest)/2*3/4)
	if _, err := rand.Read(noise); err != nil {
		b.Fatal(err)
	}
	config := `{"ignition":{"version":"3.5.0"},"storage":{"files":[{"path":"/etc/noise","mode":420,"overwrite":true,"contents":{"source":"data:;base64,` +
		base64.StdEncoding.EncodeToString(noise) + `"}}]}}`
	r := &render.Rendered{Pool: "worker", Config: &mcfgv1.MachineConfig{
		ObjectMeta: metav1.ObjectMeta{Name: "rendered-worker-0123456789abcdef0123456789abcdef"},
		Spec:       mcfgv1.MachineConfigSpec{Config: k8sruntime.RawExtension{Raw: []byte(config)}},
	}}
	var c mcs.Cache
	answers, err := c.Answers(r, mcs.Extras{
		APIServer: "https://api-int.example:6443", CA: []byte("a CA\n"),
		Token: secret.New([]byte("the-credential-that-all-share")),
	})
	if err != nil {
		b.Fatal(err)
	}
	return answers
}

// credentials are published credentials without a cluster, with the record's part.
type credentials struct{}

func (credentials) For(token.Claims) bool { return true }

func (credentials) Get(context.Context, token.Claims) (*credential.Credential, error) {
	return &credential.Credential{ID: "JTI=x", Token: secret.New(bytes.Repeat([]byte("jwt."), 250))}, nil
}

func (i credentials) Check(context.Context, token.Claims) (gate.Redemption, error) { return i, nil }

func (credentials) Redeem(context.Context, *credential.Credential) error { return nil }

// ownConfigs returns gates with cached configs, without and with a bootstrap credential for
// each machine, the token that opens them, and the plain response.
func ownConfigs(b *testing.B) (shared, own http.Handler, bearer string, plain []byte) {
	b.Helper()
	keys, err := token.KeySet{}.Rotate(time.Now(), rand.Reader, 0)
	if err != nil {
		b.Fatal(err)
	}
	raw, err := keys.Sign(time.Now(), token.Claims{
		Issuer: "i", Audience: token.Audience, Subject: "s", MachineUID: "u", Pool: "worker", ID: "j",
		Expiry: time.Now().Add(50 * time.Minute),
		Status: token.Affirming, Submods: map[string]token.Appraisal{"tpm2": {Status: token.Affirming}},
	})
	if err != nil {
		b.Fatal(err)
	}
	answers := served(b)
	c := gate.Config{
		Upstream: gate.Source{Config: func(_ string, a specversion.Accept) (*gate.Rendered, error) { return answers.For(a) }},
		Policy:   func(string) (gate.PoolPolicy, error) { return gate.PoolPolicy{Label: "worker"}, nil },
		Tokens:   token.Checker{Keys: func() token.KeySet { return keys }},
		Redeem:   credentials{}, Now: time.Now,
	}
	shared = gate.New(c)
	c.Credentials = credentials{}
	own = gate.New(c)
	bearer = "Bearer " + string(raw.Expose())
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/config/worker", nil)
	r.TLS = &tls.ConnectionState{}
	r.Header.Set("Accept", ignition2x)
	r.Header.Set("Authorization", bearer)
	shared.ServeHTTP(w, r)
	if w.Code != http.StatusOK || w.Body.Len() < servedConfig*9/10 || w.Body.Len() > servedConfig*11/10 {
		b.Fatalf("status %d, %d bytes", w.Code, w.Body.Len())
	}
	return shared, own, bearer, w.Body.Bytes()
}

// BenchmarkConfigsOverTLS sends requests to three servers in turn: the gate with cached
// configs, the same with a machine's own bootstrap credential in each response, and
// http.ServeContent with the same bytes. "of-ServeContent" is the gate's share of its
// requests per second. "B/request" is what client and server allocate for a request.
func BenchmarkConfigsOverTLS(b *testing.B) {
	shared, own, bearer, plain := ownConfigs(b)
	content := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "worker.ign", time.Time{}, bytes.NewReader(plain))
	})
	handlers := []struct {
		name string
		http.Handler
	}{{"cached", shared}, {"own-credential", own}, {"ServeContent", content}}
	for _, connections := range []struct {
		name string
		each bool
	}{{"one connection", false}, {"a connection each", true}} {
		b.Run(connections.name, func(b *testing.B) {
			var servers []*httptest.Server
			for _, h := range handlers {
				s := httptest.NewTLSServer(h.Handler)
				defer s.Close()
				s.Client().Transport.(*http.Transport).DisableKeepAlives = connections.each
				servers = append(servers, s)
			}
			one := func(s *httptest.Server) {
				r, err := http.NewRequest(http.MethodGet, s.URL+"/config/worker", nil)
				if err != nil {
					b.Fatal(err)
				}
				r.Header.Set("Accept", ignition2x)
				r.Header.Set("Authorization", bearer)
				res, err := s.Client().Do(r)
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				if err != nil || n < int64(len(plain)) || res.StatusCode != http.StatusOK {
					b.Fatalf("status %d, %d bytes, %v", res.StatusCode, n, err)
				}
			}
			took := make([]time.Duration, len(servers))
			for b.Loop() {
				for i, s := range servers {
					start := time.Now()
					one(s)
					took[i] += time.Since(start)
				}
			}
			const rounds = 50
			for i, h := range handlers {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for range rounds {
					one(servers[i])
				}
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/rounds, h.name+"-B/request")
				b.ReportMetric(float64(b.N)/took[i].Seconds(), h.name+"-requests/s")
				if h.name != "ServeContent" {
					b.ReportMetric(float64(took[len(took)-1])/float64(took[i]), h.name+"-of-ServeContent")
				}
			}
		})
	}
}

// BenchmarkConfigs measures the gate's own allocations for a request, without network and client.
func BenchmarkConfigs(b *testing.B) {
	shared, own, bearer, plain := ownConfigs(b)
	for _, c := range []struct {
		name string
		http.Handler
	}{{"cached", shared}, {"own-credential", own}} {
		b.Run(c.name, func(b *testing.B) {
			r := httptest.NewRequest(http.MethodGet, "/config/worker", nil)
			r.TLS = &tls.ConnectionState{}
			r.Header.Set("Accept", ignition2x)
			r.Header.Set("Authorization", bearer)
			b.ReportAllocs()
			b.SetBytes(int64(len(plain)))
			for b.Loop() {
				w := counting{header: http.Header{}}
				c.ServeHTTP(&w, r)
				if w.status != http.StatusOK || w.bytes < len(plain) {
					b.Fatal(fmt.Sprint("status ", w.status, ", bytes ", w.bytes))
				}
			}
		})
	}
}

// counting is a client that reads everything and discards it.
type counting struct {
	header http.Header
	status int
	bytes  int
}

func (c *counting) Header() http.Header    { return c.header }
func (c *counting) WriteHeader(status int) { c.status = status }
func (c *counting) Write(p []byte) (int, error) {
	c.bytes += len(p)
	return len(p), nil
}
