// SPDX-License-Identifier: Apache-2.0

package gcp_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"cloud.google.com/go/compute/metadata"
	"github.com/go-jose/go-jose/v4"

	"github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
)

func emulator(t *testing.T) (*gcp.Cloud, uint64) {
	t.Helper()
	cloud, err := gcp.New(gcp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ek, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id := cloud.Add(gcp.Instance{Project: "demo-1", Zone: "europe-west1-b", Name: "worker-a",
		UserData: []byte(`{"ignition":{}}`), EKs: []crypto.PublicKey{&ek.PublicKey}})
	return cloud, id
}

// Google's own client finds every value at its path.
func TestMetadataServerWorksWithGooglesClient(t *testing.T) {
	cloud, id := emulator(t)
	server := httptest.NewServer(cloud.Metadata(id))
	defer server.Close()
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(server.URL, "http://"))
	client := metadata.NewClient(nil)
	for name, want := range map[string]string{
		"instance/id": strconv.FormatUint(id, 10), "instance/name": "worker-a",
		"instance/zone":      "projects/123456789012/zones/europe-west1-b",
		"project/project-id": "demo-1", "project/numeric-project-id": "123456789012",
		"instance/attributes/user-data": `{"ignition":{}}`,
	} {
		if got, err := client.GetWithContext(t.Context(), name); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	token, err := client.GetWithContext(t.Context(),
		"instance/service-accounts/default/identity?audience=https%3A%2F%2Fx&format=full")
	if err != nil {
		t.Fatal(err)
	}
	jws, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		t.Fatal(err)
	}
	_, private := cloud.SigningKey()
	if payload, err := jws.Verify(&private.PublicKey); err != nil ||
		!strings.Contains(string(payload), `"instance_id":"`+strconv.FormatUint(id, 10)+`"`) {
		t.Errorf("payload %s, %v", payload, err)
	}
}

func TestMetadataServerRejectsLikeTheRealOne(t *testing.T) {
	cloud, id := emulator(t)
	none := cloud.Add(gcp.Instance{Project: "demo-1", Zone: "europe-west1-b", Name: "worker-b", ServiceAccount: "-"})
	const identity = "/computeMetadata/v1/instance/service-accounts/default/identity"
	for _, c := range []struct {
		name   string
		id     uint64
		path   string
		header http.Header
		status int
	}{
		{"a request without the header", id, "/computeMetadata/v1/instance/id", http.Header{}, 403},
		{"a request through a proxy", id, "/computeMetadata/v1/instance/id",
			http.Header{"Metadata-Flavor": {"Google"}, "X-Forwarded-For": {"10.0.0.1"}}, 403},
		{"an instance without user data", none, "/computeMetadata/v1/instance/attributes/user-data", nil, 404},
		{"an instance without service account", none, identity + "?audience=x&format=full", nil, 404},
		{"an identity without audience", id, identity + "?format=full", nil, 400},
		{"an unknown path", id, "/computeMetadata/v1/instance/nothing", nil, 404},
		{"the probe at the root", id, "/", http.Header{}, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.header == nil {
				c.header = http.Header{"Metadata-Flavor": {"Google"}}
			}
			r := httptest.NewRequest(http.MethodGet, c.path, nil)
			r.Header = c.header
			w := httptest.NewRecorder()
			cloud.Metadata(c.id).ServeHTTP(w, r)
			if w.Code != c.status || w.Header().Get("Metadata-Flavor") != "Google" {
				t.Errorf("status %d, headers %v; want %d", w.Code, w.Header(), c.status)
			}
		})
	}
}

func TestFaultLastsAsConfigured(t *testing.T) {
	cloud, id := emulator(t)
	server := httptest.NewServer(cloud.Metadata(id))
	defer server.Close()
	get := func() (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/computeMetadata/v1/instance/id", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Metadata-Flavor", "Google")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, err
	}
	cloud.Fail(gcp.Metadata, gcp.Fault{Status: 429, Times: 2})
	for i, want := range []int{429, 429, 200} {
		if got, err := get(); err != nil || got != want {
			t.Errorf("request %d: %d, %v; want %d", i, got, err, want)
		}
	}
	cloud.Fail(gcp.Metadata, gcp.Fault{Off: true})
	if status, err := get(); err == nil {
		t.Errorf("an answer with status %d of a server that is off", status)
	}
	cloud.Heal(gcp.Metadata)
	if got, err := get(); err != nil || got != 200 {
		t.Errorf("after it was healed: %d, %v", got, err)
	}
}
