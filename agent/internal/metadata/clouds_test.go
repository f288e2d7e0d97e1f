// SPDX-License-Identifier: Apache-2.0

package metadata_test

import (
	"bytes"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
)

func TestAWS(t *testing.T) {
	i, c := onAWS(t, nil)
	s := newAWS(t, c.Metadata(i.ID), calm)
	data, err := s.UserData(t.Context())
	ok(t, err)
	if string(data) != "user data" {
		t.Errorf("user data %q", data)
	}
	instance, err := s.Instance(t.Context())
	ok(t, err)
	if instance.ProviderID() != i.ProviderID() || instance.Region != "eu-central-1" {
		t.Errorf("instance %+v", instance)
	}
	signed, err := s.SignedIdentity(t.Context())
	ok(t, err)
	if !bytes.Equal(signed, c.RSA2048(i.ID)) {
		t.Errorf("signed document of %d bytes is another", len(signed))
	}
	credentials, err := s.Credentials(t.Context())
	ok(t, err)
	if credentials.AccessKeyID == "" || credentials.SecretAccessKey == "" || credentials.SessionToken == "" {
		t.Errorf("credentials %+v", credentials)
	}
}

// The time in an STS request is that of the metadata service.
func TestCredentialsHaveTheServiceTime(t *testing.T) {
	i, c := onAWS(t, nil)
	node := c.Metadata(i.ID)
	then := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	dated := func(date []string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer := httptest.NewRecorder()
			node.ServeHTTP(answer, r)
			maps.Copy(w.Header(), answer.Header())
			w.Header()["Date"] = date
			w.WriteHeader(answer.Code)
			_, _ = w.Write(answer.Body.Bytes())
		})
	}
	credentials, err := newAWS(t, dated([]string{then.Format(http.TimeFormat)}), calm).Credentials(t.Context())
	ok(t, err)
	if !credentials.Now.Equal(then) {
		t.Errorf("time %v, want %v", credentials.Now, then)
	}
	if c, err := newAWS(t, dated(nil), calm).Credentials(t.Context()); err == nil {
		t.Errorf("credentials without a time: %v", c.Now)
	}
}

// An item that may have been assigned a moment ago is worth another round, but not an immediate
// retry.
func TestLateItemsAreTemporary(t *testing.T) {
	late := func(name string, err error) {
		t.Helper()
		if f := fault(t, err); !f.Late || !f.Temporary || f.Hint == "" || metadata.IsAbsent(err) {
			t.Errorf("%s: %+v", name, f)
		}
	}
	for name, change := range map[string]func(*aws.Instance){
		"no role": func(i *aws.Instance) { i.Role = "" },
		"an empty list": func(i *aws.Instance) {
			i.Faults.Replace = map[string][]byte{"meta-data/iam/security-credentials/": {}}
		},
		"no credentials": func(i *aws.Instance) { i.Faults.Missing = []string{"meta-data/iam/security-credentials/worker"} },
	} {
		i, c := onAWS(t, change)
		_, err := newAWS(t, c.Metadata(i.ID), calm).Credentials(t.Context())
		late(name, err)
	}
	c, i := onAzure(t, func(i *azure.Instance) { i.Identity = "" })
	s := newAzure(t, c.Metadata(i), calm)
	_, err := s.IdentityToken(t.Context(), "api://mcs-attest")
	late("no identity", err)
	// A 400 for other documents stays final.
	_, err = newAzure(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
	}), calm).Attested(t.Context(), "nonce")
	if f := fault(t, err); f.Temporary || f.Late {
		t.Errorf("%+v", f)
	}
}

// A restarted service does not know earlier tokens.
func TestStaleToken(t *testing.T) {
	i, c := onAWS(t, nil)
	var node atomic.Pointer[http.Handler]
	restart := func() { h := c.Metadata(i.ID); node.Store(&h) }
	restart()
	s := newAWS(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*node.Load()).ServeHTTP(w, r) }), calm)
	for range 3 {
		_, err := s.UserData(t.Context())
		ok(t, err)
		restart()
	}
}

// Version 1 would answer, but the agent does not use it.
func TestNoFallbackToIMDSv1(t *testing.T) {
	i, c := onAWS(t, func(i *aws.Instance) { i.Faults = aws.Faults{NoTokens: true, TokensOptional: true} })
	node := c.Metadata(i.ID)
	var without atomic.Int32
	s := newAWS(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			without.Add(1)
		}
		node.ServeHTTP(w, r)
	}), once)
	_, err := s.UserData(t.Context())
	fault(t, err)
	_, err = s.SignedIdentity(t.Context())
	fault(t, err)
	if n := without.Load(); n != 0 {
		t.Errorf("%d requests of version 1", n)
	}
}

func TestGCP(t *testing.T) {
	c, id := onGCP(t, nil)
	s := newGCP(t, c.Metadata(id), calm)
	data, err := s.UserData(t.Context())
	ok(t, err)
	if string(data) != "user data" {
		t.Errorf("user data %q", data)
	}
	providerID, err := s.ProviderID(t.Context())
	ok(t, err)
	if i, _ := c.Instance(id); providerID != i.ProviderID() {
		t.Errorf("provider id %q, want %q", providerID, i.ProviderID())
	}
	token, err := s.IdentityToken(t.Context(), "https://api-int.example.com:22623/mcs-attest/v1/a_b-c")
	ok(t, err)
	if bytes.Count(token, []byte(".")) != 2 {
		t.Errorf("token %q", token)
	}
}

func TestAzure(t *testing.T) {
	c, i := onAzure(t, nil)
	s := newAzure(t, c.Metadata(i), calm)
	data, err := s.UserData(t.Context())
	ok(t, err)
	if string(data) != "user data" {
		t.Errorf("user data %q", data)
	}
	providerID, err := s.ProviderID(t.Context())
	ok(t, err)
	if providerID != i.ProviderID() {
		t.Errorf("provider id %q, want %q", providerID, i.ProviderID())
	}
	document, err := s.Attested(t.Context(), "__79_Pv6-fj39vX08_Lx8O_u7ezr6uno")
	ok(t, err)
	if !bytes.Contains(document, []byte(`"__79_Pv6-fj39vX08_Lx8O_u7ezr6uno"`)) {
		t.Errorf("the nonce is not in the document of %d bytes", len(document))
	}
	token, err := s.IdentityToken(t.Context(), "api://mcs-attest")
	ok(t, err)
	if bytes.Count(token, []byte(".")) != 2 {
		t.Errorf("token %q", token)
	}
}

// Azure has returned a cached document with the nonce of an earlier request
// (https://github.com/MicrosoftDocs/azure-docs/issues/43938).
func TestAzureAttested_DocumentOfAnotherNonceIsTemporary(t *testing.T) {
	c, i := onAzure(t, nil)
	cached := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/metadata/attested/document?api-version=2020-09-01&nonce=earlier", nil)
	r.Header.Set("Metadata", "true")
	c.Metadata(i).ServeHTTP(cached, r)
	_, err := newAzure(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(cached.Body.Bytes())
	}), calm).Attested(t.Context(), "later")
	if f := fault(t, err); !f.Temporary || !strings.Contains(f.Problem, "another nonce") {
		t.Errorf("%+v", f)
	}
}

// Temporary failures are retried.
func TestTemporaryFailuresAreRetried(t *testing.T) {
	i, ac := onAWS(t, func(i *aws.Instance) { i.Faults = aws.Faults{Busy: 3} })
	_, err := newAWS(t, ac.Metadata(i.ID), calm).UserData(t.Context())
	ok(t, err)
	ac.Change(i.ID, func(i *aws.Instance) { i.Faults = aws.Faults{Busy: 3, BusyStatus: http.StatusServiceUnavailable} })
	_, err = newAWS(t, ac.Metadata(i.ID), calm).SignedIdentity(t.Context())
	ok(t, err)

	gc, id := onGCP(t, nil)
	for _, f := range []gcp.Fault{{Status: http.StatusServiceUnavailable}, {Status: http.StatusTooManyRequests},
		{Off: true}} {
		f.Times = 3
		gc.Fail(gcp.Metadata, f)
		gc.Fail(gcp.Identity, f)
		s := newGCP(t, gc.Metadata(id), calm)
		_, err = s.UserData(t.Context())
		ok(t, err)
		_, err = s.IdentityToken(t.Context(), "https://example.com")
		ok(t, err)
	}

	zc, z := onAzure(t, func(i *azure.Instance) { i.Metadata = azure.MetadataFaults{Throttled: 2, Gone: 2, Broken: 2} })
	_, err = newAzure(t, zc.Metadata(z), calm).UserData(t.Context())
	ok(t, err)
}

func TestMissingUserData(t *testing.T) {
	i, ac := onAWS(t, func(i *aws.Instance) { i.UserData = nil })
	if _, err := newAWS(t, ac.Metadata(i.ID), calm).UserData(t.Context()); !metadata.IsAbsent(err) {
		t.Errorf("AWS: error %v", err)
	}
	gc, id := onGCP(t, func(i *gcp.Instance) { i.UserData = nil })
	if _, err := newGCP(t, gc.Metadata(id), calm).UserData(t.Context()); !metadata.IsAbsent(err) {
		t.Errorf("Google Cloud: error %v", err)
	}
	zc, z := onAzure(t, func(i *azure.Instance) { i.UserData = nil })
	if data, err := newAzure(t, zc.Metadata(z), calm).UserData(t.Context()); len(data) != 0 || err != nil {
		t.Errorf("Azure: %q and error %v", data, err)
	}
	// Azure's 404 is not an absent document.
	z.Metadata.NotFound = true
	if _, err := newAzure(t, zc.Metadata(z), once).UserData(t.Context()); err == nil || metadata.IsAbsent(err) {
		t.Errorf("Azure: error %v", err)
	}
}
