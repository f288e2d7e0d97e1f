// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// preflight is a gate whose upstream counts its renders.
type preflight struct {
	*fixture
	t        *testing.T
	gate     http.Handler
	rendered atomic.Int32
	version  atomic.Int32 // of the config
	clock    time.Time
}

func newPreflight(t *testing.T) *preflight {
	p := &preflight{fixture: newFixture(), t: t, clock: noon}
	p.Upstream = remote(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.rendered.Add(1)
		fmt.Fprintf(w, `{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":%q}]}}`,
			fmt.Sprintf("%s/%d", r.URL.Path, p.version.Load()))
	}), false)
	p.Now = func() time.Time { return p.clock }
	p.Observe, p.Requested = nil, nil
	p.gate = New(p.Config)
	return p
}

func (p *preflight) ask(r *http.Request) (int, string) {
	p.t.Helper()
	rec := httptest.NewRecorder()
	p.gate.ServeHTTP(rec, r)
	return rec.Code, rec.Body.String()
}

// A boot sends HEAD, by the agent, and then GET, by Ignition. The Machine Config Server
// renders once for both.
func TestCache_RequestsTheUpstreamOncePerBoot(t *testing.T) {
	p := newPreflight(t)
	agent := head("/config/worker", good)
	agent.Header.Set("User-Agent", "mcs-attest-agent/1")
	for range 3 { // the gate may say 503 for a while
		if status, _ := p.ask(agent); status != 200 {
			t.Fatalf("HEAD: %d", status)
		}
		p.clock = p.clock.Add(2 * time.Second)
	}
	status, body := p.ask(get("/config/worker", good))
	if status != 200 || !strings.Contains(body, `"/config/worker/0"`) || p.redeem.redeems != 1 {
		t.Errorf("GET: %d %s, %d uses", status, body, p.redeem.redeems)
	}
	if n := p.rendered.Load(); n != 1 {
		t.Errorf("the upstream rendered %d times", n)
	}
}

// Many machines that boot at the same time share one preflight's response.
func TestCache_SharesAPreflight(t *testing.T) {
	p := newPreflight(t)
	p.fixture.policy.Mode = Off // the fixture's records are for one request at a time
	p.Concurrent = 1            // the others wait for the first one's response
	p.gate = New(p.Config)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if status, _ := p.ask(head("/config/worker", "")); status != 200 {
				t.Errorf("HEAD: %d", status)
			}
		})
	}
	all.Wait()
	if n := p.rendered.Load(); n != 1 {
		t.Errorf("the upstream rendered %d times", n)
	}
}

func TestCache_ServesOnlyTheSameRequest(t *testing.T) {
	other := func(change func(*http.Request)) *http.Request {
		r := get("/config/worker", good)
		change(r)
		return r
	}
	for _, c := range []struct {
		name   string
		after  time.Duration
		ask    *http.Request
		status int
		renews int32
	}{
		{"the same request", 30 * time.Second, get("/config/worker", good), 200, 0},
		{"the same request, too late", 30*time.Second + 1, get("/config/worker", good), 200, 1},
		{"the same request when the clock went back", -time.Second, get("/config/worker", good), 200, 1},
		{"another spec version", 0,
			other(func(r *http.Request) { r.Header.Set("Accept", strings.Replace(ignition34, "3.4", "3.5", 1)) }), 200, 1},
		{"no version, so the User-Agent may decide", 0, other(func(r *http.Request) { r.Header.Del("Accept") }), 200, 1},
		{"without a token", 0, get("/config/worker", ""), 401, 0},
		{"with a wrong token", 0, get("/config/worker", "wrong"), 401, 0},
		{"another pool with this pool's token", 0, get("/config/master", good), 403, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPreflight(t)
			if status, _ := p.ask(head("/config/worker", good)); status != 200 {
				t.Fatalf("HEAD: %d", status)
			}
			p.clock = p.clock.Add(c.after)
			p.version.Store(1)
			status, body := p.ask(c.ask)
			if status != c.status || p.rendered.Load() != 1+c.renews {
				t.Errorf("status %d, rendered %d times", status, p.rendered.Load())
			}
			if want := fmt.Sprintf("/%d\"", c.renews); status == 200 && !strings.Contains(body, want) {
				t.Errorf("%s, want %s", body, want)
			}
		})
	}
}

// Each GET requests the config from the upstream, so no served config is older than a boot.
func TestCache_CachesNoResponseToGET(t *testing.T) {
	p := newPreflight(t)
	for range 3 {
		p.ask(get("/config/worker", good))
	}
	if n := p.rendered.Load(); n != 3 {
		t.Errorf("the upstream rendered %d times", n)
	}
}

// The pre-approved config and the full one of a pool are not each other's preflight (rule 6 of
// docs/security-rules.md).
func TestCache_SeparatesThePreApprovedConfig(t *testing.T) {
	for _, first := range []string{good, ""} {
		p := newPreflight(t)
		p.fixture.policy.PreApproved = true
		p.PreApproved = serve(`{"ignition":{"version":"3.4.0"}}`)
		p.gate = New(p.Config)
		for _, r := range []*http.Request{head("/config/worker", first), get("/config/worker", ""),
			head("/config/worker", first), get("/config/worker", good)} {
			status, body := p.ask(r)
			full := r.Header.Get("Authorization") != ""
			if status != 200 || r.Method == http.MethodGet && strings.Contains(body, "storage") != full {
				t.Errorf("after HEAD with %q, %s with %q: %d %s", first, r.Method, r.Header.Get("Authorization"), status, body)
			}
		}
	}
}

// A Source has its configs in memory, so that its response to HEAD is not cached.
func TestCache_DoesNotCacheASource(t *testing.T) {
	configs := []string{config34, strings.Replace(config34, "secret", "other", 1)}
	f := newFixture()
	i := 0
	f.Upstream = Source{Config: func(string, specversion.Accept) (*Rendered, error) {
		i++
		return NewRendered([]byte(configs[i-1]))
	}}
	g := New(f.Config)
	for _, r := range []*http.Request{head("/config/worker", good), get("/config/worker", good)} {
		rec := httptest.NewRecorder()
		if g.ServeHTTP(rec, r); r.Method == http.MethodGet && rec.Body.String() != configs[1] {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
	}
}

// A cached response needs no slot, however many responses of the upstream are being read.
func TestCache_NeedsNoSlot(t *testing.T) {
	f := newFixture()
	f.policy.Mode, f.Concurrent = Off, 1
	f.Observe, f.Requested = nil, nil
	entered, leave := make(chan struct{}), make(chan struct{})
	f.Upstream = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/slow") {
			close(entered)
			<-leave
		}
		serve(config34).ServeHTTP(w, r)
	})
	g := New(f.Config)
	g.ServeHTTP(httptest.NewRecorder(), head("/config/worker", ""))
	var slow sync.WaitGroup
	slow.Go(func() { g.ServeHTTP(httptest.NewRecorder(), get("/config/slow", "")) })
	<-entered
	rec := httptest.NewRecorder()
	if g.ServeHTTP(rec, get("/config/worker", "")); rec.Code != http.StatusOK {
		t.Errorf("status %d", rec.Code)
	}
	close(leave)
	slow.Wait()
}

// Parsing a config takes long, so that the last 32 are known by their digests.
func TestDigests(t *testing.T) {
	known := newDigests()
	pass := func(i int) *Rendered {
		t.Helper()
		c, err := known.pass([]byte(strings.Replace(config34, "secret", fmt.Sprint(i), 1)))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first, second, third := pass(0), pass(1), pass(2)
	for i := range 32 {
		pass(i)
	}
	if pass(0) != first || pass(1) != second {
		t.Error("a config was parsed twice")
	}
	pass(32)
	if pass(0) != first || pass(2) == third {
		t.Error("the config with the oldest use is not the one that was replaced")
	}
	other, err := known.pass([]byte(strings.Replace(config34, "3.4.0", "3.5.0", 1)))
	if err != nil || other.version == first.version {
		t.Errorf("another version: %v, %v", other, err)
	}
	for range 2 {
		if c, err := known.pass([]byte("garbage")); c != nil || err == nil {
			t.Errorf("garbage: %v, %v", c, err)
		}
	}
}

// Requests for more configs than the cache has replace each other's entries.
func TestDigests_ConcurrentRequestsGetTheirOwnConfig(t *testing.T) {
	known := newDigests()
	versions := []specversion.Version{{Major: 3, Minor: 4}, {Major: 3, Minor: 5}}
	var clients sync.WaitGroup
	for i := range 2 * 32 {
		want := versions[i%len(versions)]
		config := []byte(strings.NewReplacer("secret", fmt.Sprint(i), "3.4.0", want.String()).Replace(config34))
		clients.Go(func() {
			for range 200 {
				if c, err := known.pass(config); err != nil || c.version != want {
					t.Errorf("config %d has version %v, not %v (%v)", i, c.version, want, err)
					return
				}
			}
		})
	}
	clients.Wait()
}

// A denial is not cached: the machine tries again until the upstream recovers.
func TestCache_DoesNotCacheDenials(t *testing.T) {
	p := newPreflight(t)
	broken := atomic.Bool{}
	broken.Store(true)
	inner := p.Upstream
	p.Upstream = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		inner.ServeHTTP(w, r)
	})
	p.gate = New(p.Config)
	if status, _ := p.ask(head("/config/worker", good)); status != 503 {
		t.Fatalf("status %d", status)
	}
	broken.Store(false)
	if status, _ := p.ask(head("/config/worker", good)); status != 200 {
		t.Errorf("status %d", status)
	}
}

// In mode Off any client may send HEAD. What is cached for them is limited.
func TestCache_IsLimited(t *testing.T) {
	p := newPreflight(t)
	p.fixture.policy.Mode = Off
	for i := range 200 {
		p.ask(head(fmt.Sprintf("/config/pool-%d", i), ""))
	}
	cached := &p.gate.(*gate).cache
	if n := len(cached.answers); n != 16 {
		t.Errorf("%d responses are cached", n)
	}
	if all := cached.answers[:cap(cached.answers)]; slices.ContainsFunc(all[16:],
		func(a cachedAnswer) bool { return a.answer.parts != nil }) {
		t.Error("a dropped response still needs memory")
	}
	const limit = 32 << 20
	for i := range 3 {
		cached.put(cacheKey{byte(i)}, noon, &answer{parts: [][]byte{make([]byte, limit)}})
	}
	if len(cached.answers) != 1 || cached.bytes != limit {
		t.Errorf("%d answers of %d bytes", len(cached.answers), cached.bytes)
	}
	cached.put(cacheKey{9}, noon, &answer{parts: [][]byte{make([]byte, limit), {0}}})
	if cached.get(cacheKey{9}, noon) != nil || cached.get(cacheKey{2}, noon) == nil {
		t.Error("a response over the limit is cached, or it replaces another one")
	}
}

// The upstream and the check of its response read only the first line of a header. So the
// response to a preflight with one line does not apply to a request with two.
func TestCacheKey_SeparatesHeaderLines(t *testing.T) {
	const old = "text/plain"
	agents := func(r *http.Request, agent string) *http.Request {
		r.Header["Accept"] = []string{old, ignition34}
		r.Header.Set("User-Agent", agent)
		return r
	}
	for name, ask := range map[string][2]*http.Request{
		"one line, then two": {head("/config/worker", good), agents(get("/config/worker", good), "Ignition/2.20.0")},
		"another User-Agent": {agents(head("/config/worker", good), "Ignition/0.35.0"),
			agents(get("/config/worker", good), "Ignition/2.20.0")},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPreflight(t)
			if name == "one line, then two" {
				ask[0].Header.Set("Accept", old+", "+ignition34)
			}
			for _, r := range ask {
				if status, body := p.ask(r); status != 200 {
					t.Fatalf("%s: %d %s", r.Method, status, body)
				}
			}
			if n := p.rendered.Load(); n != 2 {
				t.Errorf("the upstream rendered %d times", n)
			}
		})
	}
}
