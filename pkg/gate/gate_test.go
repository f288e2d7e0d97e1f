// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

const (
	config34   = `{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/secret"}]}}`
	ignition34 = "application/vnd.coreos.ignition+json;version=3.4.0, */*;q=0.1"
	good       = "good" // the token that fakeTokens accepts for a worker
)

// fakeTokens is a verifier; nil accepts the token "good" for the pool worker.
type fakeTokens struct {
	verify func(raw []byte) (token.Claims, error)
}

func (f fakeTokens) Verify(_ time.Time, raw []byte) (token.Claims, error) {
	if f.verify != nil {
		return f.verify(raw)
	}
	if string(raw) != good {
		return token.Claims{}, reason.Deny(reason.TokenInvalid, "not the good one")
	}
	return token.Claims{Pool: "worker", ID: "jti-1", Subject: "ns/worker-a", MachineUID: "uid"}, nil
}

// fakeRedeem counts its calls; a nil func allows.
type fakeRedeem struct {
	check, redeem   func() error
	checks, redeems int
	own             *credential.Credential // of the last redemption
}

func (f *fakeRedeem) Check(_ context.Context, _ token.Claims) (Redemption, error) {
	f.checks++
	if f.check != nil {
		return f, f.check()
	}
	return f, nil
}

func (f *fakeRedeem) Redeem(_ context.Context, own *credential.Credential) error {
	f.redeems++
	f.own = own
	if f.redeem != nil {
		return f.redeem()
	}
	return nil
}

// fixture is a gate whose parts may be changed before the first request.
type fixture struct {
	Config
	policy    PoolPolicy
	redeem    *fakeRedeem
	decisions []Decision
	lines     []string
	upstream  []*http.Request // as received by the upstream
}

func newFixture() *fixture {
	f := &fixture{redeem: &fakeRedeem{}, policy: PoolPolicy{Label: "worker"}}
	f.Config = Config{
		Policy:    func(string) (PoolPolicy, error) { return f.policy, nil },
		Tokens:    fakeTokens{},
		Redeem:    f.redeem,
		Observe:   func(_ *http.Request, d Decision) { f.decisions = append(f.decisions, d) },
		Requested: func(_ *http.Request, _ bool, line string) { f.lines = append(f.lines, line) },
		Now:       func() time.Time { return noon },
	}
	f.Upstream = serve(config34)
	return f
}

func serve(config string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(config)))
		_, _ = io.WriteString(w, config)
	})
}

// do sends a request, and checks what applies to every response.
func (f *fixture) do(t testing.TB, r *http.Request) *http.Response {
	t.Helper()
	c := f.Config
	inner := c.Upstream
	c.Upstream = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.upstream = append(f.upstream, r)
		inner.ServeHTTP(w, r)
	})
	rec := httptest.NewRecorder()
	New(c).ServeHTTP(rec, r)
	res := rec.Result()
	h := res.Header
	switch {
	case res.StatusCode >= 300 && res.StatusCode < 400:
		t.Errorf("a redirect: %d", res.StatusCode)
	case res.StatusCode == 200 && strings.HasPrefix(r.URL.Path, prefix) && h.Get("Content-Length") == "0":
		t.Error("an empty 200 provisions nothing")
	case res.StatusCode != 200 && res.StatusCode < 400:
		t.Errorf("status %d: Ignition does not handle it", res.StatusCode)
	}
	if h.Get("Content-Length") == "" {
		t.Error("no Content-Length")
	}
	return res
}

// get returns a request over TLS for a path with a token, or without one if it is "".
func get(path, raw string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.TLS = &tls.ConnectionState{}
	r.Header.Set("Accept", ignition34)
	r.Header.Set("User-Agent", "Ignition/2.20.0")
	if raw != "" {
		r.Header.Set("Authorization", "Bearer "+raw)
	}
	return r
}

func body(t testing.TB, res *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestConfig_IsServedForAToken(t *testing.T) {
	f := newFixture()
	res := f.do(t, get("/config/worker", good))
	if res.StatusCode != 200 || body(t, res) != config34 || res.Header.Get("Cache-Control") != "no-store" ||
		res.Header.Get("Content-Type") != "application/json" || res.ContentLength != int64(len(config34)) {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	if d := f.decisions[0]; d.Outcome != "allowed" || d.Pool != "worker" || d.Label != "worker" || d.Denial != nil ||
		d.Claims.ID != "jti-1" {
		t.Errorf("decision %+v", d)
	}
	if f.redeem.redeems != 1 {
		t.Errorf("%d uses taken", f.redeem.redeems)
	}
}

func TestModes(t *testing.T) {
	const preApproved = `{"ignition":{"version":"3.4.0"},"systemd":{}}`
	type out struct {
		status       int
		body         string
		outcome      string
		code         reason.Code
		uses, checks int
	}
	allowed := func(s, outcome string) out { return out{status: 200, body: s, outcome: outcome} }
	used := out{status: 200, body: config34, outcome: "allowed", uses: 1, checks: 1}
	denied := func(status int, c reason.Code) out { return out{status: status, outcome: "denied", code: c} }
	for _, c := range []struct {
		name   string
		policy PoolPolicy
		auth   []string
		check  error
		want   out
	}{
		{"enforce, good token", PoolPolicy{}, []string{"Bearer good"}, nil, used},
		{"enforce, the scheme in small letters", PoolPolicy{}, []string{"bearer good"}, nil, used},
		{"enforce, none", PoolPolicy{}, nil, nil, denied(401, reason.TokenMissing)},
		{"enforce, bad token", PoolPolicy{}, []string{"Bearer bad"}, nil, denied(401, reason.TokenInvalid)},
		{"enforce, two tokens", PoolPolicy{}, []string{"Bearer good", "Bearer good"}, nil, denied(401, reason.TokenInvalid)},
		{"enforce, two tokens in one header", PoolPolicy{}, []string{"Bearer good, Bearer good"}, nil,
			denied(401, reason.TokenInvalid)},
		{"enforce, another scheme", PoolPolicy{}, []string{"Basic good"}, nil, denied(401, reason.TokenInvalid)},
		{"enforce, an empty header", PoolPolicy{}, []string{""}, nil, denied(401, reason.TokenInvalid)},
		{"enforce, only a scheme", PoolPolicy{}, []string{"Bearer "}, nil, denied(401, reason.TokenInvalid)},
		{"enforce, an oversized token", PoolPolicy{}, []string{"Bearer " + strings.Repeat("g", 4097)},
			nil, denied(401, reason.TokenInvalid)},
		{"enforce, the record denies", PoolPolicy{}, []string{"Bearer good"}, reason.Deny(reason.TokenUsedUp, ""),
			out{401, "", "denied", reason.TokenUsedUp, 0, 1}},
		{"enforce, the record denies for now", PoolPolicy{}, []string{"Bearer good"}, reason.Deny(reason.Quarantined, ""),
			out{503, "", "denied", reason.Quarantined, 0, 1}},
		{"enforce, the store has an error of its own", PoolPolicy{}, []string{"Bearer good"}, errors.New("disk"),
			out{503, "", "denied", reason.Internal, 0, 1}},
		{"audit, good token: counts no use", PoolPolicy{Mode: Audit}, []string{"Bearer good"}, nil,
			out{200, config34, "allowed", 0, 0, 1}},
		{"audit, none", PoolPolicy{Mode: Audit}, nil, nil, out{200, config34, "would-deny", reason.TokenMissing, 0, 0}},
		{"audit, bad token", PoolPolicy{Mode: Audit}, []string{"Bearer bad"}, nil,
			out{200, config34, "would-deny", reason.TokenInvalid, 0, 0}},
		{"off, none", PoolPolicy{Mode: Off}, nil, nil, allowed(config34, "allowed")},
		{"off, bad token", PoolPolicy{Mode: Off}, []string{"Bearer bad"}, nil, allowed(config34, "allowed")},
		{"pre-approved, none", PoolPolicy{PreApproved: true}, nil, nil, allowed(preApproved, "pre-approved")},
		{"pre-approved, good token", PoolPolicy{PreApproved: true}, []string{"Bearer good"}, nil, used},
		{"pre-approved, a bad token is not none", PoolPolicy{PreApproved: true}, []string{"Bearer bad"},
			nil, denied(401, reason.TokenInvalid)},
		{"pre-approved, an empty header is not none", PoolPolicy{PreApproved: true}, []string{""}, nil,
			denied(401, reason.TokenInvalid)},
		{"pre-approved, another scheme is not none", PoolPolicy{PreApproved: true}, []string{"Basic Zm9v"}, nil,
			denied(401, reason.TokenInvalid)},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture()
			f.policy, f.PreApproved = c.policy, serve(preApproved)
			f.redeem.check = func() error { return c.check }
			r := get("/config/worker", "")
			if c.auth != nil {
				r.Header["Authorization"] = c.auth
			}
			res := f.do(t, r)
			d := f.decisions[0]
			got := out{res.StatusCode, body(t, res), d.Outcome, 0, f.redeem.redeems, f.redeem.checks}
			if d.Denial != nil {
				got.code = d.Denial.Code
			}
			if res.StatusCode != 200 {
				got.body = ""
				if len(f.lines) != 0 || len(f.upstream) != 0 {
					t.Errorf("denied, and yet lines %q, upstream asked %d times", f.lines, len(f.upstream))
				}
			}
			if got != c.want {
				t.Errorf("got %+v\nwant %+v", got, c.want)
			}
		})
	}
	t.Run("pre-approved, but there is no such config", func(t *testing.T) {
		f := newFixture()
		f.policy.PreApproved = true
		if res := f.do(t, get("/config/worker", "")); res.StatusCode != 503 {
			t.Error(res.StatusCode)
		}
	})
}

func TestConfig_CountsAUseOnlyForACompleteResponse(t *testing.T) {
	f := newFixture()
	f.Upstream = serve(config34[:20])
	if res := f.do(t, get("/config/worker", good)); res.StatusCode != 503 || f.redeem.redeems != 0 {
		t.Errorf("broken upstream: %d, %d uses", res.StatusCode, f.redeem.redeems)
	}
	f = newFixture()
	f.redeem.redeem = func() error { return reason.Deny(reason.TokenUsedUp, "another request was faster") }
	if res := f.do(t, get("/config/worker", good)); res.StatusCode != 401 || strings.Contains(body(t, res), "secret") {
		t.Errorf("lost the race: %d", res.StatusCode)
	}
}

func TestAdmit_LimitsASource(t *testing.T) {
	f := newFixture()
	f.Admit = func(*http.Request) error { return reason.Deny(reason.RateLimited, "") }
	if res := f.do(t, get("/config/worker", good)); res.StatusCode != 503 || len(f.upstream)+f.redeem.checks != 0 {
		t.Error(res.StatusCode)
	}
}

// A20: no mode, and no token, opens the gate to a request without TLS. Ignition does not repeat
// the request, also if no policy covers the pool.
func TestA20_PlainHTTPIsDeniedFinally(t *testing.T) {
	for _, mode := range []Mode{Enforce, Audit, Off} {
		for path, pool := range map[string]string{"/config/worker": "worker", "/config/other": "other", "/config/_": ""} {
			f := newFixture()
			f.policy.Mode, f.policy.PreApproved, f.policy.OpenWithoutToken = mode, true, true
			for _, raw := range []string{good, ""} {
				r := get(path, raw)
				r.TLS = nil
				res := f.do(t, r)
				d := f.decisions[len(f.decisions)-1]
				if res.StatusCode != 401 || len(f.upstream)+f.redeem.checks != 0 || d.Outcome != "denied" ||
					d.Denial.Code != reason.Plaintext || d.Pool != pool {
					t.Errorf("mode %d, %s, token %q: %d, %+v", mode, path, raw, res.StatusCode, d)
				}
			}
		}
	}
	f := newFixture()
	f.Admit = func(*http.Request) error { return reason.Deny(reason.RateLimited, "") }
	r := get("/config/worker", good)
	r.TLS = nil
	if res := f.do(t, r); res.StatusCode != 503 || len(f.upstream) != 0 {
		t.Errorf("over the rate limit, with a token: %d", res.StatusCode)
	}
}

func TestA22_FinalDenialsAre4xxAndTemporaryOnes5xx(t *testing.T) {
	for _, code := range reason.Codes() {
		f := newFixture()
		f.Tokens = fakeTokens{verify: func([]byte) (token.Claims, error) { return token.Claims{}, reason.Deny(code, "") }}
		res := f.do(t, get("/config/worker", good))
		if final := res.StatusCode >= 400 && res.StatusCode < 500; final == code.Temporary() || !final &&
			res.StatusCode != 503 {
			t.Errorf("%v: %d", code, res.StatusCode)
		}
	}
}

func TestA23_HEADRequiresTheSameTokenAndCountsNoUse(t *testing.T) {
	f := newFixture()
	r := get("/config/worker", good)
	r.Method = http.MethodHead
	res := f.do(t, r)
	if res.StatusCode != 200 || res.ContentLength != int64(len(config34)) || body(t, res) != "" || f.redeem.checks != 1 ||
		f.redeem.redeems != 0 {
		t.Errorf("%d, %d bytes announced, %d uses", res.StatusCode, res.ContentLength, f.redeem.redeems)
	}
	r.Header.Del("Authorization")
	if res = f.do(t, r); res.StatusCode != 401 {
		t.Errorf("without a token: %d", res.StatusCode)
	}
}

func TestA26_OnlyAcceptAndUserAgentReachTheUpstream(t *testing.T) {
	f := newFixture()
	r := get("/config/worker?a=b", good)
	r.Header.Set("Accept-Encoding", "gzip")
	r.Header.Set("Cookie", "a=b")
	r.Header.Set("Forwarded", "for=1.2.3.4")
	r.Header.Set("If-None-Match", `"x"`)
	r.Header.Set("Range", "bytes=0-1")
	r.Header.Set("X-Forwarded-For", "1.2.3.4")
	f.do(t, r)
	up := f.upstream[0]
	if len(up.Header) != 2 || up.Header.Get("Accept") != ignition34 || up.Header.Get("User-Agent") != "Ignition/2.20.0" ||
		up.URL.String() != "/config/worker" || up.Method != http.MethodGet {
		t.Errorf("%s %s %v", up.Method, up.URL, up.Header)
	}
}

func TestA26_SourceServesOnlyAcceptedVersions(t *testing.T) {
	rendered, err := NewRendered([]byte(config34))
	if err != nil {
		t.Fatal(err)
	}
	source := Source{Config: func(pool string, accept specversion.Accept) (*Rendered, error) {
		if pool != "worker" {
			return nil, reason.Deny(reason.ConfigUnavailable, "no config")
		}
		return rendered.As(accept)
	}}
	for _, c := range []struct {
		name, pool, accept string
		status             int
	}{
		{"the same version", "worker", ignition34, 200},
		{"a newer one", "worker", strings.Replace(ignition34, "3.4", "3.6", 1), 200},
		{"an older one: it cannot be converted", "worker", strings.Replace(ignition34, "3.4", "3.3", 1), 400},
		{"another major version", "worker", strings.Replace(ignition34, "3.4", "4.0", 1), 400},
		{"curl", "worker", "*/*", 200},
		{"no header", "worker", "", 200},
		{"a pool without a config: it may come", "master", ignition34, 503},
	} {
		f := newFixture()
		f.policy.Mode, f.Upstream = Off, source
		r := get("/config/"+c.pool, "")
		r.Header.Set("Accept", c.accept)
		// Without do, because the source serves the gate itself.
		rec := httptest.NewRecorder()
		New(f.Config).ServeHTTP(rec, r)
		if rec.Code != c.status || c.status == 200 && rec.Body.String() != config34 {
			t.Errorf("%s: %d, want %d", c.name, rec.Code, c.status)
		}
		// Without a gate it answers like the Machine Config Server.
		rec = httptest.NewRecorder()
		source.ServeHTTP(rec, r)
		if want := map[int]int{200: 200, 400: 400, 503: 500}[c.status]; rec.Code != want || want == 200 &&
			rec.Body.String() != config34 {
			t.Errorf("%s: by itself %d, want %d", c.name, rec.Code, want)
		}
	}
	if _, err := NewRendered([]byte(config34 + "x")); err == nil {
		t.Error("took a config with trailing bytes")
	}
}

func TestF12_TheRequestLineIsTheMachineConfigServers(t *testing.T) {
	f := newFixture()
	r := get("/config/worker", good)
	r.RemoteAddr = "192.0.2.7:40312"
	f.do(t, r)
	want := `Pool "worker" requested by address:"192.0.2.7:40312" User-Agent:"Ignition/2.20.0" Accept-Header: "` +
		ignition34 + `"`
	if !slices.Equal(f.lines, []string{want}) {
		t.Errorf("got  %q\nwant %q", f.lines, want)
	}
}

// A line of the log stays short, whatever a client sends.
func TestAccessLine_IsLimited(t *testing.T) {
	empty := get("/", "")
	empty.Header.Set("User-Agent", "")
	empty.Header.Set("Accept", "")
	rest := len(accessLine("worker", "192.0.2.7:1", empty))
	for _, text := range []string{"u", "\x00", "\u2028", "\"", "\\", "\xff", "\U0001F600"} {
		for n, want := range map[int]int{63: 63, 64: 64, 65: 64, 10000: 64} {
			r := get("/config/worker", good)
			r.Header.Set("User-Agent", strings.Repeat(text, n))
			r.Header.Set("Accept", strings.Repeat(text, n))
			line := accessLine("worker", "192.0.2.7:1", r)
			if got := len(line) - rest; got > 2*want || text == "u" && got != 2*want {
				t.Errorf("%d times %q: %s", n, text, line)
			}
		}
	}
	r := get("/config/worker", good)
	r.Header.Set("Accept", " ~\x7f\x1f")
	if line := accessLine("worker", "192.0.2.7:1", r); !strings.HasSuffix(line, `Accept-Header: " ~??"`) {
		t.Error(line)
	}
}

// The token of the header, as RFC 6750 and the alphabet of token68 in RFC 9110 define it.
func TestBearer(t *testing.T) {
	for header, want := range map[string]string{
		"Bearer a": "a", "BEARER a": "a", "Bearer azAZ09-._~+/=": "azAZ09-._~+/=",
		"Bearer " + strings.Repeat("a", 4096): strings.Repeat("a", 4096),
		"Bearer " + strings.Repeat("a", 4097): "",
		"Bearer":                              "", "Bearer ": "", "Bearer  a": "", "Bearera": "", "a": "", "": "",
		"Basic a": "", "Bearer a b": "",
		"Bearer @": "", "Bearer [": "", "Bearer `": "", "Bearer {": "", "Bearer :": "", "Bearer ,": "", "Bearer \x7f": "",
		"Bearer \u00e9": "",
	} {
		got, err := bearer(http.Header{"Authorization": {header}})
		if string(got) != want || (err == nil) != (want != "") || err != nil && reason.From(err).Code != reason.TokenInvalid {
			t.Errorf("%.20q: %.20q, %v", header, got, err)
		}
	}
}

// What the fields of Config promise.
func TestNew_Defaults(t *testing.T) {
	g := New(Config{}).(*gate)
	if g.UpstreamTimeout != 8*time.Second || g.AnswerTimeout != 9*time.Second || g.MaxConfig != 16<<20 ||
		cap(g.slots) != 32 {
		t.Errorf("%v %v %d %d", g.UpstreamTimeout, g.AnswerTimeout, g.MaxConfig, cap(g.slots))
	}
}

// The policy's denial is the answer, and its pool is not requested.
func TestPolicy_DeniesAPool(t *testing.T) {
	f := newFixture()
	f.Policy = func(string) (PoolPolicy, error) { return PoolPolicy{Mode: Off}, reason.Deny(reason.PoolUnknown, "") }
	f.do(t, get("/config/worker", good))
	if d := f.decisions[0]; d.Denial == nil || d.Denial.Code != reason.PoolUnknown || len(f.upstream) > 0 {
		t.Errorf("%+v", d)
	}
}

func TestDecision_HasTheDuration(t *testing.T) {
	f := newFixture()
	clock := noon
	f.Now = func() time.Time { return clock }
	f.Upstream = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		clock = clock.Add(3 * time.Second)
		serve(config34).ServeHTTP(w, r)
	})
	f.do(t, get("/config/worker", good))
	if d := f.decisions[0]; d.Took != 3*time.Second {
		t.Errorf("took %v", d.Took)
	}
}

func TestF14_OutsideOfConfig(t *testing.T) {
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/healthz", 200}, {"HEAD", "/healthz", 200}, {"POST", "/healthz", 405}, {"GET", "/readyz", 200},
		{"HEAD", "/readyz", 200},
		{"GET", "/", 404}, {"GET", "/config", 404}, {"HEAD", "/x", 404}, {"GET", "//config/worker", 404},
		{"GET", "/Config/worker", 404},
		{"POST", "/config/worker", 405}, {"PUT", "/config/worker", 405}, {"OPTIONS", "/config/worker", 405},
		{"TRACE", "/", 405},
	} {
		f := newFixture()
		r := get("http://gate"+c.path, good)
		r.Method = c.method
		if res := f.do(t, r); res.StatusCode != c.status || res.Header.Get("Content-Length") != "0" || body(t, res) != "" ||
			len(f.upstream) != 0 || (res.Header.Get("Allow") == "GET, HEAD") != (c.status == 405) {
			t.Errorf("%s %s: %d %v", c.method, c.path, res.StatusCode, res.Header)
		}
	}
}

// A load balancer uses another replica while this one cannot serve a request, regardless of
// how often it probes.
func TestHealthy_IsCalledOnceASecond(t *testing.T) {
	f := newFixture()
	clock, healthy, asked := f.Now(), true, 0
	f.Now = func() time.Time { return clock }
	f.Healthy = func() bool { asked++; return healthy }
	g := New(f.Config)
	for _, step := range []struct {
		after          time.Duration
		healthy        bool
		status, asking int
	}{
		{0, true, 200, 1}, {0, false, 200, 1}, {999 * time.Millisecond, false, 200, 1}, {time.Millisecond, false, 503, 2},
		{time.Millisecond, true, 503, 2}, {time.Second, true, 200, 3}, {-time.Hour, false, 503, 4},
	} {
		clock, healthy = clock.Add(step.after), step.healthy
		rec := httptest.NewRecorder()
		g.ServeHTTP(rec, get("/healthz", ""))
		if rec.Code != step.status || asked != step.asking || rec.Body.Len() != 0 {
			t.Errorf("%+v: %d after asking %d times", step, rec.Code, asked)
		}
	}
}

func TestConcurrent_LimitsUpstreamResponses(t *testing.T) {
	// In a bubble the time stands while a goroutine can run, so no request that has a slot times out on a slow machine.
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.Concurrent, f.UpstreamTimeout = 1, 50*time.Millisecond
		f.Observe, f.Requested = nil, nil
		entered, leave := make(chan struct{}), make(chan struct{})
		f.Upstream = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			entered <- struct{}{}
			<-leave
			serve(config34).ServeHTTP(w, r)
		})
		f.policy.Mode = Off
		g, done := New(f.Config), make(chan struct{})
		go func() {
			defer close(done)
			g.ServeHTTP(httptest.NewRecorder(), get("/config/worker", ""))
		}()
		<-entered
		rec := httptest.NewRecorder()
		g.ServeHTTP(rec, get("/config/worker", ""))
		if rec.Code != http.StatusServiceUnavailable {
			t.Errorf("the second: %d", rec.Code)
		}
		close(leave)
		<-done
		go func() { <-entered }()
		rec = httptest.NewRecorder()
		g.ServeHTTP(rec, get("/config/worker", ""))
		if rec.Code != http.StatusOK {
			t.Errorf("the slot was not given back: %d", rec.Code)
		}
	})
}

// A client that does not wait is no outage of the Machine Config Server.
func TestConfig_ReportsAClientThatDisconnected(t *testing.T) {
	for _, disconnects := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture()
			f.policy.Mode = Audit
			f.Upstream = Proxy(&url.URL{Scheme: "https", Host: "mcs.test"}, silent{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if disconnects {
				time.AfterFunc(50*time.Millisecond, cancel)
			}
			f.do(t, get("/config/worker", "").WithContext(ctx))
			want := map[bool]string{true: "disconnected", false: "denied"}[disconnects]
			if len(f.decisions) != 1 || f.decisions[0].Outcome != want ||
				f.decisions[0].Denial.Code != reason.UpstreamUnavailable {
				t.Errorf("disconnects %v: %+v", disconnects, f.decisions)
			}
		})
	}
}

// silent never answers.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// Clients without a token use up the slots of an open pool. A machine of another pool with a valid token, or with the
// provisioning token, still receives its config.
func TestAttack_T61_ClientsWithoutATokenLeaveSlotsToProvenMachines(t *testing.T) {
	// In a bubble the time stands while a goroutine can run, so no request that has a slot times out on a slow machine.
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.Concurrent, f.UpstreamTimeout = 4, 50*time.Millisecond
		f.Observe, f.Requested = nil, nil
		f.Policy = func(pool string) (PoolPolicy, error) {
			if pool == "open" {
				return PoolPolicy{Mode: Audit}, nil
			}
			return PoolPolicy{ProvisioningToken: pool == "shared"}, nil
		}
		view := shared(t)
		f.Provisioning.View = func() provisioning.View { return view }
		entered, leave := make(chan struct{}, 16), make(chan struct{})
		f.Upstream = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/open") {
				entered <- struct{}{}
				<-leave
			}
			serve(config34).ServeHTTP(w, r)
		})
		g := New(f.Config)
		var flood sync.WaitGroup
		for i := range 8 {
			presented := []string{"", good}[i%2] // a token for another pool proves nothing here
			flood.Go(func() { g.ServeHTTP(httptest.NewRecorder(), get("/config/open", presented)) })
		}
		synctest.Wait() // the others wait for a slot
		if n := len(entered); n != 2 {
			t.Errorf("%d of 4 responses are read for clients without a token", n)
		}
		for pool, presented := range map[string]string{"worker": good, "shared": current} {
			rec := httptest.NewRecorder()
			if g.ServeHTTP(rec, get("/config/"+pool, presented)); rec.Code != http.StatusOK {
				t.Errorf("pool %s: status %d during the flood", pool, rec.Code)
			}
		}
		close(leave)
		flood.Wait()
		rec := httptest.NewRecorder()
		if g.ServeHTTP(rec, get("/config/open", "")); rec.Code != http.StatusOK {
			t.Errorf("after the flood: status %d", rec.Code)
		}
	})
}

// The provisioning token, which many machines have, does not take the slots of attested ones.
func TestAttack_T61_TheProvisioningTokenLeavesSlotsToAttestedMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.Concurrent, f.UpstreamTimeout = 4, 50*time.Millisecond
		f.Observe, f.Requested = nil, nil
		f.Policy = func(pool string) (PoolPolicy, error) { return PoolPolicy{ProvisioningToken: pool == "shared"}, nil }
		view := shared(t)
		f.Provisioning.View = func() provisioning.View { return view }
		entered, leave := make(chan struct{}, 16), make(chan struct{})
		f.Upstream = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/shared") {
				entered <- struct{}{}
				<-leave
			}
			serve(config34).ServeHTTP(w, r)
		})
		g := New(f.Config)
		var flood sync.WaitGroup
		for range 8 {
			flood.Go(func() { g.ServeHTTP(httptest.NewRecorder(), get("/config/shared", current)) })
		}
		synctest.Wait() // the others wait for a slot
		if n := len(entered); n != 3 {
			t.Errorf("%d of 4 responses are read for holders of the provisioning token", n)
		}
		rec := httptest.NewRecorder()
		if g.ServeHTTP(rec, get("/config/worker", good)); rec.Code != http.StatusOK {
			t.Errorf("an attested machine during the flood: status %d", rec.Code)
		}
		close(leave)
		flood.Wait()
	})
}

// HEAD takes no use of a token, and another Accept is not in the cache. So one token could have all responses of a
// Machine Config Server that renders eight configs per second.
func TestAttack_T61_EachTokenHasItsOwnRateLimit(t *testing.T) {
	f := newFixture()
	asked, left := 0, 2
	f.Tokens = fakeTokens{verify: func([]byte) (token.Claims, error) { return token.Claims{Pool: "worker"}, nil }}
	f.Upstream = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		serve(config34).ServeHTTP(w, r)
	})
	f.AdmitToken = func(*http.Request, token.Claims) error {
		if left--; left < 0 {
			return reason.Deny(reason.RateLimited, "too often")
		}
		return nil
	}
	for i, want := range []int{200, 200, 503, 503} {
		r := get("/config/worker", attested)
		r.Method = http.MethodHead
		r.Header.Set("Accept", fmt.Sprintf("%s, x/%d;q=0.01", ignition34, i))
		if res := f.do(t, r); res.StatusCode != want {
			t.Errorf("request %d: status %d, want %d", i, res.StatusCode, want)
		}
	}
	if asked != 2 || f.redeem.checks != 2 {
		t.Errorf("the upstream was asked %d times, the record %d times; want 2", asked, f.redeem.checks)
	}
	// A request over the source's limit counts once.
	f.Admit = func(*http.Request) error { return reason.Deny(reason.RateLimited, "too often") }
	left = 1
	if res := f.do(t, get("/config/worker", attested)); res.StatusCode != 200 || left != 0 {
		t.Errorf("status %d, %d left", res.StatusCode, left)
	}
	// Nor does a token override that limit without a limit of its own, where the pool needs none.
	f.policy.Mode = Off
	if res := f.do(t, get("/config/worker", attested)); res.StatusCode != 503 {
		t.Errorf("in mode Off: status %d", res.StatusCode)
	}
}

func TestConfig_CountsNoUseForADisconnectedClient(t *testing.T) {
	f := newFixture()
	ctx, cancel := context.WithCancel(context.Background())
	f.Upstream = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cancel()
		serve(config34).ServeHTTP(w, r)
	})
	f.do(t, get("/config/worker", good).WithContext(ctx))
	if f.redeem.redeems != 0 {
		t.Error("a use was taken")
	}
	// The upstream did not time out. Without a use to count, its response is as good as any other.
	var other context.Context
	other, cancel = context.WithCancel(context.Background())
	f.policy.Mode = Off
	f.do(t, get("/config/worker", "").WithContext(other))
	cancel()
	if d := f.decisions[1]; d.Denial != nil {
		t.Errorf("%v", d.Denial)
	}
}
