// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// kind is a resource that the API server has.
type kind struct {
	group, version, resource, kind string
	namespaced                     bool
	// own are the subresources with the top-level field that only they change.
	own map[string]string
}

func (k *kind) gr() schema.GroupResource {
	return schema.GroupResource{Group: k.group, Resource: k.resource}
}

func (k *kind) apiVersion() string {
	return schema.GroupVersion{Group: k.group, Version: k.version}.String()
}

var status = map[string]string{"status": "status"}

// kinds are the resources of the cluster.
var kinds = []*kind{
	{"", "v1", "namespaces", "Namespace", false, status},
	{"", "v1", "nodes", "Node", false, status},
	{"", "v1", "secrets", "Secret", true, nil},
	{"", "v1", "configmaps", "ConfigMap", true, nil},
	{"", "v1", "events", "Event", true, nil},
	{"coordination.k8s.io", "v1", "leases", "Lease", true, nil},
	{"certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", false,
		map[string]string{"status": "status", "approval": "status"}},
	{"machine.openshift.io", "v1beta1", "machines", "Machine", true, status},
	{"mcs-attest.dev", "v1alpha1", "machineattestations", "MachineAttestation", true, status},
	{"mcs-attest.dev", "v1alpha1", "identityclaims", "IdentityClaim", false, nil},
	{"mcs-attest.dev", "v1alpha1", "attestationpolicies", "AttestationPolicy", false, status},
	{"mcs-attest.dev", "v1alpha1", "attestationverifiers", "AttestationVerifier", false, status},
}

func kindOf(group, version, resource string) *kind {
	for _, k := range kinds {
		if k.group == group && k.version == version && k.resource == resource {
			return k
		}
	}
	return nil
}

// fields is the content of an object. It is never changed after it was stored.
type fields = map[string]any

// object is a state of an object.
type object struct {
	kind            *kind
	namespace, name string
	content         fields
	raw             []byte
}

func (o *object) key() string {
	return o.kind.resource + "." + o.kind.group + "/" + o.namespace + "/" + o.name
}

func (o *object) meta() fields { return section(o.content, "metadata") }

func section(f fields, name string) fields {
	s, _ := f[name].(fields)
	return s
}

func text(f fields, name string) string {
	s, _ := f[name].(string)
	return s
}

// change is a write.
type change struct {
	revision      uint64
	at            time.Time
	by            string  // the client
	before, after *object // nil if the object did not exist, or was deleted
}

// last returns the state after the change, or the last state of a deleted object.
func (c change) last() *object {
	if c.after != nil {
		return c.after
	}
	return c.before
}

// store is the API server's storage. One etcd has all resources, so they share one revision.
type store struct {
	// committed receives each write, with the lock held.
	committed func(change)

	mu        sync.Mutex
	revision  uint64
	compacted uint64 // watches from an earlier revision expire
	era       int    // counts restores
	serial    int
	objects   map[string]*object
	history   []change
	watchers  map[*stream]bool
}

func newStore() *store {
	return &store{revision: 1, objects: map[string]*object{}, watchers: map[*stream]bool{}, committed: func(change) {}}
}

// write is a request that changes an object.
type write struct {
	by              string
	kind            *kind
	namespace, name string
	sub             string // a subresource, or empty
}

func (w write) key() string {
	return (&object{kind: w.kind, namespace: w.namespace, name: w.name}).key()
}

// normal returns a deep copy with the types to which JSON decodes. All stored content has these types.
func normal(f fields) fields {
	raw, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	var out fields
	if err := json.Unmarshal(raw, &out); err != nil {
		panic(err)
	}
	return out
}

// create stores a new object.
func (s *store) create(w write, content fields) (*object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	content = normal(content)
	meta := section(content, "metadata")
	if meta == nil {
		meta = fields{}
		content["metadata"] = meta
	}
	s.serial++
	if w.name = text(meta, "name"); w.name == "" {
		w.name = text(meta, "generateName") + fmt.Sprintf("%05d", s.serial)
	}
	if s.objects[w.key()] != nil {
		return nil, apierrors.NewAlreadyExists(w.kind.gr(), w.name)
	}
	meta["name"] = w.name
	delete(meta, "namespace")
	if w.kind.namespaced {
		meta["namespace"] = w.namespace
	}
	meta["uid"] = fmt.Sprintf("00000000-0000-4000-8000-%012d", s.serial)
	meta["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	meta["generation"] = 1.0
	delete(meta, "deletionTimestamp")
	for _, field := range w.kind.own {
		delete(content, field)
	}
	return s.commit(w, nil, content), nil
}

// change stores the next state of an object, which next makes of the current one. A resourceVersion or a uid that next
// returns must be the current one.
func (s *store) change(w write, next func(current fields) (fields, error)) (*object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.objects[w.key()]
	if before == nil {
		return nil, apierrors.NewNotFound(w.kind.gr(), w.name)
	}
	wanted, err := next(runtime.DeepCopyJSON(before.content))
	if err != nil {
		return nil, err
	}
	wanted = normal(wanted)
	old, meta := before.meta(), section(wanted, "metadata")
	if meta == nil {
		return nil, apierrors.NewBadRequest("no metadata")
	}
	for _, name := range []string{"resourceVersion", "uid"} {
		if v := text(meta, name); v != "" && v != text(old, name) {
			return nil, apierrors.NewConflict(w.kind.gr(), w.name, fmt.Errorf("%s is %s", name, text(old, name)))
		}
	}
	if field, ok := w.kind.own[w.sub]; ok {
		all := runtime.DeepCopyJSON(before.content)
		if all[field] = wanted[field]; wanted[field] == nil {
			delete(all, field)
		}
		wanted, meta = all, section(all, "metadata")
	} else {
		for _, field := range w.kind.own {
			if wanted[field] = before.content[field]; before.content[field] == nil {
				delete(wanted, field)
			}
		}
	}
	for _, name := range []string{"name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "generation",
		"resourceVersion"} {
		if meta[name] = old[name]; old[name] == nil {
			delete(meta, name)
		}
	}
	if reflect.DeepEqual(wanted, before.content) {
		return before, nil // the API server does not write such an update
	}
	if !reflect.DeepEqual(wanted["spec"], before.content["spec"]) {
		generation, _ := old["generation"].(float64)
		section(wanted, "metadata")["generation"] = generation + 1
	}
	if finalizers, _ := meta["finalizers"].([]any); old["deletionTimestamp"] != nil && len(finalizers) == 0 {
		return before, s.remove(w, before)
	}
	return s.commit(w, before, wanted), nil
}

// delete deletes an object. An object with finalizers stays until they are removed.
func (s *store) delete(w write, o metav1.DeleteOptions) (*object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.objects[w.key()]
	if before == nil {
		return nil, apierrors.NewNotFound(w.kind.gr(), w.name)
	}
	meta := before.meta()
	if p := o.Preconditions; p != nil {
		if p.UID != nil && *p.UID != types.UID(text(meta, "uid")) {
			return nil, apierrors.NewConflict(w.kind.gr(), w.name, fmt.Errorf("the UID is %s", text(meta, "uid")))
		}
		if p.ResourceVersion != nil && *p.ResourceVersion != text(meta, "resourceVersion") {
			return nil, apierrors.NewConflict(w.kind.gr(), w.name,
				fmt.Errorf("the resourceVersion is %s", text(meta, "resourceVersion")))
		}
	}
	if finalizers, _ := meta["finalizers"].([]any); len(finalizers) > 0 {
		if meta["deletionTimestamp"] != nil {
			return before, nil
		}
		next := runtime.DeepCopyJSON(before.content)
		section(next, "metadata")["deletionTimestamp"] = time.Now().UTC().Format(time.RFC3339)
		return s.commit(w, before, next), nil
	}
	return before, s.remove(w, before)
}

// commit stores a state. The caller holds the lock.
func (s *store) commit(w write, before *object, content fields) *object {
	s.revision++
	content["apiVersion"], content["kind"] = w.kind.apiVersion(), w.kind.kind
	section(content, "metadata")["resourceVersion"] = strconv.FormatUint(s.revision, 10)
	after := newObject(w, content)
	s.objects[after.key()] = after
	s.publish(change{revision: s.revision, at: time.Now(), by: w.by, before: before, after: after})
	return after
}

// newObject returns a state. Its content must not be changed.
func newObject(w write, content fields) *object {
	raw, err := json.Marshal(content)
	if err != nil {
		panic(err)
	}
	return &object{kind: w.kind, namespace: w.namespace, name: w.name, content: content, raw: raw}
}

// remove removes an object. The caller holds the lock.
func (s *store) remove(w write, before *object) error {
	s.revision++
	delete(s.objects, before.key())
	// The event of a deletion has the last state, with the revision of the deletion.
	last := runtime.DeepCopyJSON(before.content)
	section(last, "metadata")["resourceVersion"] = strconv.FormatUint(s.revision, 10)
	s.publish(change{revision: s.revision, at: time.Now(), by: w.by, before: newObject(w, last)})
	return nil
}

// publish notifies the watches of a change. The caller holds the lock.
func (s *store) publish(c change) {
	s.history = append(s.history, c)
	s.committed(c)
	for w := range s.watchers {
		if w.request.kind == c.last().kind {
			w.notify()
		}
	}
}

// get returns the current state of an object, or nil.
func (s *store) get(k *kind, namespace, name string) *object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[write{kind: k, namespace: namespace, name: name}.key()]
}

// list returns the objects of a kind that match, sorted by name, and the revision.
func (s *store) list(matches func(*object) bool) (all []*object, revision uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if o := s.objects[key]; matches(o) {
			all = append(all, o)
		}
	}
	return all, s.revision
}

// next moves a watch to its next change and returns the change. It returns ended if the watch cannot continue.
func (s *store) next(w *stream) (c change, ok, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended(w) {
		return change{}, false, true
	}
	if c, ok = s.advance(w); ok {
		w.at = c.revision
	}
	return c, ok, false
}

// ended reports whether a watch cannot continue. The caller holds the lock.
func (s *store) ended(w *stream) bool { return w.era != s.era || w.at < s.compacted }

// advance moves a watch over the changes of other kinds, and returns the next one of its own. The caller holds the
// lock.
func (s *store) advance(w *stream) (c change, ok bool) {
	i, _ := slices.BinarySearchFunc(s.history, w.at+1, func(c change, r uint64) int {
		return int(int64(c.revision) - int64(r))
	})
	for _, c := range s.history[i:] {
		if c.last().kind == w.request.kind {
			return c, true
		}
		w.at = c.revision
	}
	return change{}, false
}

// compact forgets the history. Watches that are behind end.
func (s *store) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watchers {
		s.advance(w)
		w.notify()
	}
	s.compacted, s.history = s.revision, nil
}

// backup is a state of etcd.
type backup struct {
	revision uint64
	objects  map[string]*object
}

func (s *store) backup() backup {
	s.mu.Lock()
	defer s.mu.Unlock()
	return backup{s.revision, maps.Clone(s.objects)}
}

// lost returns the number of writes since a backup.
func (s *store) lost(b backup) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision - b.revision
}

// restore sets a state from a backup. All watches end. bump raises the revision, as etcd's --bump-revision does; the
// objects keep theirs. compacted is as --mark-compacted: a watch of before does not continue.
func (s *store) restore(b backup, bump uint64, compacted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision, s.objects, s.history, s.compacted = b.revision+bump, maps.Clone(b.objects), nil, b.revision
	if compacted {
		s.compacted = s.revision
	}
	s.era++
	for w := range s.watchers {
		w.notify()
	}
}
