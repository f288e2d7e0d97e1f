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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
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
