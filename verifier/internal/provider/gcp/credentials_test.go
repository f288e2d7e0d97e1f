// SPDX-License-Identifier: Apache-2.0

package gcp_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/provider/gcp"
)

// tokens is a token endpoint that answers when the test lets it, and a directory
// whose credentials are exchanged there.
func tokens(t *testing.T, answer func(call int64, w http.ResponseWriter)) (*gcp.Directory, *atomic.Int64) {
	t.Helper()
	var calls atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer(calls.Add(1), w)
	}))
	t.Cleanup(server.Close)
	d, err := gcp.NewDirectory([]string{"demo-1"}, config.Endpoint{CA: useAccount(t, server, "")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d, &calls
}

func good(w http.ResponseWriter) {
	_, _ = w.Write([]byte(`{"access_token":"a-token","token_type":"Bearer","expires_in":3600}`))
}

func TestToken_IsRenewedOnceForAllCallers(t *testing.T) {
	d, calls := tokens(t, func(_ int64, w http.ResponseWriter) { good(w) })
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if token, err := d.Authorized(t.Context()); err != nil || token != "a-token" {
				t.Errorf("%q %v", token, err)
			}
		})
	}
	all.Wait()
	if n := calls.Load(); n != 1 {
		t.Errorf("%d exchanges", n)
	}
}

// While the token endpoint does not answer, everybody leaves when his context ends,
// and all of them have made one exchange, which counts for those who are left.
func TestAttack_T51_ATokenEndpointThatDoesNotAnswer(t *testing.T) {
	asked, let := make(chan struct{}), make(chan struct{})
	d, calls := tokens(t, func(_ int64, w http.ResponseWriter) {
		close(asked)
		<-let
		good(w)
	})
	var leaving sync.WaitGroup
	ctx, leave := context.WithCancel(t.Context())
	for range 20 {
		leaving.Go(func() {
			if _, err := d.Authorized(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
	}
	<-asked
	staying := make(chan error, 20)
	for range cap(staying) {
		go func() {
			_, err := d.Authorized(t.Context())
			staying <- err
		}()
	}
	leave()
	leaving.Wait() // the endpoint has still not answered
	close(let)
	for range cap(staying) {
		if err := <-staying; err != nil {
			t.Error(err)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("%d exchanges", n)
	}
}

func TestFailedTokenExchange_IsRetried(t *testing.T) {
	d, calls := tokens(t, func(call int64, w http.ResponseWriter) {
		if call == 1 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		good(w)
	})
	if _, err := d.Authorized(t.Context()); err == nil {
		t.Error("a token")
	}
	for range 3 {
		if _, err := d.Authorized(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := calls.Load(); n != 2 {
		t.Errorf("%d exchanges", n)
	}
}

// An administrator who rotates a key replaces the file and deletes the old key.
func TestRotatedKey_IsReadWithoutARestart(t *testing.T) {
	var valid atomic.Value
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header, _, _ := strings.Cut(r.PostFormValue("assertion"), ".")
		raw, err := base64.RawURLEncoding.DecodeString(header)
		w.Header().Set("Content-Type", "application/json")
		if err != nil || !strings.Contains(string(raw), valid.Load().(string)) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_, _ = w.Write([]byte(`{"access_token":"a-token","token_type":"Bearer","expires_in":5}`)) // no longer valid
	}))
	t.Cleanup(server.Close)
	d, err := gcp.NewDirectory([]string{"demo-1"}, config.Endpoint{CA: useAccount(t, server, "")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	file := os.Getenv("GOOGLE_APPLICATION_CREDENTIALS")
	for _, id := range []string{"the-old-key", "the-new-key"} {
		raw, err := os.ReadFile(file)
		account := map[string]any{}
		if err = errors.Join(err, json.Unmarshal(raw, &account)); err != nil {
			t.Fatal(err)
		}
		account["private_key_id"] = id
		if raw, err = json.Marshal(account); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		valid.Store(id)
		if _, err := d.Authorized(t.Context()); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}
