// SPDX-License-Identifier: Apache-2.0

package sources_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fakeAPI serves Machines in namespaces with the semantics of list and watch, and simulates the failures of an API
// server.
type fakeAPI struct {
	*httptest.Server

	mu        sync.Mutex
	changed   *sync.Cond
	revision  int
	compacted int // watches from an earlier revision expire
	era       int // counts restores; each object has the era in which it was written
	objects   map[string]map[string]any
	events    []event
	forbidden map[string]bool // namespaces
	absent    bool            // the kind
	away      bool
	starting  bool   // the API server does not know the kind yet
	streams   int    // watches that began under an earlier number end
	onPage    func() // called once, after the first page of a list that has more; the lock is held
}

type event struct {
	revision int
	kind     string
	object   map[string]any
}

func newFakeAPI(t *testing.T) *fakeAPI {
	t.Helper()
	a := &fakeAPI{revision: 1, objects: map[string]map[string]any{}, forbidden: map[string]bool{}}
	a.changed = sync.NewCond(&a.mu)
	a.Server = httptest.NewServer(a)
	t.Cleanup(func() {
		a.do(func() { a.streams++ })
		a.Close()
	})
	return a
}

func (a *fakeAPI) do(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	a.changed.Broadcast()
}

// put creates or replaces a Machine. The caller holds the lock.
func (a *fakeAPI) put(namespace, name string, value int, broken bool) {
	kind := "ADDED"
	if a.objects[namespace+"/"+name] != nil {
		kind = "MODIFIED"
	}
	a.revision++
	o := map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
		"metadata": map[string]any{
			"namespace": namespace, "name": name, "uid": "u-" + name, "resourceVersion": strconv.Itoa(a.revision),
		},
		"spec": map[string]any{"value": value, "broken": broken, "era": a.era},
	}
	a.objects[namespace+"/"+name] = o
	a.events = append(a.events, event{a.revision, kind, o})
}

// remove deletes a Machine. The caller holds the lock.
func (a *fakeAPI) remove(key string) {
	o := a.objects[key]
	delete(a.objects, key)
	a.revision++
	o = maps.Clone(o)
	o["metadata"] = maps.Clone(o["metadata"].(map[string]any))
	o["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(a.revision)
	a.events = append(a.events, event{a.revision, "DELETED", o})
}

// restore sets an earlier state. The caller holds the lock.
func (a *fakeAPI) restore(revision int, objects map[string]map[string]any) {
	a.revision, a.objects, a.events, a.compacted = revision, maps.Clone(objects), nil, revision
	a.era++
	for key, o := range a.objects {
		o = maps.Clone(o)
		o["spec"] = maps.Clone(o["spec"].(map[string]any))
		o["spec"].(map[string]any)["era"] = a.era
		a.objects[key] = o
	}
	a.streams++
}

func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") != "" {
		a.watch(w, r)
		return
	}
	a.mu.Lock()
	code, answer := a.answer(r)
	a.mu.Unlock()
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // the caller detects a truncated body
}

func namespaceOf(r *http.Request) string {
	return strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/apis/machine.openshift.io/v1beta1/namespaces/"),
		"/machines")
}

func failure(code int, reason metav1.StatusReason) (int, any) {
	kind := metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return code, &metav1.Status{TypeMeta: kind, Status: metav1.StatusFailure, Code: int32(code), Reason: reason}
}

func (a *fakeAPI) answer(r *http.Request) (int, any) {
	namespace := namespaceOf(r)
	switch at := r.URL.Path; {
	case a.starting && r.URL.Path == "/apis/machine.openshift.io/v1beta1":
		return failure(http.StatusNotFound, metav1.StatusReasonNotFound)
	case a.away:
		return failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	case a.absent:
		return failure(http.StatusNotFound, metav1.StatusReasonNotFound)
	case at == "/apis/machine.openshift.io/v1beta1":
		return http.StatusOK, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: "machine.openshift.io/v1beta1",
			APIResources: []metav1.APIResource{{Name: "machines", Kind: "Machine", Namespaced: true}},
		}
	case a.forbidden[namespace]:
		return failure(http.StatusForbidden, metav1.StatusReasonForbidden)
	}
	return a.page(namespace, r.URL.Query().Get("continue"), r.URL.Query().Get("limit") != "")
}

// page is three Machines of a list, or all of them where the request has no limit.
func (a *fakeAPI) page(namespace, after string, limited bool) (int, any) {
	revision := strconv.Itoa(a.revision)
	if at, rest, ok := strings.Cut(after, " "); ok {
		if revision = at; at != strconv.Itoa(a.revision) { // as if it were compacted
			return failure(http.StatusGone, metav1.StatusReasonExpired)
		}
		after = rest
	}
	meta, items := map[string]any{"resourceVersion": revision}, []any{}
	for _, key := range slices.Sorted(maps.Keys(a.objects)) {
		if !strings.HasPrefix(key, namespace+"/") || key <= after {
			continue
		}
		if limited && len(items) == 3 {
			meta["continue"] = revision + " " + after
			break
		}
		items, after = append(items, a.objects[key]), key
	}
	if meta["continue"] != nil {
		meta["continue"] = revision + " " + after
		if a.onPage != nil {
			a.onPage()
			a.onPage = nil
		}
	}
	return http.StatusOK, map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineList", "metadata": meta, "items": items,
	}
}

func (a *fakeAPI) watch(w http.ResponseWriter, r *http.Request) {
	at, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	a.mu.Lock()
	defer a.mu.Unlock()
	code, answer := a.answer(r)
	if code == http.StatusOK && at < a.compacted {
		code, answer = failure(http.StatusGone, metav1.StatusReasonExpired)
	}
	w.WriteHeader(code)
	out := json.NewEncoder(w)
	if code != http.StatusOK {
		_ = out.Encode(answer)
		return
	}
	namespace := namespaceOf(r)
	stop := context.AfterFunc(r.Context(), func() { a.do(func() {}) })
	defer stop()
	begun := false // a stream without an event counts as a failure
	for streams := a.streams; streams == a.streams && r.Context().Err() == nil; a.changed.Wait() {
		for _, e := range a.events {
			meta := e.object["metadata"].(map[string]any)
			if e.revision <= at || meta["namespace"] != namespace {
				continue
			}
			if out.Encode(map[string]any{"type": e.kind, "object": e.object}) != nil {
				return
			}
		}
		if a.revision > at || !begun {
			begun, at = true, max(a.revision, at)
			_ = out.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{
				"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
				"metadata": map[string]any{"resourceVersion": fmt.Sprint(at)},
			}})
		}
		w.(http.Flusher).Flush()
	}
}
