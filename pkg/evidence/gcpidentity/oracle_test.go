// SPDX-License-Identifier: Apache-2.0

package gcpidentity_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/api/idtoken"
	"google.golang.org/api/option"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
)

// published answers every request with the emulator's keys.
type published []byte

func (p published) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(p)),
		Request: r}, nil
}

// What Google's own library and go-jose accept although this package rejects it
// (docs/evidence/gcp-identity.md). The test fails when they change.
func TestWhatOtherLibrariesAccept(t *testing.T) {
	// Google's library uses its own clock.
	cloud, err := gcp.New(gcp.Options{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	instance, _ := cloud.Instance(cloud.Add(gcp.Instance{Project: "demo-1", Zone: "europe-west1-b", Name: "worker-a"}))
	kid, key := cloud.SigningKey()
	keys, err := gcpidentity.ParseKeySet(cloud.Keys())
	if err != nil {
		t.Fatal(err)
	}
	w := setup{cloud, instance, &gcpidentity.Verifier{Keys: keys, Projects: []string{"demo-1"}}}
	validator, err := idtoken.NewValidator(t.Context(),
		option.WithHTTPClient(&http.Client{Transport: published(cloud.Keys())}))
	if err != nil {
		t.Fatal(err)
	}
	claims := text(t, w.claims())
	honest := sign(t, key, w.header(), claims)
	respelt := slices.Clone(honest)
	// 256 bytes are 341 letters and 2 bits, so the last letter has four unused bits.
	last := len(respelt) - 1
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	respelt[last] = letters[strings.IndexByte(letters, respelt[last])|1]
	for _, c := range []struct {
		name               string
		token              []byte
		ours, google, jose bool
	}{
		{"the valid token", honest, true, true, true},
		{"another issuer", w.with(t, change(w.claims(), func(c map[string]any) { c["iss"] = "https://x.example" })), false,
			true, true},
		{"a service account's ID token", w.with(t, change(w.claims(), func(c map[string]any) { delete(c, "google") })), false,
			true, true},
		{"a claim twice", sign(t, key, w.header(), `{"iss":"https://x.example",`+claims[1:]), false, true, true},
		{"another spelling of the signature", respelt, false, true, true},
		{"a key in the header", sign(t, key, `{"alg":"RS256","kid":"`+kid+`","jwk":{"kty":"RSA","n":"AQAB","e":"AQAB"}}`,
			claims), false, true, true},
	} {
		_, ours := w.verifierAt(t, c.token, time.Now())
		_, google := validator.Validate(t.Context(), string(c.token),
			gcpidentity.Audience(binding.Origin, binding.Transcript))
		jws, parsed := jose.ParseSignedCompact(string(c.token), []jose.SignatureAlgorithm{jose.RS256})
		theirs := parsed
		if parsed == nil {
			_, theirs = jws.Verify(&key.PublicKey)
		}
		if (ours == nil) != c.ours || (google == nil) != c.google || (theirs == nil) != c.jose {
			t.Errorf("%s: ours %v, Google's %v, go-jose %v", c.name, ours, google, theirs)
		}
	}
	var twice struct {
		Issuer string `json:"iss"`
	}
	if err := json.Unmarshal([]byte(`{"iss":"https://x.example",`+claims[1:]), &twice); err != nil ||
		twice.Issuer != gcpidentity.Issuer {
		t.Errorf("the standard library returns %q, %v", twice.Issuer, err)
	}
}
