package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// namespaceAPI has namespaces, and nothing in them may be read.
type namespaceAPI struct {
	namespace atomic.Pointer[metav1.ObjectMeta] // nil: there is none
	refuse    atomic.Bool                       // nor may namespaces be read
	asked     atomic.Int32                      // for namespaces
}

func (a *namespaceAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	code, reason := http.StatusForbidden, metav1.StatusReasonForbidden
	var answer any
	if path.Dir(r.URL.Path) == "/api/v1/namespaces" {
		a.asked.Add(1)
		meta := a.namespace.Load()
		switch {
		case a.refuse.Load():
		case meta == nil:
			code, reason = http.StatusNotFound, metav1.StatusReasonNotFound
		default:
			code, answer = http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": meta}
		}
	}
	if answer == nil {
		answer = &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // the caller sees what is missing
}

// refusedOnce follows a watch that is refused until it has taken note of that.
func refusedOnce(t *testing.T, w *watched) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	var following sync.WaitGroup
	following.Go(func() {
		gvr := schema.GroupVersionResource{Group: w.group, Version: w.versions[0], Resource: w.resource}
		w.follow(ctx, gvr, &backoff{least: time.Millisecond, most: 10 * time.Millisecond})
	})
	noted := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.gone || w.err != nil
	}
	for !noted() && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if ctx.Err() != nil {
		t.Error("it took no note")
	}
	cancel()
	following.Wait()
}

func TestANamespaceThatIsGoneStopsNoOther(t *testing.T) {
	leaving := metav1.Now()
	for name, test := range map[string]struct {
		namespace *metav1.ObjectMeta
		refuse    bool
		gone      bool
	}{
		"gone":                           {nil, false, true},
		"on its way":                     {&metav1.ObjectMeta{Name: "m", DeletionTimestamp: &leaving}, false, true},
		"there, and nothing may be read": {&metav1.ObjectMeta{Name: "m"}, false, false},
		"nobody can tell":                {nil, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			api := &namespaceAPI{}
			api.namespace.Store(test.namespace)
			api.refuse.Store(test.refuse)
			server := httptest.NewServer(api)
			t.Cleanup(server.Close)
			c, err := New(t.Context(), &rest.Config{Host: server.URL}, config.Kubernetes{
				Namespace: "own", MachineNamespaces: []string{"m", "other"}, ServingSecret: "mco/tls", CAConfigMap: "mco/ca",
			}, Options{Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			of := func(namespace string) *watched { return c.watching(t, machineAPIKind, namespace) }
			for _, w := range c.watches {
				w.list(t, 10)
			}
			of("m").list(t, 11, object(1, 11, nil))
			for _, kind := range []kind{machineAPIKind, clusterAPIKind, hostKind, attestationKind} {
				refusedOnce(t, c.watching(t, kind, "m"))
			}
			c.build()
			world, left := c.World(), len(c.registry.UIDs())
			if synced, missing := c.Synced(); !synced || world.Complete != test.gone || world.Stale != nil {
				t.Errorf("synced %v, complete %v, stale %v", missing, world.Complete, world.Stale)
			}
			if (world.StaleIn["m"] == nil) != test.gone || world.StaleIn["other"] != nil {
				t.Errorf("stale in namespaces: %v", world.StaleIn)
			}
			if test.gone != (left == 0) {
				t.Errorf("%d Machines are known", left)
			}
			if !test.gone {
				return
			}
			// It is made anew.
			of("m").list(t, 20, object(1, 19, nil))
			c.build()
			if world = c.World(); !world.Complete || world.Stale != nil || len(c.registry.UIDs()) != 1 {
				t.Errorf("made anew: complete %v, %v", world.Complete, world.Stale)
			}
			of("m").failed(errors.New("away"))
			if s, wrong := of("m").state(); !wrong || !strings.Contains(s.text, "away") {
				t.Errorf("an error afterwards: %+v", s)
			}
		})
	}
}

// What is in the verifier's own namespace, and single objects, are never missed
// by accident.
func TestTheVerifiersOwnNamespaceIsNotTakenForGone(t *testing.T) {
	api := &namespaceAPI{}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	c, err := New(t.Context(), &rest.Config{Host: server.URL}, config.Kubernetes{
		Namespace: "own", MachineNamespaces: []string{"m"}, ServingSecret: "mco/tls", CAConfigMap: "mco/ca",
	}, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range c.watches {
		if w.namespace != "m" {
			refusedOnce(t, w)
			if s, _ := w.state(); w.gone || !s.forbidden {
				t.Errorf("%s: %+v", w, s)
			}
		}
	}
	if n := api.asked.Load(); n != 0 {
		t.Errorf("asked %d times", n)
	}
}
