// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
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

// namespaceAPI has every kind and some namespaces. Nothing may be read in the namespace
// m, and all else is unavailable.
type namespaceAPI struct {
	namespace atomic.Pointer[metav1.ObjectMeta] // nil: there is none
	refuse    atomic.Bool                       // nor may namespaces be read
	all       atomic.Bool                       // nothing may be read anywhere
	asked     sync.Map                          // the namespaces that were asked for
}

func (a *namespaceAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	code, answer := a.answer(r.URL.Path)
	if answer == nil {
		reason := metav1.StatusReasonForbidden
		if code != http.StatusForbidden {
			reason = metav1.StatusReasonNotFound
		}
		if code == http.StatusServiceUnavailable {
			reason = metav1.StatusReasonServiceUnavailable
		}
		answer = &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Code: int32(code), Reason: reason}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // the caller sees what is missing
}

func (a *namespaceAPI) answer(at string) (int, any) {
	kinds := []kind{machineAPIKind, clusterAPIKind, hostKind, attestationKind, policyKind, poolKind}
	for _, k := range kinds {
		gv := schema.GroupVersion{Group: k.Group, Version: k.Versions[0]}
		if at != "/apis/"+gv.String() {
			continue
		}
		all := metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: gv.String(),
		}
		for _, k := range kinds {
			if k.Group == gv.Group {
				all.APIResources = append(all.APIResources, metav1.APIResource{Name: k.Resource, Kind: k.Kind})
			}
		}
		return http.StatusOK, all
	}
	switch meta := a.namespace.Load(); {
	case path.Dir(at) == "/api/v1/namespaces":
		a.asked.Store(path.Base(at), true)
		switch {
		case a.refuse.Load():
			return http.StatusForbidden, nil
		case meta == nil:
			return http.StatusNotFound, nil
		}
		return http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": meta}
	case a.all.Load() || strings.Contains(at, "/namespaces/m/"):
		return http.StatusForbidden, nil
	}
	return http.StatusServiceUnavailable, nil
}

// runUntil watches until a condition is true of some sources.
func (c *Inventory) runUntil(t *testing.T, sources []watched, so func(w watched) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	var running sync.WaitGroup
	running.Go(func() { c.watches.Run(ctx) })
	for slices.ContainsFunc(sources, func(w watched) bool { return !so(w) }) && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if ctx.Err() != nil {
		t.Error("not in time")
	}
	cancel()
	running.Wait()
}

func TestDeletedNamespace_AffectsNoOther(t *testing.T) {
	leaving := metav1.Now()
	for name, test := range map[string]struct {
		namespace *metav1.ObjectMeta
		refuse    bool
		gone      bool
	}{
		"gone":                           {nil, false, true},
		"on its way":                     {&metav1.ObjectMeta{Name: "m", DeletionTimestamp: &leaving}, false, true},
		"there, and nothing may be read": {&metav1.ObjectMeta{Name: "m"}, false, false},
		"it is unknown":                  {nil, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			api := &namespaceAPI{}
			api.namespace.Store(test.namespace)
			api.refuse.Store(test.refuse)
			server := httptest.NewServer(api)
			t.Cleanup(server.Close)
			c, err := New(&rest.Config{Host: server.URL}, config.Kubernetes{
				Namespace: "own", MachineNamespaces: []string{"m", "other"}, ServingSecret: "mco/tls", CAConfigMap: "mco/ca",
			}, Options{Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			of := func(namespace string) watched { return c.watching(t, machineAPIKind, namespace) }
			for _, w := range c.sources() {
				w.list(t, 10)
			}
			of("m").list(t, 11, object(1, 11, nil))
			var inM []watched
			for _, kind := range []kind{machineAPIKind, clusterAPIKind, hostKind, attestationKind} {
				inM = append(inM, c.watching(t, kind, "m"))
			}
			c.runUntil(t, inM, func(w watched) bool { return w.Forbidden() || w.NamespaceGone() })
			c.build()
			current, left := c.View(), len(c.registry.UIDs())
			if synced, missing := c.Synced(); !synced || current.Complete != test.gone || current.Stale != nil {
				t.Errorf("synced %v, complete %v, stale %v", missing, current.Complete, current.Stale)
			}
			if (current.StaleIn["m"] == nil) != test.gone || current.StaleIn["other"] != nil {
				t.Errorf("stale in namespaces: %v", current.StaleIn)
			}
			if test.gone != (left == 0) {
				t.Errorf("%d Machines are known", left)
			}
			if !test.gone {
				return
			}
			// It is recreated.
			of("m").list(t, 20, object(1, 19, nil))
			c.build()
			if current = c.View(); !current.Complete || current.Stale != nil || len(c.registry.UIDs()) != 1 {
				t.Errorf("recreated: complete %v, %v", current.Complete, current.Stale)
			}
			of("m").Fail(errors.New("away"))
			if s, wrong := of("m").Status(); !wrong || !strings.Contains(s.Text, "away") {
				t.Errorf("an error afterwards: %+v", s)
			}
		})
	}
}

// What is in the verifier's own namespace, and single objects, are never missed
// by accident.
func TestInventory_OwnNamespaceNeverCountsAsDeleted(t *testing.T) {
	api := &namespaceAPI{}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	c, err := New(&rest.Config{Host: server.URL}, config.Kubernetes{
		Namespace: "own", MachineNamespaces: []string{"m"}, ServingSecret: "mco/tls", CAConfigMap: "mco/ca",
	}, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	api.all.Store(true)
	var others []watched
	for _, w := range c.sources() {
		if w.Namespace != "m" {
			others = append(others, w)
		}
	}
	c.runUntil(t, others, func(w watched) bool { s, _ := w.Status(); return s.Forbidden })
	api.asked.Range(func(name, _ any) bool {
		if name != "m" {
			t.Errorf("asked for %s", name)
		}
		return true
	})
}
