// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"testing"
	"testing/quick"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

func TestAttack_T41_PoolHiddenInThePath(t *testing.T) {
	// A24: like the Machine Config Server, the pool is path.Base of the decoded path.
	for _, c := range []struct {
		name, path, pool string // pool "": refused
	}{
		{"plain", "/config/worker", "worker"},
		{"one behind the other", "/config/worker/master", "master"},
		{"an escaped slash", "/config/worker%2fmaster", "master"},
		{"an escaped slash in capitals", "/config/worker%2Fmaster", "master"},
		{"two slashes", "/config//master", "master"},
		{"a slash at the end", "/config/master/", "master"},
		{"many slashes at the end", "/config/worker/master///", "master"},
		{"an escaped slash at the end", "/config/master%2f", "master"},
		{"no pool", "/config/", "config"},
		{"dot segments in between", "/config/worker/../master", "master"},
		{"dot segment at the end", "/config/worker/..", ""},
		{"escaped dot segment at the end", "/config/worker/%2e%2e", ""},
		{"one dot", "/config/.", ""},
		{"another case", "/config/Master", ""},
		{"escaped letters", "/config/%6daster", "master"},
		{"escaped twice", "/config/worker%252fmaster", ""},
		{"a zero byte", "/config/worker%00", ""},
		{"a line break", "/config/worker%0a", ""},
		{"a space", "/config/worker%20", ""},
		{"a backslash", "/config/worker%5cmaster", ""},
		{"a semicolon", "/config/worker;master", ""},
		{"a full-width letter", "/config/%ef%bd%8daster", ""},
		{"a name that is too long", "/config/" + strings.Repeat("a", 254), ""},
		{"a hyphen in front", "/config/-worker", ""},
		{"the pool in the query", "/config/worker?pool=master", "worker"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture()
			asked := ""
			f.Policy = func(pool string) (PoolPolicy, error) { asked = pool; return PoolPolicy{}, nil }
			// The token is for a worker: it opens only that pool, however it is spelled.
			res := f.do(t, get("http://gate"+c.path, good))
			if asked != c.pool {
				t.Errorf("the policy of %q, want %q", asked, c.pool)
			}
			want := http.StatusForbidden
			switch c.pool {
			case "worker":
				want = http.StatusOK
				if up := f.upstream[0].URL.Path; up != "/config/worker" {
					t.Errorf("the upstream was asked for %s", up)
				}
			case "":
				want = http.StatusServiceUnavailable
			}
			if res.StatusCode != want {
				t.Errorf("status %d, want %d", res.StatusCode, want)
			}
			if want != http.StatusOK && len(f.upstream) != 0 {
				t.Error("the upstream was asked")
			}
		})
	}
}

func TestAttack_T41_PoolIsPathBaseOrRefused(t *testing.T) {
	alphabet := []string{"/", "//", ".", "..", "worker", "master", "%2f", "W", "-", "a", "\x00", "\\", " ", "ä"}
	if err := quick.Check(func(picks []uint8) bool {
		p := prefix
		for _, i := range picks {
			p += alphabet[int(i)%len(alphabet)]
		}
		pool, ok := Pool(p)
		return !ok && pool == "" || ok && pool == path.Base(p)
	}, &quick.Config{MaxCount: 20000}); err != nil {
		t.Error(err)
	}
}

func FuzzPool(f *testing.F) {
	for _, p := range []string{"/config/worker", "/config/worker/master", "/config//", "/config/..", "/config/a.b-c",
		"", "/config/W"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		pool, ok := Pool(p)
		if !ok {
			return
		}
		if pool != path.Base(p) || pool != url.PathEscape(pool) || path.Clean(prefix+pool) != prefix+pool || pool == "" ||
			len(pool) > 253 {
			t.Fatalf("%q became %q", p, pool)
		}
	})
}

func FuzzBearer(f *testing.F) {
	for _, s := range []string{"Bearer x", "bearer x", "Bearer  x", "Bearer", "Basic x", "Bearer x y", "Bearer \x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		raw, err := bearer(http.Header{"Authorization": {s}})
		if err != nil {
			if reason.From(err).Code != reason.TokenInvalid {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		if !strings.EqualFold(s, "Bearer "+string(raw)) || len(raw) == 0 || strings.ContainsAny(string(raw), " \r\n\x00\"") {
			t.Fatalf("%q became %q", s, raw)
		}
	})
}

// A restore of the store that is noticed while the record is read makes all tokens void.
func TestAttack_T58_ATokenThatIsVoidAfterTheCheckGetsNoConfig(t *testing.T) {
	f, void := newFixture(), false
	f.Tokens = fakeTokens{verify: func([]byte) (token.Claims, error) {
		if void {
			return token.Claims{}, reason.Deny(reason.TokenInvalid, "the key is void")
		}
		return token.Claims{Pool: "worker"}, nil
	}}
	f.redeem.check = func() error {
		void = true
		return nil
	}
	res := f.do(t, get("/config/worker", good))
	if res.StatusCode != 401 || f.redeem.redeems != 0 || len(f.upstream) != 0 {
		t.Errorf("%d, %d uses, %d requests to the upstream", res.StatusCode, f.redeem.redeems, len(f.upstream))
	}
}

// Also A21: neither line nor decision contains a token, wherever it was in the request.
func TestAttack_T46_TokenInTheURL(t *testing.T) {
	const raw = "eyJhbGciOiJFUzI1NiJ9.eyJwb29sIjoid29ya2VyIn0.c2ln"
	newGate := func() *fixture {
		f := newFixture()
		f.Tokens = fakeTokens{verify: func(b []byte) (token.Claims, error) {
			if string(b) != raw {
				return token.Claims{}, reason.Deny(reason.TokenInvalid, "")
			}
			return token.Claims{Pool: "worker"}, nil
		}}
		return f
	}
	clean := func(f *fixture, res *http.Response) {
		t.Helper()
		out := fmt.Sprint(f.lines, res.Header, body(t, res))
		for _, d := range f.decisions {
			out += fmt.Sprintf("%+v %v", d, d.Denial)
		}
		for _, r := range f.upstream {
			out += fmt.Sprint(r.URL, r.RequestURI, r.Header)
		}
		if strings.Contains(out, raw) {
			t.Errorf("the token got out: %s", out)
		}
	}
	f := newGate()
	res := f.do(t, get("/config/worker", raw))
	if res.StatusCode != 200 {
		t.Fatalf("in the header: %d", res.StatusCode)
	}
	clean(f, res)
	for p, want := range map[string]int{
		"/config/worker?access_token=" + raw: 401, "/config/worker?token=" + raw: 401, "/config/worker?" + raw: 401,
		"/config/worker/" + raw: 503, "/config/" + raw + "/worker": 401, "/config/worker;token=" + raw: 503,
	} {
		for _, mode := range []Mode{Enforce, Audit} {
			f := newGate()
			f.policy.Mode = mode
			res := f.do(t, get(p, ""))
			if mode == Enforce && res.StatusCode != want {
				t.Errorf("%s: %d, want %d", p, res.StatusCode, want)
			}
			clean(f, res)
		}
	}
	// The form of RFC 6750 in a body is also ignored.
	f = newGate()
	r := httptest.NewRequest(http.MethodGet, "/config/worker", strings.NewReader("access_token="+raw))
	r.TLS = &tls.ConnectionState{}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if res := f.do(t, r); res.StatusCode != 401 {
		t.Errorf("in the body: %d", res.StatusCode)
	}
}

func TestAttack_T48_HEADRevealsNoLength(t *testing.T) {
	server := func(f *fixture) *httptest.Server {
		s := httptest.NewTLSServer(New(f.Config))
		t.Cleanup(s.Close)
		return s
	}
	ask := func(s *httptest.Server, method, pool, auth string) (int, http.Header, int64, string) {
		t.Helper()
		r, err := http.NewRequest(method, s.URL+"/config/"+pool, nil)
		if err != nil {
			t.Fatal(err)
		}
		if auth != "" {
			r.Header.Set("Authorization", auth)
		}
		res, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		res.Header.Del("Date")
		return res.StatusCode, res.Header, res.ContentLength, string(b)
	}
	f := newFixture()
	f.Observe, f.Requested = nil, nil
	f.Upstream = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/config/worker" {
			w.WriteHeader(500)
			return
		}
		serve(config34).ServeHTTP(w, r)
	})
	s := server(f)
	if status, _, n, _ := ask(s, "HEAD", "worker", "Bearer good"); status != 200 || n != int64(len(config34)) {
		t.Fatalf("with the token: %d, %d bytes", status, n)
	}
	for _, auth := range []string{"", "Bearer bad", "Basic x"} {
		status, header, n, text := ask(s, "GET", "worker", auth)
		if status != 401 || text == "" || strings.Contains(text, "worker") {
			t.Errorf("GET %q: %d %q", auth, status, text)
		}
		for _, pool := range []string{"worker", "infra"} {
			for _, method := range []string{"GET", "HEAD"} {
				status2, header2, n2, text2 := ask(s, method, pool, auth)
				if status2 != status || fmt.Sprint(header2) != fmt.Sprint(header) || n2 != n || method == "GET" && text2 != text ||
					method == "HEAD" && text2 != "" {
					t.Errorf("%s %s %q: %d %v %q differs from %d %v %q", method, pool, auth, status2, header2, text2, status,
						header, text)
				}
			}
		}
	}
}

func TestAttack_T48_FinalDenialsOfATokenReadAlike(t *testing.T) {
	seen := map[string]reason.Code{}
	for _, code := range []reason.Code{reason.TokenInvalid, reason.TokenExpired, reason.TokenSuperseded,
		reason.TokenUsedUp} {
		f := newFixture()
		f.redeem.check = func() error {
			return reason.Wrap(code, errors.New("the cause"), "the detail of %v", code)
		}
		res := f.do(t, get("/config/worker", good))
		seen[fmt.Sprint(res.StatusCode, res.Header, body(t, res))] = code
	}
	if len(seen) != 1 {
		t.Errorf("%d different answers: %v", len(seen), seen)
	}
	for text := range seen {
		if strings.Contains(text, "detail of") || strings.Contains(text, "the cause") {
			t.Errorf("the answer contains too much: %s", text)
		}
	}
}

func TestAttack_T50_HeaderInjection(t *testing.T) {
	const evil = "x\r\nPool \"master\" requested by address:\"10.0.0.1:1\"\x1b[2J\u2028\x00"
	f := newFixture()
	r := get("/config/worker", good)
	r.Header.Set("User-Agent", evil)
	r.Header.Set("Accept", evil+strings.Repeat("A", 10000))
	f.do(t, r)
	if len(f.lines) != 1 {
		t.Fatalf("%d lines", len(f.lines))
	}
	line := f.lines[0]
	if strings.ContainsAny(line, "\r\n\x1b\x00\u2028") || len(line) > 2000 || strings.Count(line, "Pool \"") != 1 {
		t.Errorf("the line was forged: %s", line)
	}
	if len(f.decisions) != 1 || f.decisions[0].Label != "worker" {
		t.Errorf("%+v", f.decisions)
	}
}

func TestAttack_T50_APoolsNameIsNeverALabelOrALine(t *testing.T) {
	for _, p := range []string{"/config/a%0aPool", "/config/a%22b", "/config/%1b[2J",
		"/config/" + strings.Repeat("x", 300), "/config/<script>"} {
		f := newFixture()
		f.policy.Mode = Off
		res := f.do(t, get("http://gate"+p, ""))
		d := f.decisions[0]
		if res.StatusCode != 503 || d.Pool != "" || d.Label != "" || len(f.lines) != 0 || len(f.upstream) != 0 {
			t.Errorf("%s: %d %+v %q", p, res.StatusCode, d, f.lines)
		}
	}
	// A name without a policy is not a label.
	f := newFixture()
	f.Policy = func(string) (PoolPolicy, error) { return PoolPolicy{}, reason.Deny(reason.PoolUnknown, "") }
	f.do(t, get("/config/random-name", ""))
	if d := f.decisions[0]; d.Label != "" || d.Pool != "random-name" {
		t.Errorf("%+v", d)
	}
}
