// SPDX-License-Identifier: Apache-2.0

package gcpidentity_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
)

var (
	today   = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	created = today.Add(-90 * time.Second)
	binding = evidence.Binding{Transcript: sha256.Sum256([]byte("this conversation")),
		Origin: "https://api-int.demo.example:22623"}
)

// setup is an emulated cloud with one instance, and a verifier that has its keys.
type setup struct {
	cloud    *gcp.Cloud
	instance gcp.Instance
	verifier *gcpidentity.Verifier
}

var newCloud = func() (*gcp.Cloud, error) {
	return gcp.New(gcp.Options{Now: func() time.Time { return today }})
}

// Creating keys takes most of the time of these tests.
var sharedCloud = sync.OnceValues(newCloud)

// newSetup is for tests that do not change the cloud.
func newSetup(t testing.TB) setup {
	t.Helper()
	return setupOf(t, sharedCloud)
}

// newFreshSetup is for tests that change the cloud.
func newFreshSetup(t testing.TB) setup {
	t.Helper()
	return setupOf(t, newCloud)
}

func setupOf(t testing.TB, makeCloud func() (*gcp.Cloud, error)) setup {
	t.Helper()
	cloud, err := makeCloud()
	if err != nil {
		t.Fatal(err)
	}
	id := cloud.Add(gcp.Instance{Project: "demo-1", Zone: "europe-west1-b", Name: "worker-a", ID: 2875949485074006138,
		Created: created})
	instance, _ := cloud.Instance(id)
	keys, err := gcpidentity.ParseKeySet(cloud.Keys())
	if err != nil {
		t.Fatal(err)
	}
	return setup{cloud, instance, &gcpidentity.Verifier{Keys: keys, Projects: []string{"other", "demo-1"},
		Zones: []string{"europe-west1-b"}}}
}

// claims returns those of a valid token.
func (w setup) claims() map[string]any {
	return w.cloud.Claims(w.instance, gcpidentity.Audience(binding.Origin, binding.Transcript), true)
}

func engine(claims map[string]any) map[string]any {
	return claims["google"].(map[string]any)["compute_engine"].(map[string]any)
}

func (w setup) honest(t testing.TB) []byte {
	t.Helper()
	token, err := w.cloud.IdentityToken(w.instance.ID, gcpidentity.Audience(binding.Origin, binding.Transcript))
	if err != nil {
		t.Fatal(err)
	}
	return []byte(token)
}

func (w setup) verify(ctx context.Context, raw []byte) (evidence.Claim, error) {
	return w.verifier.Verify(ctx, evidence.Document{Kind: evidence.GCPIdentity, Raw: raw}, binding, today)
}

// refused fails unless the token is denied for that reason.
func (w setup) refused(t *testing.T, raw []byte, want reason.Code) {
	t.Helper()
	claim, err := w.verify(t.Context(), raw)
	if err == nil {
		t.Fatalf("accepted: %+v", claim.Statement())
	}
	if got := reason.From(err).Code; got != want {
		t.Fatalf("refused as %v, want %s", err, want)
	}
}

// sign returns a token with the given header and payload. With a nil key the signature is empty.
func sign(t testing.TB, key *rsa.PrivateKey, header, payload string) []byte {
	t.Helper()
	b64 := base64.RawURLEncoding.EncodeToString
	signed := b64([]byte(header)) + "." + b64([]byte(payload))
	if key == nil {
		return []byte(signed + ".")
	}
	digest := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	return []byte(signed + "." + b64(signature))
}

// header returns the header of a token in Google's form.
func (w setup) header() string {
	kid, _ := w.cloud.SigningKey()
	return `{"alg":"RS256","kid":"` + kid + `","typ":"JWT"}`
}

// with signs claims with Google's key.
func (w setup) with(t testing.TB, claims map[string]any) []byte {
	t.Helper()
	raw, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	_, key := w.cloud.SigningKey()
	return sign(t, key, w.header(), string(raw))
}

func TestTokenNamesItsInstance(t *testing.T) {
	w := newFreshSetup(t)
	w.instance.Confidential = true
	w.cloud.Add(w.instance)
	claim, err := w.verify(t.Context(), w.honest(t))
	if err != nil {
		t.Fatal(err)
	}
	statement, err := claim.Confirm(t.Context(), evidence.Candidate{ProviderID: w.instance.ProviderID()})
	if err != nil {
		t.Fatal(err)
	}
	if statement.Kind != evidence.GCPIdentity || statement.ProviderID != "gce://demo-1/europe-west1-b/worker-a" ||
		statement.InstanceID != "gcp:2875949485074006138" || !statement.Created.Equal(created) || !statement.Bound ||
		len(statement.Warnings) != 0 {
		t.Errorf("statement %+v", statement)
	}
	want := map[string]string{
		"project": "demo-1", "projectNumber": "123456789012", "zone": "europe-west1-b", "instance": "worker-a",
		"instanceID":     "2875949485074006138",
		"serviceAccount": "123456789012-compute@developer.gserviceaccount.com", "confidential": "true",
	}
	if !maps.Equal(statement.Summary, want) {
		t.Errorf("summary %v, want %v", statement.Summary, want)
	}
	if first := claim.Statement(); first.ProviderID != statement.ProviderID || first.InstanceID != statement.InstanceID {
		t.Errorf("before it was confirmed the statement was %+v", first)
	}
}

func TestTokenIsAcceptedInEveryFormOfGoogle(t *testing.T) {
	w := newFreshSetup(t)
	_, key := w.cloud.SigningKey()
	kid, _ := w.cloud.SigningKey()
	for name, token := range map[string][]byte{
		"without typ": sign(t, key, `{"alg":"RS256","kid":"`+kid+`"}`, text(t, w.claims())),
		"with a header member that means nothing": sign(t, key, `{"alg":"RS256","kid":"`+kid+`","typ":"JWT","x5t":"AAAA"}`,
			text(t, w.claims())),
		"with licenses": w.with(t,
			change(w.claims(), func(c map[string]any) { engine(c)["license_id"] = []string{"1000204"} })),
		"without e-mail": w.with(t,
			change(w.claims(), func(c map[string]any) { delete(c, "email"); delete(c, "email_verified") })),
		"of a clock that is five minutes ahead": w.with(t,
			change(w.claims(), func(c map[string]any) { c["iat"] = today.Unix() + 300 })),
		"with claims that are new": w.with(t,
			change(w.claims(), func(c map[string]any) { c["nonce"] = map[string]any{"deep": []int{1}} })),
	} {
		if _, err := w.verify(t.Context(), token); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	before := w.honest(t)
	if err := w.cloud.Rotate(); err != nil {
		t.Fatal(err)
	}
	keys, err := gcpidentity.ParseKeySet(w.cloud.Keys())
	if err != nil {
		t.Fatal(err)
	}
	w.verifier.Keys = keys
	for name, token := range map[string][]byte{"signed with the key before": before,
		"signed with the new key": w.honest(t)} {
		if _, err := w.verify(t.Context(), token); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOldProjectsHaveADomain(t *testing.T) {
	w := newSetup(t)
	w.verifier.Projects = []string{"example.com:demo-1"}
	claim, err := w.verify(t.Context(),
		w.with(t, change(w.claims(), func(c map[string]any) { engine(c)["project_id"] = "example.com:demo-1" })))
	if err != nil {
		t.Fatal(err)
	}
	if got := claim.Statement().ProviderID; got != "gce://example.com:demo-1/europe-west1-b/worker-a" {
		t.Error(got)
	}
}

// Google itself signed this token, in February 2025 (testdata/README.md). Its signature is genuine
// and its form is valid. It has another audience and time, and another project, so it is rejected
// at the audience.
func TestGenuineTokenIsDeniedOnlyForItsAudience(t *testing.T) {
	token, keys := genuine(t)
	d := evidence.Document{Raw: token}
	then := time.Unix(1739324791, 0)
	v := &gcpidentity.Verifier{Keys: keys, Projects: []string{"weipengpanda-project"}}
	_, err := v.Verify(t.Context(), d, binding, then)
	if reason.From(err).Code != reason.DocumentNotFresh {
		t.Fatalf("%v", err)
	}
	// The other key of that week did not sign it.
	swapped := gcpidentity.KeySet{}
	for kid := range keys {
		for other, key := range keys {
			if other != kid {
				swapped[kid] = key
			}
		}
	}
	v.Keys = swapped
	if _, err := v.Verify(t.Context(), d, binding, then); reason.From(err).Code != reason.DocumentInvalid {
		t.Fatalf("with the other key: %v", err)
	}
	for i := range token {
		altered := []byte(string(token))
		altered[i] ^= 1
		v.Keys = keys
		if _, err := v.Verify(t.Context(), evidence.Document{Raw: altered}, binding,
			then); reason.From(err).Code == reason.DocumentNotFresh {
			t.Fatalf("with byte %d altered its signature still verifies", i)
		}
	}
}

func genuine(t testing.TB) ([]byte, gcpidentity.KeySet) {
	t.Helper()
	token, err := os.ReadFile(filepath.Join("testdata", "wi-test-vm-1.jwt"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join("testdata", "google-certs-2025-02.json"))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := gcpidentity.ParseKeySet(raw)
	if err != nil || len(keys) != 2 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	return token, keys
}

func TestConfirm_AcceptsOnlyTheNamedInstance(t *testing.T) {
	w := newSetup(t)
	claim, err := w.verify(t.Context(), w.honest(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, other := range []string{
		"", "gce://demo-1/europe-west1-b/worker-b", "gce://demo-1/europe-west1-c/worker-a",
		"gce://demo-2/europe-west1-b/worker-a",
		"gce://demo-1/europe-west1-b/worker-a/", "GCE://demo-1/europe-west1-b/worker-a", "gce:///europe-west1-b/worker-a",
		"gce://demo-1/europe-west1-b/" + strconv.FormatUint(w.instance.ID, 10),
	} {
		if s, err := claim.Confirm(t.Context(), evidence.Candidate{ProviderID: other}); reason.From(err) == nil ||
			reason.From(err).Code != reason.EvidenceDisagrees {
			t.Errorf("%q: %+v, %v", other, s, err)
		}
	}
}

func text(t testing.TB, claims map[string]any) string {
	t.Helper()
	raw, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// change alters claims, which are created again for every token.
func change(claims map[string]any, alter func(map[string]any)) map[string]any {
	alter(claims)
	return claims
}

func (w setup) verifierAt(t testing.TB, raw []byte, now time.Time) (evidence.Claim, error) {
	t.Helper()
	return w.verifier.Verify(t.Context(), evidence.Document{Kind: evidence.GCPIdentity, Raw: raw}, binding, now)
}
