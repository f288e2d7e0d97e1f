// SPDX-License-Identifier: Apache-2.0

package gcp_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	emulator "github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
	"github.com/mcs-attest/mcs-attest/verifier/internal/provider/gcp"
)

// clock is one that only the test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// fixture is an emulated Google that is reached over HTTPS, and what asks it.
type fixture struct {
	cloud *emulator.Cloud
	api   *emulator.Endpoints
	clock *clock
	keys  *gcp.Keys
	calls map[string]int // what outbound counted
}

func newFixture(t *testing.T, change ...func(*gcp.KeysOptions)) *fixture {
	t.Helper()
	// Certificates are of the machine's time, so the test's time begins there.
	w := &fixture{clock: &clock{now: time.Now()}, calls: map[string]int{}}
	var err error
	if w.cloud, err = emulator.New(emulator.Options{Now: w.clock.Now}); err != nil {
		t.Fatal(err)
	}
	if w.api, err = w.cloud.Serve(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.api.Close)
	o := gcp.KeysOptions{
		Endpoint: config.Endpoint{URL: w.api.KeysURL, CA: w.api.CAFile}, Caller: w.caller(),
	}
	for _, f := range change {
		f(&o)
	}
	if w.keys, err = gcp.NewKeys(o); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *fixture) caller() *outbound.Caller {
	var mu sync.Mutex
	return outbound.New("gcp", outbound.Options{Now: w.clock.Now, Called: func(_, operation, outcome string) {
		mu.Lock()
		defer mu.Unlock()
		w.calls[operation+" "+outcome]++
	}})
}

// current is the kid that signs now.
func (w *fixture) current() string {
	kid, _ := w.cloud.SigningKey()
	return kid
}

func code(err error) reason.Code {
	if err == nil {
		return 0
	}
	return reason.From(err).Code
}

func (w *fixture) want(t *testing.T, kid string, want reason.Code, fetches int) {
	t.Helper()
	key, err := w.keys.Key(t.Context(), kid)
	if code(err) != want || (key != nil) != (err == nil) {
		t.Fatalf("key %.20q: %v, %v; want %v", kid, key, err, want)
	}
	if got := w.cloud.Calls(emulator.Keys); got != fetches {
		t.Fatalf("%d fetches, want %d", got, fetches)
	}
}

func TestKeysAreFetchedOnceWhileTheyAreFresh(t *testing.T) {
	w := newFixture(t)
	w.want(t, w.current(), 0, 1)
	w.clock.Add(5*time.Hour + 59*time.Minute)
	for range 100 {
		w.want(t, w.current(), 0, 1)
	}
	w.clock.Add(2 * time.Minute) // Cache-Control said 6 hours
	w.want(t, w.current(), 0, 2)
	if w.calls["keys ok"] != 2 || len(w.calls) != 1 {
		t.Errorf("counted %v", w.calls)
	}
}

func TestKeys_VerifyIdentityTokensThroughRotations(t *testing.T) {
	w := newFixture(t)
	id := w.cloud.Add(emulator.Instance{Project: "demo-1", Zone: "europe-west1-b", Name: "worker-a"})
	b := evidence.Binding{Origin: "https://api-int.demo.example:22623"}
	v := gcpidentity.Verifier{Keys: w.keys, Projects: []string{"demo-1"}}
	for range 3 { // and through rotations
		token, err := w.cloud.IdentityToken(id, gcpidentity.Audience(b.Origin, b.Transcript))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.Verify(t.Context(), evidence.Document{Raw: []byte(token)}, b, w.clock.Now()); err != nil {
			t.Fatal(err)
		}
		if err := w.cloud.Rotate(); err != nil {
			t.Fatal(err)
		}
		w.clock.Add(time.Minute)
	}
	if got := w.cloud.Calls(emulator.Keys); got != 3 {
		t.Errorf("%d fetches for two rotations, want 3", got)
	}
}

func TestAttack_T08_AFloodOfInventedKeyIDsIsTwoFetchesAMinute(t *testing.T) {
	w := newFixture(t)
	w.want(t, w.current(), 0, 1)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for j := range 50 {
				if _, err := w.keys.Key(t.Context(), fmt.Sprint("invented-", i, "-", j)); code(err) != reason.ProviderUnavailable {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := w.cloud.Calls(emulator.Keys); got != 1 {
		t.Fatalf("1000 kids made %d fetches, want 1", got)
	}
	// Ten minutes of it, ten a second.
	for range 6000 {
		w.clock.Add(100 * time.Millisecond)
		want, before := reason.ProviderUnavailable, w.cloud.Calls(emulator.Keys)
		_, err := w.keys.Key(t.Context(), "invented")
		if w.cloud.Calls(emulator.Keys) > before {
			want = reason.DocumentUntrusted // Google was asked for this one
		}
		if code(err) != want {
			t.Fatal(err)
		}
	}
	if got := w.cloud.Calls(emulator.Keys); got > 1+20 {
		t.Errorf("ten minutes made %d fetches, want at most 21", got)
	}
	// In all these cases, a cached key is returned.
	w.want(t, w.current(), 0, w.cloud.Calls(emulator.Keys))
}

// A client presents a token with an invented kid, and then Google begins to use a new
// key. Its tokens are not refused for good before Google was asked.
func TestKeyThatIsNewBetweenTwoFetches_IsATemporaryDenial(t *testing.T) {
	w := newFixture(t)
	w.want(t, w.current(), 0, 1)
	w.clock.Add(31 * time.Second)
	w.want(t, "invented", reason.DocumentUntrusted, 2)
	if err := w.cloud.Rotate(); err != nil {
		t.Fatal(err)
	}
	w.clock.Add(10 * time.Second)
	w.want(t, w.current(), reason.ProviderUnavailable, 2)
	w.clock.Add(20 * time.Second)
	w.want(t, w.current(), 0, 3)
}

// The answer to a question that was put before may be older than the key.
func TestFetchThatBeganEarlier_DoesNotDenyANewKey(t *testing.T) {
	w := newFixture(t)
	w.cloud.Fail(emulator.Keys, emulator.Fault{Delay: 200 * time.Millisecond})
	first := make(chan error, 1)
	go func() {
		_, err := w.keys.Key(t.Context(), "first")
		first <- err
	}()
	for w.cloud.Calls(emulator.Keys) == 0 {
		time.Sleep(time.Millisecond)
	}
	// It joins the fetch, or comes after it and may not fetch: the same.
	if _, err := w.keys.Key(t.Context(), "second"); code(err) != reason.ProviderUnavailable {
		t.Errorf("%v", err)
	}
	if err := <-first; code(err) != reason.DocumentUntrusted || w.cloud.Calls(emulator.Keys) != 1 {
		t.Errorf("%v after %d fetches", err, w.cloud.Calls(emulator.Keys))
	}
}

func TestThousandConcurrentTokens_CauseOneFetch(t *testing.T) {
	w := newFixture(t)
	w.cloud.Fail(emulator.Keys, emulator.Fault{Delay: 50 * time.Millisecond})
	kid := w.current()
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			if _, err := w.keys.Key(t.Context(), kid); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := w.cloud.Calls(emulator.Keys); got != 1 {
		t.Errorf("%d fetches", got)
	}
}

func TestKeysWhileGoogleIsUnavailable(t *testing.T) {
	for name, fault := range map[string]emulator.Fault{
		"it is off":                 {Off: true},
		"it answers 503":            {Status: http.StatusServiceUnavailable},
		"it answers 429":            {Status: http.StatusTooManyRequests, RetryAfter: "60"},
		"it sends us elsewhere":     {Redirect: "https://www.example.com/certs"},
		"it answers a page":         {Body: []byte("<html>sign in</html>")},
		"it answers no keys":        {Body: []byte(`{"keys":[]}`)},
		"it answers certificates":   {Body: []byte(`{"abc":"-----BEGIN CERTIFICATE-----"}`)},
		"it answers private keys":   {Body: []byte(`{"keys":[{"kty":"RSA","kid":"a","n":"AAAA","e":"AQAB","d":"AAAA"}]}`)},
		"it answers a megabyte":     {Body: []byte(`{"keys":[` + strings.Repeat(" ", 1<<20) + `]}`)},
		"it answers deep nothing":   {Body: []byte(strings.Repeat("[", 60<<10))},
		"it answers half of a body": {Body: []byte(`{"keys":[{"kty":"RSA"`)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.cloud.Fail(emulator.Keys, fault)
			w.want(t, w.current(), reason.ProviderUnavailable, 1) // never had any: temporary
			w.want(t, w.current(), reason.ProviderUnavailable, 1) // and not immediately queried again
			w.cloud.Heal(emulator.Keys)
			w.clock.Add(6 * time.Second)
			w.want(t, w.current(), 0, 2)
			w.want(t, "other", reason.ProviderUnavailable, 2) // Google may not be asked again just now
			w.cloud.Fail(emulator.Keys, fault)
			w.clock.Add(10 * time.Minute)
			w.want(t, "other", reason.ProviderUnavailable, 3) // may be a new key: temporary
			w.want(t, w.current(), 0, 3)                      // fresh all the same
			w.clock.Add(20 * time.Hour)
			w.want(t, w.current(), 0, 4) // stale, and still Google's
			w.clock.Add(12 * time.Hour)
			w.want(t, w.current(), reason.ProviderUnavailable, 5) // too old
			w.cloud.Heal(emulator.Keys)
			w.clock.Add(6 * time.Second)
			w.want(t, w.current(), 0, 6)
		})
	}
}

func TestKeys_WithdrawnKeyExpiresWithTheSet(t *testing.T) {
	w := newFixture(t)
	first := w.current()
	w.want(t, first, 0, 1)
	for range 2 {
		if err := w.cloud.Rotate(); err != nil {
			t.Fatal(err)
		}
	}
	w.want(t, first, 0, 1) // as long as Google said that the set counts
	w.clock.Add(6*time.Hour + time.Second)
	w.want(t, first, reason.DocumentUntrusted, 2)
}

func TestFetchOfACallerThatGivesUpIsUsedForTheNext(t *testing.T) {
	w := newFixture(t)
	w.cloud.Fail(emulator.Keys, emulator.Fault{Delay: 200 * time.Millisecond})
	ctx, cancel := contextWithTimeout(t, 20*time.Millisecond)
	defer cancel()
	// Who asked first stays for the others, and may have the key all the same.
	if _, err := w.keys.Key(ctx, w.current()); err != nil && code(err) != reason.ProviderUnavailable {
		t.Errorf("%v", err)
	}
	if _, err := w.keys.Key(t.Context(), w.current()); err != nil || w.cloud.Calls(emulator.Keys) != 1 {
		t.Errorf("%v after %d fetches", err, w.cloud.Calls(emulator.Keys))
	}
}

func TestOfflineVerifier_HasTheKeysOfItsFolder(t *testing.T) {
	var static *gcpidentity.StaticKeys
	w := newFixture(t, func(o *gcp.KeysOptions) {
		o.Offline, o.Caller = true, nil
		o.Static = func() *gcpidentity.StaticKeys { return static }
	})
	w.want(t, w.current(), reason.ProviderUnavailable, 0)
	var err error
	if static, err = gcpidentity.ParseKeys("google-keys/now.json", w.cloud.Keys()); err != nil {
		t.Fatal(err)
	}
	w.want(t, w.current(), 0, 0)
	// The file may be older than the key: temporary, and the denial says what to do.
	w.want(t, "other", reason.ProviderUnavailable, 0)
	if _, err := w.keys.Key(t.Context(), "other"); !strings.Contains(err.Error(), "google-keys/") {
		t.Errorf("%v", err)
	}
}

func TestKeysOfTheFolderAreValidWhileGoogleIsUnavailable(t *testing.T) {
	var static *gcpidentity.StaticKeys
	w := newFixture(t, func(o *gcp.KeysOptions) { o.Static = func() *gcpidentity.StaticKeys { return static } })
	var err error
	if static, err = gcpidentity.ParseKeys("google-keys/now.json", w.cloud.Keys()); err != nil {
		t.Fatal(err)
	}
	w.cloud.Fail(emulator.Keys, emulator.Fault{Off: true})
	w.want(t, w.current(), 0, 0)
	if err := w.cloud.Rotate(); err != nil {
		t.Fatal(err)
	}
	w.want(t, w.current(), reason.ProviderUnavailable, 1)
}

func TestKeysComeFromTheServerWithTheConfiguredCertificate(t *testing.T) {
	w := newFixture(t)
	other := newFixture(t)
	keys, err := gcp.NewKeys(gcp.KeysOptions{Endpoint: config.Endpoint{URL: w.api.KeysURL, CA: other.api.CAFile},
		Caller: w.caller()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keys.Key(t.Context(), w.current()); code(err) != reason.ProviderUnavailable ||
		!strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v", err)
	}
	empty := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ca := range []string{empty, empty + "-missing"} {
		if _, err := gcp.NewKeys(gcp.KeysOptions{Endpoint: config.Endpoint{CA: ca}}); err == nil ||
			!strings.Contains(err.Error(), "gcp.keys") {
			t.Errorf("%s: %v", ca, err)
		}
		if _, err := gcp.NewDirectory(nil, config.Endpoint{CA: ca}, nil); err == nil || errors.Is(err, os.ErrPermission) {
			t.Errorf("%s: %v", ca, err)
		}
	}
}
