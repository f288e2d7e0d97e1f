// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// remote serves an upstream over a real connection.
func remote(t testing.TB, h http.Handler, withTLS bool) http.Handler {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if withTLS {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	base, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := s.Client().Transport.(*http.Transport).Clone()
	transport.DisableCompression = true
	return Proxy(base, transport)
}

func TestAttack_T47_UpstreamResponsesThatAreInvalid(t *testing.T) {
	header := func(w http.ResponseWriter, kv ...string) {
		for i := 0; i < len(kv); i += 2 {
			w.Header().Set(kv[i], kv[i+1])
		}
	}
	hang := func(r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(5 * time.Minute):
		}
	}
	for _, c := range []struct {
		name   string
		answer func(w http.ResponseWriter, r *http.Request)
		code   reason.Code
	}{
		{"an empty 200", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }, reason.UpstreamInvalid},
		{"204", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, reason.UpstreamInvalid},
		{"202 with a config", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(202)
			_, _ = io.WriteString(w, config34)
		}, reason.UpstreamInvalid},
		{"206 with a config", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(206)
			_, _ = io.WriteString(w, config34)
		}, reason.UpstreamInvalid},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
			reason.UpstreamInvalid},
		{"304", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(304) }, reason.UpstreamInvalid},
		{"401 with a challenge of its own", func(w http.ResponseWriter, _ *http.Request) {
			header(w, "WWW-Authenticate", "Basic")
			w.WriteHeader(401)
		}, reason.UpstreamInvalid},
		{"403", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, reason.UpstreamInvalid},
		{"404", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, reason.UpstreamInvalid},
		{"500: no such pool", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
			reason.UpstreamUnavailable},
		{"503", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, reason.UpstreamUnavailable},
		{"999", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(999) }, reason.UpstreamUnavailable},
		{"101 without a request for it", func(w http.ResponseWriter, _ *http.Request) {
			header(w, "Connection", "Upgrade", "Upgrade", "x")
			w.WriteHeader(101)
		}, reason.UpstreamUnavailable},
		{"half a config, of the stated length", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, config34[:40])
		}, reason.UpstreamInvalid},
		{"the connection is cut in the body", func(w http.ResponseWriter, _ *http.Request) {
			header(w, "Content-Length", strconv.Itoa(len(config34)))
			_, _ = io.WriteString(w, config34[:40])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, reason.UpstreamInvalid},
		{"the connection is cut after a whole config that should be longer", func(w http.ResponseWriter, _ *http.Request) {
			header(w, "Content-Length", strconv.Itoa(len(config34)+1))
			_, _ = io.WriteString(w, config34)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, reason.UpstreamInvalid},
		{"the connection is cut in a chunked body", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, config34[:40])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, reason.UpstreamInvalid},
		{"the connection is cut before the status", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			reason.UpstreamUnavailable},
		{"no HTTP at all", func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = io.WriteString(conn, "SSH-2.0-x\r\n")
			_ = conn.Close()
		}, reason.UpstreamUnavailable},
		{"it never answers", func(_ http.ResponseWriter, r *http.Request) { hang(r) }, reason.UpstreamUnavailable},
		{"it never finishes", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, config34[:40])
			_ = http.NewResponseController(w).Flush()
			hang(r)
		}, reason.UpstreamUnavailable},
		{"103 and then nothing", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(103); hang(r) },
			reason.UpstreamUnavailable},
		{"an HTML page", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>Welcome</html>") },
			reason.UpstreamInvalid},
		{"JSON that is no config", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") },
			reason.UpstreamInvalid},
		{"two configs", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, config34+config34) },
			reason.UpstreamInvalid},
		{"a spec that the client cannot read", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Replace(config34, "3.4", "3.5", 1))
		}, reason.UpstreamInvalid},
		{"spec 2.2, as for a request without Accept", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Replace(config34, "3.4", "2.2", 1))
		}, reason.UpstreamInvalid},
		{"an experimental spec", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Replace(config34, "3.4.0", "3.4.0-experimental", 1))
		}, reason.UpstreamInvalid},
		{"a content coding", func(w http.ResponseWriter, _ *http.Request) {
			header(w, "Content-Encoding", "gzip")
			_, _ = io.WriteString(w, config34)
		}, reason.UpstreamInvalid},
		{"a length that no machine has memory for", func(w http.ResponseWriter, _ *http.Request) {
			header(w, "Content-Length", "4611686018427387904")
			_, _ = io.WriteString(w, config34)
		}, reason.UpstreamInvalid},
		{"a config over MaxConfig", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, config34+strings.Repeat(" ", 4096))
		}, reason.UpstreamInvalid},
		{"a body without end", func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 4096)); err != nil {
					return
				}
			}
		}, reason.UpstreamInvalid},
		{"garbage that calls itself checked", func(w http.ResponseWriter, _ *http.Request) {
			header(w, "X-Mcs-Attest-Checked", "1", "X-Mcs-Attest-Version", "3.4.0")
			_, _ = io.WriteString(w, "garbage")
		}, reason.UpstreamInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, withTLS := range []bool{false, true} {
				f := newFixture()
				f.MaxConfig, f.UpstreamTimeout = 4096, 2*time.Minute
				if c.code == reason.UpstreamUnavailable {
					f.UpstreamTimeout = 50 * time.Millisecond
				}
				f.Upstream = remote(t, http.HandlerFunc(c.answer), withTLS)
				start := time.Now()
				res := f.do(t, get("/config/worker", good))
				text := body(t, res)
				if d := f.decisions[0].Denial; res.StatusCode != 503 || d == nil || d.Code != c.code {
					t.Errorf("TLS %t: %d, %v, want %v", withTLS, res.StatusCode, d, c.code)
				}
				if strings.Contains(text, "ignition\"") || res.Header.Get("WWW-Authenticate") != "" ||
					res.Header.Get("Location") != "" {
					t.Errorf("something of the upstream's got out: %v %s", res.Header, text)
				}
				if f.redeem.redeems != 0 || len(f.lines) != 0 {
					t.Errorf("%d uses taken, lines %q", f.redeem.redeems, f.lines)
				}
				// Less than an upstream that hangs, and than the timeout of the others.
				if took := time.Since(start); took > time.Minute {
					t.Errorf("took %v", took)
				}
			}
		})
	}
}

func TestAttack_T47_TheHonestUpstreamPasses(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"plain": serve(config34).ServeHTTP,
		"chunked": func(w http.ResponseWriter, _ *http.Request) {
			for i := range len(config34) {
				_, _ = io.WriteString(w, config34[i:i+1])
				_ = http.NewResponseController(w).Flush()
			}
		},
		"103 first": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(103); serve(config34).ServeHTTP(w, r) },
		"identity coding": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "identity")
			serve(config34).ServeHTTP(w, r)
		},
		"cookies, which stay there": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Set-Cookie", "a=b")
			serve(config34).ServeHTTP(w, r)
		},
	} {
		for _, withTLS := range []bool{false, true} {
			f := newFixture()
			f.MaxConfig = len(config34)
			f.Upstream = remote(t, answer, withTLS)
			res := f.do(t, get("/config/worker", good))
			if res.StatusCode != 200 || body(t, res) != config34 || res.Header.Get("Set-Cookie") != "" || f.redeem.redeems != 1 {
				t.Errorf("%s: %d %v", name, res.StatusCode, f.decisions[0].Denial)
			}
		}
	}
}

func TestAttack_T47_AnAcceptHeaderWithoutASupportedVersionIsFinal(t *testing.T) {
	f := newFixture()
	f.Upstream = remote(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) }), false)
	r := get("/config/worker", good)
	r.Header.Set("Accept", "application/vnd.coreos.ignition+json;version=4.0.0")
	if res := f.do(t, r); res.StatusCode != 400 || f.decisions[0].Denial.Code != reason.Malformed {
		t.Errorf("%d %v", res.StatusCode, f.decisions[0].Denial)
	}
}

// A 400 of the Machine Config Server means that it will never have a config for this client.
// With a 503 instead, the client would try again indefinitely.
func TestUpstream400_IsMalformed(t *testing.T) {
	for name, accept := range map[string]string{
		"a header that the gate can read": ignition34,
		"a first version that no server has": "application/vnd.coreos.ignition+json;version=4.0.0, " +
			"application/vnd.coreos.ignition+json;version=3.4.0;q=0.5",
		"a header with no version":                  "*/*",
		"a header over what a parser usually reads": ignition34 + strings.Repeat(", text/plain", 200),
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			t.Run(method+" with "+name, func(t *testing.T) {
				f := newFixture()
				f.Upstream = remote(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					http.Error(w, "no", http.StatusBadRequest)
				}), false)
				r := get("/config/worker", good)
				r.Method = method
				r.Header.Set("Accept", accept)
				if res := f.do(t, r); res.StatusCode != 400 || f.decisions[0].Denial.Code != reason.Malformed ||
					f.redeem.redeems != 0 {
					t.Errorf("status %d, %v, %d uses", res.StatusCode, f.decisions[0].Denial, f.redeem.redeems)
				}
			})
		}
	}
}

// An upstream within the process, which may ignore the errors of Write.
func TestAttack_T47_AnUpstreamOfTheProcess(t *testing.T) {
	write := func(parts ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for _, part := range parts {
				_, _ = io.WriteString(w, part)
			}
		}
	}
	length := func(n string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", n)
			write(config34[:40], config34[40:])(w, r)
		}
	}
	for name, c := range map[string]struct {
		upstream http.HandlerFunc
		code     reason.Code
	}{
		"a config in two parts":                   {write(config34[:40], config34[40:]), 0},
		"of the stated length":                    {length(strconv.Itoa(len(config34))), 0},
		"a whole config, and more than MaxConfig": {write(config34, strings.Repeat(" ", 4096)), reason.UpstreamInvalid},
		"a negative length":                       {length("-1"), reason.UpstreamInvalid},
		"a length over every limit":               {length("9223372036854775807"), reason.UpstreamInvalid},
		"a length that is no number":              {length("99999999999999999999"), reason.UpstreamInvalid},
		"nothing":                                 {write(), reason.UpstreamUnavailable},
		"an empty body":                           {write(""), reason.UpstreamInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture()
			f.MaxConfig, f.Upstream = 4096, c.upstream
			res := f.do(t, get("/config/worker", good))
			d := f.decisions[0].Denial
			if c.code == 0 && (d != nil || body(t, res) != config34) || c.code != 0 && (d == nil || d.Code != c.code) {
				t.Errorf("status %d, %v", res.StatusCode, d)
			}
			if got := res.Header.Get("Content-Type"); c.code == 0 && got != "application/json" {
				t.Errorf("content type %q", got)
			}
		})
	}
}

// The audit log has the cause of a failure.
func TestUpstreamDenials_NameTheCause(t *testing.T) {
	base, err := url.Parse("http://mcs.example.com:22623")
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{}
	broken := Proxy(base, transport(func(r *http.Request) (*http.Response, error) {
		hosts = append(hosts, cmp.Or(r.Host, r.URL.Host))
		return nil, errors.New("no route to host")
	}))
	source := Source{Config: func(string, specversion.Accept) (*Rendered, error) {
		return nil, reason.Deny(reason.ConfigUnavailable, "no config of this pool")
	}}
	for want, upstream := range map[string]http.Handler{
		"no route to host": broken, "no config of this pool": source,
		"leads back to a gate": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(508) }),
		"more than 40 bytes":   serve(config34), "status 502": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(502)
		}),
	} {
		f := newFixture()
		f.Upstream, f.MaxConfig = upstream, 40
		f.do(t, get("/config/worker", good))
		if d := f.decisions[0].Denial; d == nil || !strings.Contains(d.Error(), want) {
			t.Errorf("%v, expected %q", d, want)
		}
	}
	// Without a gate in front, too, it answers as a proxy does.
	rec := httptest.NewRecorder()
	if broken.ServeHTTP(rec, get("/config/worker", "")); rec.Code != http.StatusBadGateway {
		t.Errorf("status %d", rec.Code)
	}
	if !slices.Equal(hosts, []string{base.Host, base.Host}) {
		t.Errorf("hosts %q", hosts)
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// MaxConfig also limits what is in memory already, as administrators expect.
func TestMaxConfig_AppliesToASource(t *testing.T) {
	rendered, err := NewRendered([]byte(config34))
	if err != nil {
		t.Fatal(err)
	}
	for most, want := range map[int]int{len(config34): 200, len(config34) - 1: 503} {
		f := newFixture()
		f.MaxConfig = most
		f.Upstream = always(rendered)
		if res := ask(f.Config, get("/config/worker", good)); res.StatusCode != want || want == 503 &&
			!strings.Contains(f.decisions[0].Denial.Error(), "UpstreamInvalid: the response has more than") {
			t.Errorf("at most %d bytes: %d, %v", most, res.StatusCode, f.decisions[0].Denial)
		}
	}
	// Without a gate it has the headers of the Machine Config Server.
	rec := httptest.NewRecorder()
	always(rendered).ServeHTTP(rec, get("/config/worker", ""))
	if h := rec.Header(); h.Get("Content-Type") != "application/json" ||
		h.Get("Content-Length") != strconv.Itoa(len(config34)) {
		t.Errorf("%v", h)
	}
}

// Inside a server, a reverse proxy answers a response that breaks off with a panic. The gate answers 503.
func TestAttack_T47_AResponseThatBreaksOffInsideAServer(t *testing.T) {
	f := newFixture()
	f.Upstream = remote(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(config34)))
		_, _ = io.WriteString(w, config34[:40])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}), false)
	s := httptest.NewTLSServer(New(f.Config))
	t.Cleanup(s.Close)
	r, err := http.NewRequest(http.MethodGet, s.URL+"/config/worker", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer good")
	res, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("status %d", res.StatusCode)
	}
}

// A gate as upstream decides nothing, on any path. The gate in front returns a temporary denial.
func TestGateBehindAGate_AnswersLoopDetected(t *testing.T) {
	inner := newFixture()
	inner.policy.Mode = Off
	outer := newFixture()
	outer.Upstream = remote(t, New(inner.Config), true)
	res := outer.do(t, get("/config/worker", good))
	if res.StatusCode != 503 || len(outer.decisions) != 1 ||
		outer.decisions[0].Denial.Code != reason.UpstreamUnavailable || outer.redeem.redeems != 0 {
		t.Errorf("status %d, %d decisions", res.StatusCode, len(outer.decisions))
	}
	if len(inner.decisions) != 0 || len(inner.lines) != 0 {
		t.Errorf("the inner gate made %d decisions", len(inner.decisions))
	}
	for _, via := range []string{Via, "1.0 proxy, " + Via, "1.0 proxy,1.1  mcs-attest"} {
		for _, path := range []string{"/config/worker", "/healthz", "/readyz", "/"} {
			r := get(path, good)
			r.Header.Set("Via", via)
			if res := inner.do(t, r); res.StatusCode != 508 {
				t.Errorf("%s via %q: %d", path, via, res.StatusCode)
			}
		}
	}
	r := get("/config/worker", "")
	r.Header.Set("Via", "1.1 other")
	if res := inner.do(t, r); res.StatusCode != 200 {
		t.Errorf("via another proxy: %d", res.StatusCode)
	}
}

// An upstream of the same process that panics must close the connection, so that the client
// gets an error and tries again, never a truncated response.
func TestAttack_T47_AnUpstreamThatPanicsBreaksTheConnection(t *testing.T) {
	for _, after := range []string{"", config34[:40], config34} {
		f := newFixture()
		f.Upstream = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, after)
			panic(http.ErrAbortHandler)
		})
		s := httptest.NewTLSServer(New(f.Config))
		r, err := http.NewRequest(http.MethodGet, s.URL+"/config/worker", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer good")
		if res, err := s.Client().Do(r); err == nil {
			_ = res.Body.Close()
			t.Errorf("after %d bytes: status %d", len(after), res.StatusCode)
		}
		s.Close()
		if f.redeem.redeems != 0 {
			t.Error("a use was taken")
		}
	}
}

func TestAttack_T47_AnUpstreamWithAnotherCertificate(t *testing.T) {
	s := httptest.NewTLSServer(serve(config34))
	t.Cleanup(s.Close)
	base, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture()
	f.Upstream = Proxy(base, &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}})
	if res := f.do(t, get("/config/worker", good)); res.StatusCode != 503 || f.redeem.redeems != 0 {
		t.Errorf("status %d", res.StatusCode)
	}
}
