// SPDX-License-Identifier: Apache-2.0

package azure_test

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// login serves the answers of a tenant's login endpoint.
type login struct {
	answer atomic.Value // a string
	status atomic.Int32
	calls  atomic.Int32
}

// serve makes the provider of w use another login endpoint.
func (l *login) serve(t *testing.T, w *fixture) {
	t.Helper()
	l.status.Store(http.StatusOK)
	server := httptest.NewTLSServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		l.calls.Add(1)
		if r.URL.Path != "/"+w.cloud.Tenant+"/discovery/v2.0/keys" || r.Header.Get("Accept") != "application/json" {
			t.Errorf("%s accepts %q", r.URL, r.Header.Get("Accept"))
		}
		out.WriteHeader(int(l.status.Load()))
		_, _ = out.Write([]byte(l.answer.Load().(string)))
	}))
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	w.config.Login.URL, w.config.Login.CA = server.URL+"/", ca
	w.make(t, &secret{})
}

// jwk returns an RSA key of a size, with more members.
func jwk(kid string, bits, exponent int, more string) string {
	n := new(big.Int).SetBit(big.NewInt(1), bits-1, 1)
	enc := base64.RawURLEncoding
	return fmt.Sprintf(`{"kty":"RSA","kid":%q,"n":%q,"e":%q%s}`, kid, enc.EncodeToString(n.Bytes()),
		enc.EncodeToString(big.NewInt(int64(exponent)).Bytes()), more)
}

func set(keys ...string) string { return `{"keys":[` + strings.Join(keys, ",") + `]}` }

func TestKeys_AcceptsOnlyKeysThatSignTokens(t *testing.T) {
	good := jwk("k", 2048, 65537, "")
	var many []string
	for i := range 100 {
		many = append(many, jwk(fmt.Sprint(i), 2048, 65537, ""))
	}
	padded := func(n int) string { return set(good) + strings.Repeat(" ", n-len(set(good))) }
	const none = "the key set has no key for signatures"
	for name, c := range map[string]struct {
		answer string
		kid    string
		want   string // of the error; empty if the key is accepted
	}{
		"2048 bits":                      {set(good), "k", ""},
		"4096 bits":                      {set(jwk("k", 4096, 65537, "")), "k", ""},
		"for signatures":                 {set(jwk("k", 2048, 65537, `,"use":"sig","alg":"RS256"`)), "k", ""},
		"a key that cannot be read also": {set(`{"kty":"new"}`, good), "k", ""},
		"2047 bits":                      {set(jwk("k", 2047, 65537, "")), "k", none},
		"4097 bits":                      {set(jwk("k", 4097, 65537, "")), "k", none},
		"exponent 3":                     {set(jwk("k", 2048, 3, "")), "k", none},
		"exponent 65539":                 {set(jwk("k", 2048, 65539, "")), "k", none},
		"for encryption":                 {set(jwk("k", 2048, 65537, `,"use":"enc"`)), "k", none},
		"for another algorithm":          {set(jwk("k", 2048, 65537, `,"alg":"RS512"`)), "k", none},
		"a hash that cannot be read":     {set(jwk("k", 2048, 65537, `,"x5t":"!"`)), "k", none},
		"a key without an id":            {set(jwk("", 2048, 65537, "")), "", none},
		"a symmetric key":                {set(`{"kty":"oct","kid":"k","k":"AAAA"}`), "k", none},
		"no keys":                        {set(), "k", none},
		"one id twice":                   {set(good, good), "k", `the key set has "k" twice`},
		"100 keys":                       {set(many...), "99", ""},
		"101 keys":                       {set(append(many, good)...), "k", "the key set has 101 keys; at most 100"},
		"262144 bytes":                   {padded(262144), "k", ""},
		"262145 bytes":                   {padded(262145), "k", "more than 262144 bytes"},
		"a text that is not JSON":        {"<html>", "k", "the key set: "},
	} {
		t.Run(name, func(t *testing.T) {
			w, l := newFixture(t), &login{}
			l.answer.Store(c.answer)
			l.serve(t, w)
			key, err := w.provider.Identity().Keys.Key(t.Context(), c.kid)
			if c.want == "" {
				if err != nil || key == nil {
					t.Errorf("not accepted: %v", err)
				}
				return
			}
			denied(t, err, reason.ProviderUnavailable)
			if text := err.Error() + w.log.String(); key != nil || !strings.Contains(text, strings.ReplaceAll(c.want, `"`, `\"`)) &&
				!strings.Contains(text, c.want) {
				t.Errorf("got %s, want an error with %q", text, c.want)
			}
		})
	}
}

func TestKeys_AreFetchedAtTheEndOfEachInterval(t *testing.T) {
	w, l := newFixture(t), &login{}
	l.answer.Store(set(jwk("k", 2048, 65537, "")))
	l.serve(t, w)
	keys := w.provider.Identity().Keys
	for _, step := range []struct {
		name   string
		after  time.Duration
		status int
		kid    string
		want   reason.Code // 0 if the key is returned
		calls  int32       // in total
	}{
		{"the first key", 0, 200, "k", 0, 1},
		{"a missing key, too early", 5*time.Minute - 1, 200, "new", reason.ProviderUnavailable, 1},
		{"a missing key", 1, 200, "new", reason.DocumentUntrusted, 2},
		{"within an hour", time.Hour - 1, 200, "k", 0, 2},
		{"after an hour, but it fails", 1, 500, "k", 0, 3},
		{"too early after a failure", 5*time.Second - 1, 500, "k", 0, 3},
		{"after a failure", 1, 500, "k", 0, 4},
		{"almost a day old", 23*time.Hour - 5*time.Second - 1, 500, "k", 0, 5},
		{"a day old", 1, 500, "k", reason.ProviderUnavailable, 5},
		{"again", time.Hour, 200, "k", 0, 6},
	} {
		w.later(step.after)
		l.status.Store(int32(step.status))
		key, err := keys.Key(t.Context(), step.kid)
		if got := l.calls.Load(); got != step.calls {
			t.Errorf("%s: %d calls, not %d", step.name, got, step.calls)
		}
		if step.want == 0 {
			if err != nil || key == nil {
				t.Errorf("%s: %v", step.name, err)
			}
			continue
		}
		denied(t, err, step.want)
	}
}

// meanwhile is a context in which something happens after the caller found no key, and before it asks.
type meanwhile struct {
	context.Context

	once sync.Once
	do   func()
}

func (m *meanwhile) Err() error {
	m.once.Do(m.do)
	return m.Context.Err()
}

func TestKeys_AreNotFetchedAgainAfterAnotherCaller(t *testing.T) {
	w, l := newFixture(t), &login{}
	l.answer.Store(set(jwk("k", 2048, 65537, "")))
	l.serve(t, w)
	keys := w.provider.Identity().Keys
	ctx := &meanwhile{Context: t.Context(), do: func() {
		if _, err := keys.Key(t.Context(), "k"); err != nil {
			t.Error(err)
		}
	}}
	key, err := keys.Key(ctx, "k")
	if n := l.calls.Load(); n != 1 || err != nil || key == nil {
		t.Errorf("%d calls: %v, %v", n, key, err)
	}
}

// A failure is an event of the metrics and the log, and every denial until the next fetch names it.
func TestKeys_ReportWhyTheyCannotBeFetched(t *testing.T) {
	w, l := newFixture(t), &login{}
	l.answer.Store("")
	l.serve(t, w)
	l.status.Store(http.StatusBadGateway)
	keys := w.provider.Identity().Keys
	for range 2 { // the second is too early for another fetch
		_, err := keys.Key(t.Context(), "k")
		denied(t, err, reason.ProviderUnavailable)
		if !strings.Contains(err.Error(), "the tenant's keys, for the key \"k\": ") ||
			!strings.Contains(err.Error(), "returned status 502") {
			t.Error(err)
		}
		w.later(2 * time.Second) // a denial is not cached longer
	}
	if fmt.Sprint(w.calls) != "[azure-login keys error]" || !strings.Contains(w.log.String(), "status 502") {
		t.Errorf("%v: %s", w.calls, &w.log)
	}
}

func TestKeys_OfALoginThatCannotBeAsked(t *testing.T) {
	closed := httptest.NewTLSServer(http.NotFoundHandler())
	closed.Close()
	complete := set(jwk("k", 2048, 65537, ""))
	cut := httptest.NewTLSServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Length", fmt.Sprint(len(complete)+1))
		_, _ = out.Write([]byte(complete))
	}))
	t.Cleanup(cut.Close)
	for name, c := range map[string]struct{ url, want string }{
		"not a URL":                 {"https://[", "missing ']' in host"},
		"nothing listens":           {closed.URL, "connection refused"},
		"the answer ends too early": {cut.URL, "unexpected EOF"},
		"a port that is none":       {"https://localhost:x", "invalid port"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.config.Login.URL, w.config.Login.CA = c.url, caOf(t, cut)
			w.make(t, &secret{})
			key, err := w.provider.Identity().Keys.Key(t.Context(), "k")
			denied(t, err, reason.ProviderUnavailable)
			if key != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, %v", key, err)
			}
		})
	}
}
