// SPDX-License-Identifier: Apache-2.0

package mcs_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/gate"
	"github.com/mcs-attest/mcs-attest/pkg/mcs"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/specversion"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

// accepts is the header of Ignition 2.x.
func accepts(version string) string {
	return "application/vnd.coreos.ignition+json;version=" + version + ", */*;q=0.1"
}

func ask(t testing.TB, c *mcs.Cache, r func() (*mcs.Answers, error), version string) *gate.Rendered {
	t.Helper()
	a, err := r()
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.For(specversion.ParseAccept(accepts(version)))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestCache_MakesEachContentOnce(t *testing.T) {
	var c mcs.Cache
	fresh := func() (*mcs.Answers, error) { return c.Answers(worker(ignition), extras()) }
	const clients = 32
	got := make([]*gate.Rendered, clients)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			a, err := fresh()
			if err != nil {
				t.Error(err)
				return
			}
			got[i], err = a.For(specversion.ParseAccept(accepts("3.4.0")))
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i := range got {
		if got[i] == nil || got[i] != got[0] {
			t.Fatalf("client %d has an answer of its own", i)
		}
	}
	// A client that is newer than the server receives the server's newest version.
	if ask(t, &c, fresh, "3.6.0") != ask(t, &c, fresh, "3.5.0") {
		t.Error("two answers of one version")
	}
	if ask(t, &c, fresh, "3.5.0") == ask(t, &c, fresh, "3.4.0") {
		t.Error("one answer of two versions")
	}
}

// A change of any field leads to another response.
func TestCache_DistinguishesContent(t *testing.T) {
	var c mcs.Cache
	seen := map[*gate.Rendered]string{}
	add := func(name string, fresh func() (*mcs.Answers, error)) {
		got := ask(t, &c, fresh, "3.5.0")
		if other, ok := seen[got]; ok {
			t.Errorf("%s: the answer is that of %s", name, other)
		}
		seen[got] = name
	}
	add("the first", func() (*mcs.Answers, error) { return c.Answers(worker(ignition), extras()) })
	for i := range reflect.TypeFor[mcs.Extras]().NumField() {
		x := extras()
		f := reflect.ValueOf(&x).Elem().Field(i)
		switch v := f.Addr().Interface().(type) {
		case *string:
			*v += "x"
		case *[]byte:
			*v = append(*v, 'x')
		case *secret.Bytes:
			*v = secret.New(append([]byte("x"), v.Expose()...))
		default:
			t.Fatalf("a field of type %s, which this test does not know", f.Type())
		}
		add(reflect.TypeFor[mcs.Extras]().Field(i).Name,
			func() (*mcs.Answers, error) { return c.Answers(worker(ignition), x) })
	}
	r := worker(ignition)
	r.Pool = "infra"
	add("the pool", func() (*mcs.Answers, error) { return c.Answers(r, extras()) })
	pre := worker(ignition)
	pre.PreApproved = true
	add("the pre-approved part", func() (*mcs.Answers, error) { return c.Answers(pre, extras()) })
	name := worker(ignition)
	name.Config.Name += "0"
	add("the rendered config's name", func() (*mcs.Answers, error) { return c.Answers(name, extras()) })
	add("the Ignition config", func() (*mcs.Answers, error) {
		return c.Answers(worker(strings.Replace(ignition, "AAAA", "BBBB", 1)), extras())
	})
}

// Moving bytes from one field to the next changes the digest.
func TestContent_SeparatesFields(t *testing.T) {
	var c mcs.Cache
	x, y := extras(), extras()
	x.KubeletCA, x.CloudCA = []byte("ab"), []byte("c")
	y.KubeletCA, y.CloudCA = []byte("a"), []byte("bc")
	if ask(t, &c, func() (*mcs.Answers, error) { return c.Answers(worker(ignition), x) }, "3.5.0") ==
		ask(t, &c, func() (*mcs.Answers, error) { return c.Answers(worker(ignition), y) }, "3.5.0") {
		t.Error("one answer for both")
	}
}

func TestCache_IsLimited(t *testing.T) {
	c := mcs.Cache{Limit: 64 << 10}
	pool := func(i int) func() (*mcs.Answers, error) {
		return func() (*mcs.Answers, error) {
			x := extras()
			x.CloudCA = []byte(strings.Repeat(fmt.Sprint(i%10), 10_000))
			return c.Answers(worker(ignition), x)
		}
	}
	first := ask(t, &c, pool(0), "3.5.0")
	if ask(t, &c, pool(0), "3.5.0") != first {
		t.Fatal("it was made twice")
	}
	for i := 1; i < 10; i++ {
		ask(t, &c, pool(i), "3.5.0")
		// The first one is used all the time.
		if ask(t, &c, pool(0), "3.5.0") != first {
			t.Fatalf("after %d others, the one that is in use was made again", i)
		}
	}
	second := ask(t, &c, pool(1), "3.5.0")
	for i := 2; i < 10; i++ {
		ask(t, &c, pool(i), "3.5.0")
	}
	if ask(t, &c, pool(1), "3.5.0") == second {
		t.Error("ten answers of 20 kB are kept in 64 kB")
	}
	// A response that is larger than the limit is served nevertheless.
	small := mcs.Cache{Limit: 1}
	if ask(t, &small, func() (*mcs.Answers, error) { return small.Answers(worker(ignition), extras()) }, "3.5.0") == nil {
		t.Error("no answer")
	}
}

func TestCache_CachesDenials(t *testing.T) {
	var c mcs.Cache
	a, err := c.Answers(worker(strings.Replace(ignition, `"storage":{`,
		`"storage":{"luks":[{"name":"data","device":"/dev/x"}],`, 1)), extras())
	if err != nil {
		t.Fatal(err)
	}
	_, first := a.For(specversion.ParseAccept(accepts("3.1.0")))
	_, second := a.For(specversion.ParseAccept(accepts("3.1.0")))
	//nolint:errorlint // the same cached value
	if first == nil || first != second || reason.From(first).Code != reason.ConfigUnavailable {
		t.Errorf("%v, then %v", first, second)
	}
	if _, err := a.For(specversion.ParseAccept(accepts("3.2.0"))); err != nil {
		t.Errorf("where LUKS is known: %v", err)
	}
}

// A caller gets the error for an invalid render immediately, and can keep its old answers.
func TestAnswers_RejectAnUnservableRender(t *testing.T) {
	var c mcs.Cache
	noServer := extras()
	noServer.APIServer = ""
	for _, broken := range []struct {
		name string
		r    *render.Rendered
		x    mcs.Extras
	}{
		{"two entries for one path", worker(strings.Replace(ignition, "/etc/kubernetes/kubelet.conf", mcs.KubeletCAPath, 1)),
			extras()},
		{"no JSON", worker(`{`), extras()},
		{"a token and no API server", worker(ignition), noServer},
	} {
		if _, err := c.Answers(broken.r, broken.x); reason.From(err).Code != reason.ConfigUnavailable {
			t.Errorf("%s: %v", broken.name, err)
		}
	}
}

// TestNegotiation_A26 compares the responses by Accept header with the Machine Config
// Server's statuses and versions. There are two intended differences: a config that cannot
// be converted is 503 instead of 500, so that clients try again, and 3.0 is served, which
// the server only advertises.
func TestNegotiation_A26(t *testing.T) {
	var c mcs.Cache
	luks := strings.Replace(ignition, `"storage":{`, `"storage":{"luks":[{"name":"data","device":"/dev/x"}],`, 1)
	var b strings.Builder
	for _, pool := range []struct{ name, config string }{{"what every version can say", ignition},
		{"with LUKS, which came with 3.2", luks}} {
		a, err := c.Answers(worker(pool.config), extras())
		if err != nil {
			t.Fatal(err)
		}
		h := gate.New(gate.Config{
			Upstream: gate.Source{Config: func(_ string, accept specversion.Accept) (*gate.Rendered, error) {
				return a.For(accept)
			}},
			Policy: func(string) (gate.PoolPolicy, error) { return gate.PoolPolicy{Mode: gate.Off}, nil },
			Tokens: none{}, Redeem: none{}, Now: time.Now,
		})
		fmt.Fprintf(&b, "# %s\n", pool.name)
		for _, header := range []string{
			"", "*/*", "text/plain", "an-invalid-accept-header",
			"application/vnd.coreos.ignition+json; version=2.4.0, application/vnd.coreos.ignition+json; version=1; q=0.5, " +
				"*/*; q=0.1",
			"application/vnd.coreos.ignition+json", accepts("1.0.0"), accepts("2.1.0"), accepts("2.2.0"), accepts("2.3.0"),
			accepts("3.0.0"), accepts("3.1.0"), accepts("3.2.0"), accepts("3.3.0"), accepts("3.4.0"), accepts("3.5.0"),
			accepts("3.6.0"),
			accepts("3.7.0-experimental"), accepts("3.99.0"), accepts("4.0.0"),
			"a/vnd.coreos.ignition+json;version=3.1.0;q=0.5, a/vnd.coreos.ignition+json;version=3.4.0",
			"a/vnd.coreos.ignition+json;version=4.0.0, a/vnd.coreos.ignition+json;version=3.4.0;q=0.1",
		} {
			r := httptest.NewRequest(http.MethodGet, "/config/worker", nil)
			r.TLS = &tls.ConnectionState{}
			r.Header.Set("Accept", header)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			served := "-"
			if w.Code == http.StatusOK {
				v, err := specversion.Of(w.Body.Bytes())
				if err != nil {
					t.Fatal(err)
				}
				served = v.String()
			}
			fmt.Fprintf(&b, "%d %-5s %s\n", w.Code, served, header)
		}
	}
	const golden = "testdata/negotiation.golden.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

// none is a verifier that accepts no token.
type none struct{}

func (none) Verify(time.Time, []byte) (token.Claims, error) {
	return token.Claims{}, reason.Deny(reason.TokenInvalid, "there are none")
}

func (n none) Check(context.Context, token.Claims) (gate.Redemption, error) { return n, nil }

func (none) Redeem(context.Context, *credential.Credential) error { return nil }

func BenchmarkCache(b *testing.B) {
	big := strings.Replace(ignition, "kind%3A%20KubeletConfiguration", strings.Repeat("0123456789", 20_000), 1)
	accept := specversion.ParseAccept(accepts("3.4.0"))
	var c mcs.Cache
	a, err := c.Answers(worker(big), extras())
	if err != nil {
		b.Fatal(err)
	}
	b.Run("a request", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := a.For(accept); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("a change that is none", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Answers(worker(big), extras()); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, v := range all {
		b.Run("made again "+v.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := mcs.Config(worker(big), extras(), v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
