// SPDX-License-Identifier: Apache-2.0

package events_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
)

// run runs a recorder until the test ends.
func run(t *testing.T, r *events.Recorder) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { r.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func client(t *testing.T, c *rest.Config) *kubernetes.Clientset {
	t.Helper()
	typed, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return typed
}

func machine(name string) events.Object {
	return events.Object{
		APIVersion: "machine.openshift.io/v1beta1", Kind: "Machine", Namespace: "default", Name: name, UID: "u",
	}
}

func TestAttack_T58_EventsAreLostWhileTheAPIIsUnavailable(t *testing.T) {
	c := cluster.Start(t)
	typed := client(t, c.Admin())
	var lost atomic.Int32
	gone := make(chan struct{}, 1)
	r := events.NewRecorder(events.Options{
		Client: typed.CoreV1(), Log: slog.New(slog.DiscardHandler), Timeout: time.Minute,
		Dropped: func() {
			lost.Add(1)
			select {
			case gone <- struct{}{}:
			default:
			}
		},
	})
	// Before Run, the queue is bounded and Emit does not block.
	about := machine(strings.Repeat("n", 250))
	for range 1024 + 10 {
		r.Emit(events.Event{About: about, Reason: "Attested"})
	}
	if n := lost.Load(); n != 10 {
		t.Errorf("%d were dropped, want 10", n)
	}
	c.StopAPIServer()
	run(t, r)
	<-gone
	<-gone
	if err := c.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	for found := false; !found; time.Sleep(20 * time.Millisecond) { // until the queue is empty and one is written again
		r.Emit(events.Event{About: about, Reason: "Joined"})
		all, err := typed.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		for i := 0; err == nil && i < len(all.Items); i++ {
			found = found || all.Items[i].Reason == "Joined"
		}
	}
	if lost.Load() < 11 {
		t.Errorf("%d were lost", lost.Load())
	}
}

// api counts the calls for Events. It forbids changes in the namespace "default".
type api struct {
	mu              sync.Mutex
	created         []string
	patched, denied int
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/namespaces/default/"):
		a.denied++
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
		return
	case r.Method == http.MethodPatch:
		a.patched++
	case r.Method == http.MethodPost:
		raw, _ := io.ReadAll(r.Body)
		a.created = append(a.created, string(raw))
		_, _ = w.Write(raw)
		return
	}
	_, _ = io.WriteString(w, `{"kind":"Event","apiVersion":"v1","metadata":{"name":"e"}}`)
}

func (a *api) counts() (created, patched, denied int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.created), a.patched, a.denied
}

func (a *api) recorder(t *testing.T, dropped func()) *events.Recorder {
	t.Helper()
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	return events.NewRecorder(events.Options{
		Client: client(t, config).CoreV1(), Log: slog.New(slog.DiscardHandler), Timeout: time.Minute, Dropped: dropped,
	})
}

func until(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the condition did not hold within a minute")
		}
	}
}

// Where Events may be created but not patched, a repeated Event becomes a new object.
func TestEventsThatMayNotBePatchedAreCreatedAgain(t *testing.T) {
	a := &api{}
	r := a.recorder(t, func() { t.Error("an Event was lost") })
	for range 3 {
		r.Emit(events.Event{About: events.Object{Kind: "AttestationPolicy", Name: "workers"}, Reason: "NotUsable"})
	}
	run(t, r)
	until(t, func() bool { n, _, _ := a.counts(); return n == 3 })
	if _, patched, denied := a.counts(); patched != 0 || denied != 1 {
		t.Errorf("%d changed, %d attempts", patched, denied)
	}
}

// Many denials of a machine do not hide its quarantine.
func TestRecorder_LimitsOneReasonAboutOneObject(t *testing.T) {
	a := &api{}
	var dropped atomic.Int32
	r := a.recorder(t, func() { dropped.Add(1) })
	m := machine("m")
	m.Namespace = "openshift-machine-api"
	for range 200 {
		r.Emit(events.Event{About: m, Warning: true, Reason: "Denied", Code: "PCRCapped", Message: "\x1b[2J"})
	}
	r.Emit(events.Event{About: m, Warning: true, Reason: "Quarantined", Code: "x"})
	run(t, r)
	until(t, func() bool { n, _, _ := a.counts(); return n == 2 })
	created, patched, _ := a.counts()
	if created+patched+int(dropped.Load()) != 201 || dropped.Load() < 100 {
		t.Errorf("%d created, %d counted, %d dropped", created, patched, dropped.Load())
	}
	if strings.Contains(a.created[0], `\u001b`) || !strings.Contains(a.created[0], "PCRCapped: ?[2J") {
		t.Errorf("written %s", a.created[0])
	}
}
