// SPDX-License-Identifier: Apache-2.0

package gcp_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	emulator "github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
	"github.com/mcs-attest/mcs-attest/verifier/internal/provider/gcp"
)

// account is the key file of a service account; once reads it.
var (
	account []byte
	once    sync.Once
)

// standIn is a server in place of Google's, with a handler for all but tokens.
func standIn(t *testing.T, handler http.HandlerFunc) (e config.Endpoint) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/token" {
			good(out)
			return
		}
		handler(out, r)
	}))
	t.Cleanup(server.Close)
	return config.Endpoint{URL: server.URL, CA: useAccount(t, server, "/token")}
}

// useAccount sets the credentials of a service account whose tokens come from a path of the server. It
// returns the file with the server's certificate.
func useAccount(t *testing.T, server *httptest.Server, path string) (ca string) {
	t.Helper()
	once.Do(func() {
		var err error
		if account, err = os.ReadFile(newFixture(t).api.Credentials); err != nil {
			t.Fatal(err)
		}
	})
	file := map[string]any{}
	if err := json.Unmarshal(account, &file); err != nil {
		t.Fatal(err)
	}
	file["token_uri"] = server.URL + path
	raw, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	credentials := filepath.Join(folder, "credentials.json")
	ca = filepath.Join(folder, "ca.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := errors.Join(os.WriteFile(credentials, raw, 0o600), os.WriteFile(ca, certificate, 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", credentials)
	return ca
}

// asks returns what a directory at an endpoint answers about the worker.
func asks(t *testing.T, e config.Endpoint) ([][]byte, error) {
	t.Helper()
	d, err := gcp.NewDirectory([]string{"demo-1"}, e, outbound.New("gcp", outbound.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := d.EndorsementKeys(t.Context(), worker, nil)
	return keys.SPKI, err
}

// answerWith is Google's answer with the text of a key.
func answerWith(t *testing.T, text string) []byte {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"encryptionKey": map[string]string{"ekPub": text}})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func pemOf(t *testing.T, kind string, key crypto.PublicKey) string {
	t.Helper()
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: spki(t, key)}))
}

func TestDirectory_SendsOneRequestWithItsToken(t *testing.T) {
	key, _ := keyPair(t)
	var asked []string
	e := standIn(t, func(out http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Path)
		if h := r.Header; h.Get("Accept") != "application/json" || h.Get("User-Agent") != "mcs-attest-verifier" ||
			h.Get("Authorization") != "Bearer a-token" {
			t.Errorf("%q", h)
		}
		_, _ = out.Write(answerWith(t, pemOf(t, "PUBLIC KEY", key)))
	})
	url := e.URL
	for _, suffix := range []string{"", "/", "/compute/v1", "/compute/v1/"} {
		e.URL = url + suffix
		if got, err := asks(t, e); err != nil || len(got) != 1 || !slices.Equal(got[0], spki(t, key)) {
			t.Errorf("%q: %x, %v", suffix, got, err)
		}
	}
	if !slices.Equal(asked, slices.Repeat([]string{"GET " + path}, 4)) {
		t.Errorf("%q", asked)
	}
}

const path = "/compute/v1/projects/demo-1/zones/europe-west1-b/instances/worker-a/getShieldedInstanceIdentity"

// What Google says of an error is for the administrator. A key that comes with an error is no answer.
func TestDirectory_ReportsTheErrorOfGoogle(t *testing.T) {
	r, _ := keyPair(t)
	withKey := answerWith(t, pemOf(t, "PUBLIC KEY", r))
	for name, c := range map[string]struct {
		status int
		body   string
		want   reason.Code
		says   string
	}{
		"not permitted": {403, `{"error":{"message":"Required 'compute.instances.getShieldedInstanceIdentity'"}}`,
			reason.ProviderUnavailable, "status 403 Forbidden: Required 'compute.instances.getShieldedInstanceIdentity'"},
		"with a key":     {500, string(withKey), reason.ProviderUnavailable, "status 500"},
		"no content":     {204, "", reason.ProviderUnavailable, "status 204"},
		"not found":      {404, string(withKey), reason.InstanceNotFound, `no instance "worker-a" in europe-west1-b of demo-1`},
		"an error page":  {502, "<html>", reason.ProviderUnavailable, "status 502 Bad Gateway: "},
		"a long message": {400, `{"error":{"message":"` + strings.Repeat("é", 1000) + `"}}`, reason.ProviderUnavailable, "ééé"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := asks(t, standIn(t, func(out http.ResponseWriter, _ *http.Request) {
				out.WriteHeader(c.status)
				_, _ = out.Write([]byte(c.body))
			}))
			if code(err) != c.want || !strings.Contains(err.Error(), c.says) || len(got) != 0 || len(err.Error()) > 1000 {
				t.Errorf("%x, %v; want %q", got, err, c.says)
			}
		})
	}
}

func TestDirectory_RejectsAnAnswerThatEndsTooEarly(t *testing.T) {
	r, _ := keyPair(t)
	complete := answerWith(t, pemOf(t, "PUBLIC KEY", r))
	got, err := asks(t, standIn(t, func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Length", fmt.Sprint(len(complete)+1))
		_, _ = out.Write(complete)
	}))
	if code(err) != reason.ProviderUnavailable || !strings.Contains(err.Error(), "unexpected EOF") || len(got) != 0 {
		t.Errorf("%x, %v", got, err)
	}
}

func TestDirectory_RejectsAnEndpointThatIsNoURL(t *testing.T) {
	e := standIn(t, func(http.ResponseWriter, *http.Request) { t.Error("asked") })
	e.URL = "https://["
	if got, err := asks(t, e); code(err) != reason.ProviderUnavailable || len(got) != 0 {
		t.Errorf("%x, %v", got, err)
	}
}

func TestDirectory_AcceptsOneKeyOfAKindOfTPMs(t *testing.T) {
	r, e := keyPair(t)
	bits := func(n int) *rsa.PublicKey {
		return &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), n-1, 1), E: 65537}
	}
	on := func(c elliptic.Curve) *ecdsa.PublicKey {
		k, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return &k.PublicKey
	}
	other, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public := func(key crypto.PublicKey) string { return pemOf(t, "PUBLIC KEY", key) }
	small, large := bits(2048), bits(4096)
	p384 := on(elliptic.P384())
	const none = "the text is not one public key in PEM"
	for name, c := range map[string]struct {
		text string
		key  crypto.PublicKey // nil if it is refused
		want string
	}{
		"RSA of 2048 bits":     {public(small), small, ""},
		"RSA of 4096 bits":     {public(large), large, ""},
		"RSA of 2047 bits":     {public(bits(2047)), nil, "RSA of 2047 bits"},
		"RSA of 4097 bits":     {public(bits(4097)), nil, "RSA of 4097 bits"},
		"P-256":                {public(e), e, ""},
		"P-384":                {public(p384), p384, ""},
		"P-521":                {public(on(elliptic.P521())), nil, "a point on P-521"},
		"Ed25519":              {public(other), nil, "a key of type ed25519.PublicKey"},
		"white space behind":   {public(r) + " \n\t", r, ""},
		"one byte behind":      {public(r) + "x", nil, none},
		"two keys":             {public(r) + public(e), nil, none},
		"no PEM":               {"a text", nil, none},
		"a type that is not":   {pemOf(t, "CERTIFICATE", r), nil, none},
		"a private key's name": {pemOf(t, "PRIVATE KEY", r), nil, none},
		"bytes that are none":  {"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", nil, "asn1: "},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := asks(t, standIn(t, func(out http.ResponseWriter, _ *http.Request) {
				_, _ = out.Write(answerWith(t, c.text))
			}))
			if c.key != nil {
				if err != nil || len(got) != 1 || !slices.Equal(got[0], spki(t, c.key)) {
					t.Errorf("%x, %v", got, err)
				}
				return
			}
			if code(err) != reason.ProviderUnavailable || !strings.Contains(err.Error(), `the EK of "worker-a": `+c.want) ||
				len(got) != 0 {
				t.Errorf("%x, %v; want %q", got, err, c.want)
			}
		})
	}
}

// An answer of 256 KiB is accepted; a longer one is not, whatever it says.
func TestDirectory_LimitsTheSizeOfAnAnswer(t *testing.T) {
	r, _ := keyPair(t)
	body := answerWith(t, pemOf(t, "PUBLIC KEY", r))
	for size, want := range map[int]reason.Code{262144: 0, 262145: reason.ProviderUnavailable} {
		got, err := asks(t, standIn(t, func(out http.ResponseWriter, _ *http.Request) {
			_, _ = out.Write(append(bytes.Clone(body), bytes.Repeat([]byte(" "), size-len(body))...))
		}))
		if code(err) != want || (len(got) == 1) != (want == 0) {
			t.Errorf("%d bytes: %x, %v", size, got, err)
		}
	}
}

// keysAt are keys from a server, with a clock.
func keysAt(t *testing.T, e config.Endpoint) (*gcp.Keys, *clock) {
	t.Helper()
	c := &clock{now: time.Now()}
	k, err := gcp.NewKeys(gcp.KeysOptions{Endpoint: e,
		Caller: outbound.New("gcp", outbound.Options{Now: c.Now, PerSecond: 1e6, Burst: 1e6})})
	if err != nil {
		t.Fatal(err)
	}
	return k, c
}

func TestKeys_RejectAnAnswerWithAnErrorEvenWithKeys(t *testing.T) {
	w := newFixture(t)
	for name, c := range map[string]struct {
		status, more int
		want         string
	}{"503": {503, 0, "status 503"}, "206": {206, 0, "status 206"}, "it is cut": {200, 1, "unexpected EOF"}} {
		k, _ := keysAt(t, standIn(t, func(out http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				t.Error("the request has a token")
			}
			out.Header().Set("Content-Length", fmt.Sprint(len(w.cloud.Keys())+c.more))
			out.WriteHeader(c.status)
			_, _ = out.Write(w.cloud.Keys())
		}))
		key, err := k.Key(t.Context(), w.current())
		if code(err) != reason.ProviderUnavailable || !strings.Contains(err.Error(), c.want) || key != nil {
			t.Errorf("%s: %v, %v", name, key, err)
		}
	}
	k, _ := keysAt(t, config.Endpoint{URL: "https://["})
	if _, err := k.Key(t.Context(), "x"); code(err) != reason.ProviderUnavailable {
		t.Errorf("not a URL: %v", err)
	}
}

// The times at which Google is asked, to the nanosecond: the set is fresh for an hour, because the answer
// has no Cache-Control.
func TestKeys_AreFetchedAtTheEndOfEachInterval(t *testing.T) {
	w := newFixture(t)
	calls, status := 0, http.StatusOK
	k, clock := keysAt(t, standIn(t, func(out http.ResponseWriter, _ *http.Request) {
		calls++
		out.WriteHeader(status)
		_, _ = out.Write(w.cloud.Keys())
	}))
	kid := w.current()
	for _, step := range []struct {
		name   string
		after  time.Duration
		status int
		kid    string
		want   reason.Code
		says   string
		calls  int
	}{
		{"the first key", 0, 200, kid, 0, "", 1},
		{"a missing key, too early", 30*time.Second - 1, 200, "new", reason.ProviderUnavailable,
			`Google's keys have no key "new"; the next fetch is allowed in 0s`, 1},
		{"a missing key", 1, 200, "new", reason.DocumentUntrusted, `Google's keys have no key "new"`, 2},
		{"within an hour", time.Hour - 1, 200, kid, 0, "", 2},
		{"after an hour, but it fails", 1, 500, kid, 0, "", 3},
		{"too early after a failure", 5*time.Second - 1, 500, kid, 0, "", 3},
		{"a missing key after a failure, too early", 0, 500, "new", reason.ProviderUnavailable,
			`Google's keys, for the key "new": `, 3},
		{"after a failure", 1, 500, kid, 0, "", 4},
		{"almost a day later", 24*time.Hour - 5*time.Second - 1, 500, kid, 0, "", 5},
		{"a day later", 1, 500, kid, reason.ProviderUnavailable, "status 500", 5},
		{"a day later, and it is asked", 5 * time.Second, 500, kid, reason.ProviderUnavailable, `for the key "` + kid, 6},
		{"it works again", 5 * time.Second, 200, kid, 0, "", 7},
		{"the clock is set back", -2 * time.Hour, 200, "new", reason.DocumentUntrusted, "have no key", 8},
	} {
		clock.Add(step.after)
		status = step.status
		key, err := k.Key(t.Context(), step.kid)
		if calls != step.calls || code(err) != step.want || (key != nil) != (err == nil) {
			t.Errorf("%s: %d calls, want %d: %v, %v", step.name, calls, step.calls, key, err)
		}
		if err != nil && !strings.Contains(err.Error(), step.says) {
			t.Errorf("%s: %v", step.name, err)
		}
	}
}

func TestNewKeys_UsesTheSystemsClock(t *testing.T) {
	w := newFixture(t)
	k, err := gcp.NewKeys(gcp.KeysOptions{Endpoint: config.Endpoint{URL: w.api.KeysURL, CA: w.api.CAFile},
		Caller: w.caller()})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if key, err := k.Key(t.Context(), w.current()); err != nil || key == nil {
			t.Errorf("%v, %v", key, err)
		}
	}
	if n := w.cloud.Calls(emulator.Keys); n != 1 {
		t.Errorf("%d fetches", n)
	}
}

// If nothing may be sent, a key of the last set is still valid, and the reason is reported.
func TestKeys_WithoutABudget(t *testing.T) {
	w := newFixture(t)
	k, err := gcp.NewKeys(gcp.KeysOptions{Endpoint: config.Endpoint{URL: w.api.KeysURL, CA: w.api.CAFile},
		Caller: outbound.New("gcp", outbound.Options{Now: w.clock.Now, PerSecond: 1e-9, Burst: 1})})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := k.Key(t.Context(), w.current()); err != nil {
			t.Error(err)
		}
		w.clock.Add(7 * time.Hour)
	}
	_, err = k.Key(t.Context(), "new")
	if code(err) != reason.ProviderUnavailable || !strings.Contains(err.Error(), `Google's keys, for the key "new"`) ||
		!strings.Contains(err.Error(), "budget") {
		t.Errorf("%v", err)
	}
}

// A caller that has given up gets no answer about credentials, and starts no call.
func TestDirectory_OfACallerThatHasGivenUp(t *testing.T) {
	d, calls := tokens(t, func(_ int64, w http.ResponseWriter) { good(w) })
	if _, err := d.Authorized(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the client has left"))
	// The token is there, so no caller has to wait.
	if token, err := d.Authorized(gone); err != nil || token != "a-token" || calls.Load() != 1 {
		t.Errorf("%q, %v", token, err)
	}
	release := make(chan struct{})
	waiting, calls := tokens(t, func(_ int64, w http.ResponseWriter) {
		<-release
		good(w)
	})
	if _, err := waiting.Authorized(gone); err == nil || err.Error() != "credentials: the client has left" {
		t.Errorf("%v", err)
	}
	close(release)
	if _, err := waiting.Authorized(t.Context()); err != nil || calls.Load() != 1 {
		t.Errorf("%v", err)
	}
}

func TestDirectory_ReportsTheProjectAndWhyThereAreNoCredentials(t *testing.T) {
	d, _ := tokens(t, func(_ int64, w http.ResponseWriter) { w.WriteHeader(http.StatusBadRequest) })
	if _, err := d.Authorized(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "credentials: ") {
		t.Errorf("%v", err)
	}
	_, err := d.EndorsementKeys(t.Context(), "gce://demo-2/europe-west1-b/worker-a", nil)
	if code(err) != reason.AccountNotAllowed || !strings.Contains(err.Error(), `instance of project "demo-2"`) {
		t.Errorf("%v", err)
	}
}

// Offline, nothing is read that only fetches need.
func TestNewKeys_OfflineNeedsNoCA(t *testing.T) {
	k, err := gcp.NewKeys(gcp.KeysOptions{Offline: true, Endpoint: config.Endpoint{CA: "/nonexistent"}})
	if err != nil || k == nil {
		t.Errorf("%v", err)
	}
}
