// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

// A client that disconnects during the review is no outage of the API. Otherwise it could read for an hour with a token
// that was revoked, by half of a TCP connection.
func TestReviews_ADisconnectedClientIsNoOutage(t *testing.T) {
	revoked := false
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var status any = authorization.SubjectAccessReviewStatus{Allowed: true}
		if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
			status = authentication.TokenReviewStatus{Authenticated: !revoked}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"status": status})
	}))
	defer srv.Close()
	api, err := kubernetes.NewForConfig(&rest.Config{Host: srv.URL,
		ContentConfig: rest.ContentConfig{AcceptContentTypes: "application/json", ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	reviews := &Reviews{Client: api, Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler)}
	page := reviews.Protect(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	gone, leave := context.WithCancel(t.Context())
	leave()
	for _, c := range []struct {
		name    string
		revoked bool
		after   time.Duration
		want    int
	}{
		{"first", false, 0, http.StatusOK},
		{"later", false, 2 * time.Minute, http.StatusOK},
		{"revoked", true, 2 * time.Minute, http.StatusUnauthorized},
	} {
		revoked, now = c.revoked, now.Add(c.after)
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(gone, http.MethodGet, "/metrics", nil)
		r.Header.Set("Authorization", "Bearer token")
		if page.ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("%s: status %d, want %d", c.name, w.Code, c.want)
		}
	}
}

// The account "reader" may get the page, and "prometheus" the metrics. A token is an account's name.
func TestReviews_AcceptAPasswordForThePageOnly(t *testing.T) {
	api, calls := fake.NewClientset(), 0
	api.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		calls++
		r := a.(clienttesting.CreateAction).GetObject().(*authentication.TokenReview).DeepCopy()
		r.Status.User.Username = r.Spec.Token
		r.Status.Authenticated = r.Spec.Token == "reader" || r.Spec.Token == "prometheus"
		return true, r, nil
	})
	api.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authorization.SubjectAccessReview).DeepCopy()
		r.Status.Allowed = map[string]string{"reader": "/page", "prometheus": "/metrics"}[r.Spec.User] ==
			r.Spec.NonResourceAttributes.Path
		return true, r, nil
	})
	now := time.Now()
	reviews := &Reviews{Client: api, Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler)}
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("served")) })
	metrics, page := reviews.Protect(served), reviews.ProtectPage("/page", served)
	ask := func(h http.Handler, path string, set func(*http.Request)) *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
		set(r)
		h.ServeHTTP(w, r)
		return w
	}
	basic := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth("any", token) }
	}
	bearer := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	}
	for _, c := range []struct {
		name    string
		handler http.Handler
		path    string
		set     func(*http.Request)
		want    int
		asks    string
	}{
		{"the page, without a token", page, "/page", func(*http.Request) {}, 401, "Basic "},
		{"the page, with an empty password", page, "/page", basic(""), 401, "Basic "},
		{"the page, with a wrong password", page, "/page", basic("guess"), 401, "Basic "},
		{"the page, without the permission", page, "/page", basic("prometheus"), 403, ""},
		{"the page, with a token as the password", page, "/page", basic("reader"), 200, ""},
		{"the page, with a bearer token", page, "/page", bearer("reader"), 200, ""},
		{"a long password", page, "/page", basic(strings.Repeat("x", maxToken+1)), 401, "Basic "},
		{"the metrics, with a password", metrics, "/metrics", basic("prometheus"), 401, "Bearer "},
		{"the metrics, without the permission", metrics, "/metrics", bearer("reader"), 403, ""},
		{"the metrics, with a bearer token", metrics, "/metrics", bearer("prometheus"), 200, ""},
	} {
		w := ask(c.handler, c.path, c.set)
		if w.Code != c.want || !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), c.asks) ||
			(w.Body.String() == "served") != (c.want == 200) {
			t.Errorf("%s: %d %v %s", c.name, w.Code, w.Header(), w.Body)
		}
	}
	before := calls
	for _, path := range []string{"/page", "/page/events", "/page/page.js", "/page/other"} {
		if w := ask(page, path, basic("reader")); w.Code != http.StatusOK {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	if calls != before {
		t.Errorf("%d reviews of a token that was accepted a moment ago", calls-before)
	}
}
