package machine

import (
	"encoding/hex"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// Registry holds manifests that change one at a time, as a cluster's do. For each
// question it builds the [Index] of those few manifests that can have to do with
// the answer, so that there is one set of rules, and neither a change nor a
// question costs more in a cluster of 100 000 Machines than in one of ten.
//
// What can have to do with an identity: the Machines and enrolments that its
// components name; the Machines that these enrolments are for; a Machine's other
// object while it moves between the Machine API and Cluster API (the same
// provider id); and the enrolments of all of these.
//
// It is safe for concurrent use.
type Registry struct {
	pointers userData

	mu         sync.RWMutex
	machines   map[name]*Machine
	enrolments map[name]*Enrolment
	nodes      map[string]string // provider id by Node

	byUID      multimap[string, name] // Machines and stand-ins
	byProvider multimap[string, name] // the same
	byEK       multimap[EKHash, name] // Machines by annotation
	enrolledEK multimap[EKHash, name] // enrolments
	enrolledBy multimap[name, name]   // enrolments by the Machine they name; its group is empty
	nodeOf     multimap[string, string]
	texts      map[string]string // one copy of what many Machines say alike
}

// NewRegistry returns an empty one. Pointers may be nil.
func NewRegistry(pointers userData) *Registry {
	return &Registry{
		pointers: pointers, machines: map[name]*Machine{}, enrolments: map[name]*Enrolment{}, nodes: map[string]string{},
		byUID: newMultimap[string, name](), byProvider: newMultimap[string, name](), byEK: newMultimap[EKHash, name](),
		enrolledEK: newMultimap[EKHash, name](), enrolledBy: newMultimap[name, name](), nodeOf: newMultimap[string, string](),
		texts: map[string]string{},
	}
}

// PutMachine takes a Machine in, or its next state. It reports whether that is news.
func (r *Registry) PutMachine(m Machine) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := name{m.group(), m.Namespace, m.Name}
	m.source = place{}
	before, known := r.machines[key]
	if known && reflect.DeepEqual(*before, m) {
		return false
	}
	r.dropMachine(key)
	m.APIVersion, m.Kind, m.Namespace, m.Phase = r.text(m.APIVersion), r.text(m.Kind), r.text(m.Namespace), r.text(m.Phase)
	m.UserDataSecret, m.authority = r.text(m.UserDataSecret), r.text(m.authority)
	for i, p := range m.Pools {
		m.Pools[i] = r.text(p)
	}
	key.group, key.namespace, key.name = r.text(key.group), m.Namespace, m.Name
	r.machines[key] = &m
	r.byUID.add(m.UID, key)
	if m.ProviderID != "" {
		r.byProvider.add(NormalProviderID(m.ProviderID), key)
	}
	for _, h := range m.EKSHA256 {
		r.byEK.add(mustEKHash(h), key)
	}
	return true
}

// DeleteMachine forgets a Machine.
func (r *Registry) DeleteMachine(apiGroup, namespace, machine string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropMachine(name{apiGroup, namespace, machine})
}

func (r *Registry) dropMachine(key name) {
	m, ok := r.machines[key]
	if !ok {
		return
	}
	delete(r.machines, key)
	r.byUID.remove(m.UID, key)
	if m.ProviderID != "" {
		r.byProvider.remove(NormalProviderID(m.ProviderID), key)
	}
	for _, h := range m.EKSHA256 {
		r.byEK.remove(mustEKHash(h), key)
	}
}

// PutEnrolment takes an enrolment in, or its next state. One that says nothing,
// as the verifier's own record of a Machine does until an administrator writes
// something into it, is not kept. It reports whether that is news.
func (r *Registry) PutEnrolment(e Enrolment) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := name{e.kind, e.Namespace, e.Name}
	e.Status, e.ManagedFields, e.ResourceVersion = v1alpha1.MachineAttestationStatus{}, nil, ""
	before, known := r.enrolments[key]
	if known && reflect.DeepEqual(*before, e) || !known && e.silent() {
		return false
	}
	r.dropEnrolment(key)
	if e.silent() {
		return true
	}
	r.enrolments[key] = &e
	for _, h := range e.eks {
		r.enrolledEK.add(h, key)
	}
	if ref := e.Spec.MachineRef; ref != nil {
		r.enrolledBy.add(name{"", ref.Namespace, ref.Name}, key)
		return true
	}
	m := e.standIn()
	r.byUID.add(m.UID, key)
	if m.ProviderID != "" {
		r.byProvider.add(NormalProviderID(m.ProviderID), key)
	}
	return true
}

// DeleteEnrolment forgets a MachineAttestation.
func (r *Registry) DeleteEnrolment(namespace, enrolment string) {
	r.delete(name{"", namespace, enrolment})
}

// DeleteHost forgets the enrolment that a BareMetalHost is.
func (r *Registry) DeleteHost(namespace, host string) { r.delete(name{kindHost, namespace, host}) }

func (r *Registry) delete(key name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropEnrolment(key)
}

func (r *Registry) dropEnrolment(key name) {
	e, ok := r.enrolments[key]
	if !ok {
		return
	}
	delete(r.enrolments, key)
	for _, h := range e.eks {
		r.enrolledEK.remove(h, key)
	}
	if ref := e.Spec.MachineRef; ref != nil {
		r.enrolledBy.remove(name{"", ref.Namespace, ref.Name}, key)
		return
	}
	m := e.standIn()
	r.byUID.remove(m.UID, key)
	if m.ProviderID != "" {
		r.byProvider.remove(NormalProviderID(m.ProviderID), key)
	}
}

// PutNode notes a Node: a Machine with its provider id has joined, whatever the
// Machine's own status says (DESIGN, section 19, rule 11).
func (r *Registry) PutNode(node, providerID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropNode(node)
	if providerID != "" {
		id := NormalProviderID(providerID)
		r.nodes[node] = id
		r.nodeOf.add(id, node)
	}
}

// DeleteNode forgets a Node.
func (r *Registry) DeleteNode(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropNode(node)
}

func (r *Registry) dropNode(node string) {
	if id, ok := r.nodes[node]; ok {
		delete(r.nodes, node)
		r.nodeOf.remove(id, node)
	}
}

// Match is [Index.Match].
func (r *Registry) Match(id Identity, rules Rules) (*Machine, error) {
	return r.about(id).Match(id, rules)
}

// Named is [Index.Named].
func (r *Registry) Named(id Identity, rules Rules) *Machine { return r.about(id).Named(id, rules) }

// Enrolled is [Index.Enrolled].
func (r *Registry) Enrolled(ek EKHash) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.enrolledEK.has(ek) || r.byEK.has(ek)
}

// Known is [Index.Known].
func (r *Registry) Known(uid string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byUID.has(uid)
}

// Redeemable is [Index.Redeemable].
func (r *Registry) Redeemable(uid, pool string, now time.Time) error {
	return r.about(Identity{MachineUID: uid}).Redeemable(uid, pool, now)
}

// ByUID is [Index.ByUID].
func (r *Registry) ByUID(uid string) (*Machine, bool) {
	return r.about(Identity{MachineUID: uid}).ByUID(uid)
}

// ByName finds the Machines of either API, and stand-ins, of a name: for people and
// for housekeeping, never for Match.
func (r *Registry) ByName(namespace, machine string) []*Machine {
	var found []*Machine
	r.mu.RLock()
	c := closure{Registry: r, seen: map[name]bool{}}
	for _, group := range []string{groupMachineAPI, groupClusterAPI} {
		c.machine(name{group, namespace, machine})
	}
	c.enrolment(name{"", namespace, machine})
	r.mu.RUnlock()
	ix, _ := NewIndex(c.found, r.pointers)
	for _, m := range ix.ByName(namespace, machine) {
		if !slices.Contains(found, m) {
			found = append(found, m)
		}
	}
	return found
}

// UIDs are those of all Machines and stand-ins, in no order.
func (r *Registry) UIDs() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Keys(r.byUID.one))
}

// Len is how many Machines there are, stand-ins aside.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.machines)
}

// All is the index of everything: for what is asked seldom.
func (r *Registry) All() *Index {
	r.mu.RLock()
	c := closure{Registry: r, seen: map[name]bool{}}
	for key := range r.machines {
		c.machine(key)
	}
	for key := range r.enrolments {
		c.enrolment(key)
	}
	r.mu.RUnlock()
	ix, _ := NewIndex(c.found, r.pointers)
	return ix
}

// about is the index of what can have to do with an identity.
func (r *Registry) about(id Identity) *Index {
	r.mu.RLock()
	c := closure{Registry: r, seen: map[name]bool{}}
	if id.EK != (EKHash{}) {
		for _, key := range r.byEK.get(id.EK) {
			c.machine(key)
		}
		for _, key := range r.enrolledEK.get(id.EK) {
			c.enrolment(key)
		}
	}
	for _, p := range id.ProviderIDs {
		c.either(r.byProvider.get(NormalProviderID(p)))
	}
	if id.MachineUID != "" {
		c.either(r.byUID.get(id.MachineUID))
	}
	r.mu.RUnlock()
	ix, _ := NewIndex(c.found, r.pointers)
	return ix
}

// closure collects what belongs together. The registry is locked for reading.
type closure struct {
	*Registry
	seen  map[name]bool
	found Manifests
}

func (c *closure) either(keys []name) {
	for _, key := range keys {
		if _, ok := c.machines[key]; ok {
			c.machine(key)
		} else {
			c.enrolment(key)
		}
	}
}

func (c *closure) machine(key name) {
	m, ok := c.machines[key]
	if !ok || c.seen[key] {
		return
	}
	c.seen[key] = true
	own := *m
	if nodes := c.nodeOf.get(NormalProviderID(m.ProviderID)); own.NodeRef == "" && len(nodes) > 0 {
		own.NodeRef = nodes[0]
	}
	c.found.Machines = append(c.found.Machines, own)
	if m.ProviderID != "" {
		c.either(c.byProvider.get(NormalProviderID(m.ProviderID)))
	}
	for _, e := range c.enrolledBy.get(name{"", m.Namespace, m.Name}) {
		c.enrolment(e)
	}
}

func (c *closure) enrolment(key name) {
	// Enrolments are told from Machines by their group.
	e, ok := c.enrolments[key]
	if !ok || c.seen[key] {
		return
	}
	c.seen[key] = true
	own := *e
	if id := e.Spec.ExpectedProviderID; e.Spec.MachineRef == nil && id != "" {
		if nodes := c.nodeOf.get(NormalProviderID(id)); len(nodes) > 0 {
			own.node = nodes[0]
		}
		c.either(c.byProvider.get(NormalProviderID(id)))
	}
	c.found.Enrolments = append(c.found.Enrolments, own)
	if ref := e.Spec.MachineRef; ref != nil {
		for _, group := range []string{groupMachineAPI, groupClusterAPI} {
			c.machine(name{group, ref.Namespace, ref.Name})
		}
	}
}

// maxTexts bounds the texts that are kept once.
const maxTexts = 10_000

func (r *Registry) text(s string) string {
	if one, ok := r.texts[s]; ok {
		return one
	}
	if len(r.texts) < maxTexts {
		r.texts[s] = s
	}
	return s
}

func mustEKHash(s string) (h EKHash) {
	_, _ = hex.Decode(h[:], []byte(s)) // a Machine's hashes were parsed before
	return h
}

// multimap holds mostly one value for a key.
type multimap[K, V comparable] struct {
	one  map[K]V
	more map[K][]V
}

func newMultimap[K, V comparable]() multimap[K, V] {
	return multimap[K, V]{one: map[K]V{}, more: map[K][]V{}}
}

func (m multimap[K, V]) has(k K) bool {
	_, ok := m.one[k]
	return ok
}

func (m multimap[K, V]) get(k K) []V {
	v, ok := m.one[k]
	if !ok {
		return nil
	}
	return append([]V{v}, m.more[k]...)
}

func (m multimap[K, V]) add(k K, v V) {
	if _, ok := m.one[k]; ok {
		m.more[k] = append(m.more[k], v)
		return
	}
	m.one[k] = v
}

func (m multimap[K, V]) remove(k K, v V) {
	list := slices.DeleteFunc(m.get(k), func(x V) bool { return x == v })
	delete(m.one, k)
	delete(m.more, k)
	for _, x := range list {
		m.add(k, x)
	}
}
