// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
)

// The API server ends each stream with an event. The event stays unread if the reflector stops first.
func TestReducedWatch_EndsWithAnUnreadEvent(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		stream := watch.NewFakeWithChanSize(1, false)
		w := new(follower).reduced(stream)
		stream.Error(&metav1.Status{Reason: metav1.StatusReasonExpired})
		synctest.Wait()
		w.Stop()
		w.Stop()
		// The bubble fails if a goroutine is left.
	})
}

// forbid is an API server that forbids every request.
type forbid struct{ requests int }

func (f *forbid) RoundTrip(r *http.Request) (*http.Response, error) {
	f.requests++
	return &http.Response{StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}},
		Request: r, Body: io.NopCloser(strings.NewReader(
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`))}, nil
}

// still is an etcd that was never restored.
type still struct{}

func (still) Epoch() uint32                { return 0 }
func (still) Highest(uint32) uint64        { return 0 }
func (still) Observe(uint32, uint64)       {}
func (still) Probe(context.Context) error  { return nil }
func (still) Restored(uint32, string)      {}
func (still) Follows(uint32, uint64) error { return nil }

// A missing permission lets each cache end before its first list, for as long as the permission is missing.
func TestRunner_AForbiddenSourceLeavesNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, scheme := new(forbid), runtime.NewScheme()
		if err := corev1.AddToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		i, err := New(Options{
			Config: &rest.Config{Host: "http://api", Transport: api}, Scheme: scheme, Log: slog.New(slog.DiscardHandler),
			Namespace: "ns", Retry: time.Second, Revisions: still{}, Batch: new(sync.Mutex), Changed: func() {},
			NamespaceGone: func(context.Context, string) bool { return false },
		}, &Source{Kind: Kind{Kind: "Secret", Resource: "secrets", Versions: []string{"v1"}}, Namespace: "ns",
			Object: new(corev1.Secret)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		i.Run(ctx)
		if api.requests < 2 {
			t.Errorf("%d requests in ten minutes", api.requests)
		}
		// The bubble fails if a goroutine is left.
	})
}

// things is an API server with one object of a custom kind. While it starts, it does not know the kind.
type things struct {
	mu       sync.Mutex
	starting bool
	streams  []context.CancelFunc
}

// restart ends all streams.
func (a *things) restart(starting bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.starting = starting
	for _, end := range a.streams {
		end()
	}
	a.streams = nil
}

// stream is the body of a watch without events.
type stream struct{ context.Context }

func (s stream) Read([]byte) (int, error) { <-s.Done(); return 0, io.EOF }
func (stream) Close() error               { return nil }

func (a *things) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := &http.Response{StatusCode: http.StatusOK, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}}
	body := `{"apiVersion":"g/v1","kind":"ThingList","metadata":{"resourceVersion":"9"},
		"items":[{"apiVersion":"g/v1","kind":"Thing","metadata":{"name":"one","resourceVersion":"5"}}]}`
	switch {
	case a.starting:
		answer.StatusCode = http.StatusNotFound
		body = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
	case r.URL.Path == "/apis/g/v1":
		body = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"g/v1","resources":[{"name":"things","kind":"Thing"}]}`
	case r.URL.Query().Get("watch") != "":
		ctx, end := context.WithCancel(r.Context())
		a.streams = append(a.streams, end)
		answer.Body = stream{ctx}
		return answer, nil
	}
	answer.Body = io.NopCloser(strings.NewReader(body))
	return answer, nil
}

// A starting API server may not know a kind yet. Then nothing may be deleted.
func TestRunner_AKindIsAbsentOnlyAfterAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, known := new(things), map[string]bool{}
		var mu sync.Mutex
		want := func(when string, want bool) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if known["one"] != want {
				t.Errorf("%s: the object is known: %v", when, !want)
			}
		}
		i, err := New(Options{
			Config: &rest.Config{Host: "http://api", Transport: api}, Scheme: runtime.NewScheme(),
			Log: slog.New(slog.DiscardHandler), Namespace: "ns", Retry: time.Minute, Revisions: still{}, Batch: new(sync.Mutex),
			Changed: func() {}, Usable: func(*Source, types.NamespacedName) {},
		}, &Source{
			Kind:     Kind{Group: "g", Kind: "Thing", Resource: "things", Versions: []string{"v1"}},
			Optional: true, Whole: true, Object: new(unstructured.Unstructured),
			Read: func(client.Object) (any, []manifest.Problem) { return nil, nil },
			Put: func(o *Object) []manifest.Problem {
				mu.Lock()
				defer mu.Unlock()
				known[o.Name] = true
				return nil
			},
			Drop: func(n types.NamespacedName) {
				mu.Lock()
				defer mu.Unlock()
				delete(known, n.Name)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { i.Run(ctx) })
		time.Sleep(time.Second)
		want("at first", true)
		api.restart(true)
		time.Sleep(50 * time.Second)
		want("while the API server starts", true)
		api.restart(false)
		time.Sleep(time.Minute)
		want("after it started", true)
		api.restart(true)
		time.Sleep(50 * time.Second)
		want("shortly after the kind was deleted", true)
		time.Sleep(time.Minute)
		want("a minute after the kind was deleted", false)
		cancel()
		running.Wait()
	})
}
