// SPDX-License-Identifier: Apache-2.0

package azure_test

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	emulator "github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
)

// keyID is the one of the emulated tenant's key.
func (w *fixture) keyID(t *testing.T) string {
	t.Helper()
	token, err := w.cloud.IdentityToken(w.machine, "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[0])
	if err != nil {
		t.Fatal(err)
	}
	var header struct{ Kid string }
	if err := json.Unmarshal(raw, &header); err != nil {
		t.Fatal(err)
	}
	return header.Kid
}

func TestKeys_AreFetchedRarely(t *testing.T) {
	w := newFixture(t)
	good, keys := w.keyID(t), w.provider.Identity().Keys
	before := w.cloud.Calls("keys")
	sent := func(want int) {
		t.Helper()
		if n := w.cloud.Calls("keys") - before; n != want {
			t.Fatalf("%d calls, not %d", n, want)
		}
	}
	for range 10 {
		if _, err := keys.Key(t.Context(), good); err != nil {
			t.Fatal(err)
		}
	}
	sent(1)
	// Made-up key ids make no traffic.
	for n := range 100 {
		_, err := keys.Key(t.Context(), strings.Repeat("x", n))
		denied(t, err, reason.ProviderUnavailable) // it may be new
	}
	sent(1)
	w.later(6 * time.Minute)
	for n := range 100 {
		want := reason.ProviderUnavailable
		if n == 0 {
			want = reason.DocumentUntrusted // the tenant was asked for this one
		}
		_, err := keys.Key(t.Context(), strings.Repeat("x", n))
		denied(t, err, want)
	}
	sent(2)
	// Down: the cached keys count for a day.
	w.cloud.Fail(emulator.Faults{Login: 503})
	w.later(2 * time.Hour)
	for range 10 {
		if _, err := keys.Key(t.Context(), good); err != nil {
			t.Fatal(err)
		}
	}
	sent(3)
	_, err := keys.Key(t.Context(), "another")
	denied(t, err, reason.ProviderUnavailable)
	w.later(25 * time.Hour)
	_, err = keys.Key(t.Context(), good)
	denied(t, err, reason.ProviderUnavailable)
	// And back.
	w.cloud.Fail(emulator.Faults{})
	w.later(time.Minute)
	if _, err := keys.Key(t.Context(), good); err != nil {
		t.Fatal(err)
	}
}

func TestKeys_FirstFetchIsRetriedRarely(t *testing.T) {
	w := newFixture(t)
	good, keys := w.keyID(t), w.provider.Identity().Keys
	w.cloud.Fail(emulator.Faults{Login: 500})
	before := w.cloud.Calls("keys")
	for range 20 {
		_, err := keys.Key(t.Context(), good)
		denied(t, err, reason.ProviderUnavailable)
	}
	if n := w.cloud.Calls("keys") - before; n != 1 {
		t.Fatalf("%d calls", n)
	}
	w.cloud.Fail(emulator.Faults{})
	w.later(10 * time.Second)
	if _, err := keys.Key(t.Context(), good); err != nil {
		t.Fatal(err)
	}
}
