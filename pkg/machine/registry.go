// SPDX-License-Identifier: Apache-2.0

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

// Registry holds manifests that change one at a time, as in a cluster. For each query
// it builds the [Index] of the few manifests that can affect the result. So both have
// the same rules, and the cost of a change or a query does not depend on the number of
// Machines.
//
// These manifests can affect the result for an identity: the Machines and enrollments
// that its components name; the Machines of these enrollments; a Machine's mirror (the
// object with the same provider ID in the other Machine API); and the enrollments of
// all of them.
//
// It is safe for concurrent use.
type Registry struct {
	pointers userData

	mu          sync.RWMutex
	machines    map[name]*compactMachine
	enrollments map[name]*Enrollment
	nodes       map[string]string // provider ID, or "", by Node name

	byUID      multimap[string, *compactMachine]
	byProvider multimap[string, *compactMachine]
	byEK       multimap[EKHash, *compactMachine] // by annotation
	// The same for enrollments. Those by UID and provider ID are stand-ins.
	standInUID      multimap[string, *Enrollment]
	standInProvider multimap[string, *Enrollment]
	enrolledEK      multimap[EKHash, *Enrollment]
	enrolledBy      multimap[name, *Enrollment]     // by what they name, see target
	ticket          multimap[string, *Enrollment]   // by the hash of their ticket for a rehearsal
	byMetal3        multimap[name, *compactMachine] // by Metal3Machine
	nodeOf          multimap[string, string]        // Nodes by provider ID
	shared          map[sharedFields]*sharedFields  // each combination is stored once
}

// ekOf returns a hash of [Machine].EKSHA256, which was already parsed.
func ekOf(s string) (h EKHash) {
	_, _ = hex.Decode(h[:], []byte(s))
	return h
}

// target returns the key of the object that an enrollment names: a Machine, with an empty group, or a Metal3Machine.
func target(ref *v1alpha1.MachineReference) name {
	if ref.Kind == kindMetal3Machine {
		return name{kindMetal3Machine, ref.Namespace, ref.Name}
	}
	return name{"", ref.Namespace, ref.Name}
}

// NewRegistry returns an empty registry. pointers may be nil.
func NewRegistry(pointers userData) *Registry {
	return &Registry{
		pointers:    pointers,
		machines:    map[name]*compactMachine{},
		enrollments: map[name]*Enrollment{},
		nodes:       map[string]string{},
		shared:      map[sharedFields]*sharedFields{},
	}
}

// PutMachine adds or replaces a Machine. The registry does not store its names and
// addresses, because no lookup uses them.
func (r *Registry) PutMachine(m Machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.compact(m)
	key := name{groupOf(k.apiVersion), k.namespace, k.name}
	r.dropMachine(key)
	r.machines[key] = k
	r.indexMachine(k, true)
}

// indexMachine adds a Machine to the indexes, or removes it.
func (r *Registry) indexMachine(k *compactMachine, present bool) {
	r.byUID.set(k.uid, k, present)
	if k.providerID != "" {
		r.byProvider.set(k.provider(), k, present)
	}
	if k.metal3 != "" {
		r.byMetal3.set(k.metal3Machine(), k, present)
	}
	for _, h := range k.eks {
		r.byEK.set(h, k, present)
	}
}

// HasMachine reports whether the registry has the Machine in exactly this state.
func (r *Registry) HasMachine(m Machine) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.machines[name{m.group(), m.Namespace, m.Name}]
	return ok && reflect.DeepEqual(*known, *r.compact(m))
}

// DeleteMachine deletes a Machine and returns its UID, or "" if it does not exist.
func (r *Registry) DeleteMachine(apiGroup, namespace, machine string) (uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropMachine(name{apiGroup, namespace, machine})
}

func (r *Registry) dropMachine(key name) (uid string) {
	k, ok := r.machines[key]
	if !ok {
		return ""
	}
	delete(r.machines, key)
	r.indexMachine(k, false)
	return k.uid
}

// PutEnrollment adds or replaces an enrollment, and returns the reference of the former one, if any. It does not store
// an empty one, such as the verifier's own record of a Machine before an administrator edits its spec.
func (r *Registry) PutEnrollment(e Enrollment) (former *v1alpha1.MachineReference) {
	e = e.reduced()
	r.mu.Lock()
	defer r.mu.Unlock()
	key := name{e.kind, e.Namespace, e.Name}
	former = r.dropEnrollment(key)
	if !e.empty() {
		r.enrollments[key] = &e
		r.indexEnrollment(&e, true)
	}
	return former
}

// indexEnrollment adds an enrollment to the indexes, or removes it.
func (r *Registry) indexEnrollment(e *Enrollment, present bool) {
	for _, h := range e.eks {
		r.enrolledEK.set(h, e, present)
	}
	if t := e.Spec.Rehearsal; t != nil {
		r.ticket.set(t.TicketSHA256, e, present)
	}
	if ref := e.Spec.MachineRef; ref != nil {
		r.enrolledBy.set(target(ref), e, present)
		return
	}
	m := e.standIn()
	r.standInUID.set(m.UID, e, present)
	if m.ProviderID != "" {
		r.standInProvider.set(NormalProviderID(m.ProviderID), e, present)
	}
}

// reduced returns the enrollment without the fields that the registry does not need.
func (e Enrollment) reduced() Enrollment {
	if t, used := e.Spec.Rehearsal, e.Status.Rehearsal; t != nil && used != nil && t.TicketSHA256 == used.TicketSHA256 {
		e.Spec.Rehearsal = nil // the ticket serves one rehearsal
	}
	e.Status, e.ManagedFields, e.ResourceVersion = v1alpha1.MachineAttestationStatus{}, nil, ""
	return e
}

// HasEnrollment reports whether the registry has the enrollment in exactly this state.
func (r *Registry) HasEnrollment(e Enrollment) bool {
	e = e.reduced()
	r.mu.RLock()
	defer r.mu.RUnlock()
	known, ok := r.enrollments[name{e.kind, e.Namespace, e.Name}]
	return !ok && e.empty() || ok && reflect.DeepEqual(*known, e)
}

// HasAttestation reports whether the registry has a MachineAttestation. It has none without content.
func (r *Registry) HasAttestation(namespace, attestation string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, ok := r.enrollments[name{"", namespace, attestation}]
	return ok
}

// DeleteEnrollment deletes a MachineAttestation and returns the Machine that it referred to, or nil.
func (r *Registry) DeleteEnrollment(namespace, enrollment string) *v1alpha1.MachineReference {
	return r.delete(name{"", namespace, enrollment})
}

// DeleteHost deletes the enrollment by a BareMetalHost.
func (r *Registry) DeleteHost(namespace, host string) { r.delete(name{kindHost, namespace, host}) }

func (r *Registry) delete(key name) *v1alpha1.MachineReference {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropEnrollment(key)
}

func (r *Registry) dropEnrollment(key name) *v1alpha1.MachineReference {
	e, ok := r.enrollments[key]
	if !ok {
		return nil
	}
	delete(r.enrollments, key)
	r.indexEnrollment(e, false)
	return e.Spec.MachineRef
}

// PutNode adds a Node. A Machine with its provider ID has joined, regardless of the
// Machine's own status (rule 11 of docs/security-rules.md).
func (r *Registry) PutNode(node, providerID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropNode(node)
	r.nodes[node] = ""
	if providerID != "" {
		id := NormalProviderID(providerID)
		if known := r.byProvider[id]; len(known) > 0 { // share the Machine's strings
			id = known[0].provider()
			if known[0].nodeRef == node {
				node = known[0].nodeRef
			}
		}
		r.nodes[node] = id
		r.nodeOf.set(id, node, true)
	}
}

// HasNode reports whether a Node of this name exists.
func (r *Registry) HasNode(node string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, ok := r.nodes[node]
	return ok
}

// DeleteNode deletes a Node.
func (r *Registry) DeleteNode(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropNode(node)
}

func (r *Registry) dropNode(node string) {
	if id, ok := r.nodes[node]; ok {
		delete(r.nodes, node)
		if id != "" {
			r.nodeOf.set(id, node, false)
		}
	}
}

// Match is [Index.Match].
func (r *Registry) Match(id Identity, rules Rules) (*Machine, error) {
	return r.related(id).Match(id, rules)
}

// Named is [Index.Named].
func (r *Registry) Named(id Identity, rules Rules) *Machine { return r.related(id).Named(id, rules) }

// Enrolled is [Index.Enrolled].
func (r *Registry) Enrolled(ek EKHash) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.enrolledEK[ek]) > 0 || len(r.byEK[ek]) > 0
}

// Known is [Index.Known].
func (r *Registry) Known(uid string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.byUID[uid]) > 0 || len(r.standInUID[uid]) > 0
}

// Redeemable is [Index.Redeemable].
func (r *Registry) Redeemable(uid, pool string, now time.Time) error {
	return r.related(Identity{MachineUID: uid}).Redeemable(uid, pool, now)
}

// ByUID is [Index.ByUID].
func (r *Registry) ByUID(uid string) (*Machine, bool) {
	return r.related(Identity{MachineUID: uid}).ByUID(uid)
}

// ByName finds Machines of either API, and stand-ins, by name. It is for administrators
// and cleanup, never for Match.
func (r *Registry) ByName(namespace, machine string) []*Machine {
	return r.collect(func(c *closure) {
		for _, group := range []string{groupMachineAPI, groupClusterAPI} {
			c.machine(r.machines[name{group, namespace, machine}])
		}
		c.enrollment(r.enrollments[name{"", namespace, machine}])
	}).ByName(namespace, machine)
}

// WithNodes returns the UIDs of the Machines whose nodeRef names a wanted Node, with that
// Node.
func (r *Registry) WithNodes(wanted func(node string) bool) map[string]string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	found := map[string]string{}
	for _, k := range r.machines {
		if k.nodeRef != "" && wanted(k.nodeRef) {
			found[k.uid] = k.nodeRef
		}
	}
	return found
}

// UIDs returns the UIDs of all Machines and stand-ins, unordered.
func (r *Registry) UIDs() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.AppendSeq(slices.Collect(maps.Keys(r.byUID)), maps.Keys(r.standInUID))
}

// Len returns the number of Machines, without stand-ins.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.machines)
}

// Nodes returns the number of Nodes.
func (r *Registry) Nodes() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.nodes)
}

// All returns the index of all manifests. It is expensive.
func (r *Registry) All() *Index {
	return r.collect(func(c *closure) {
		for _, m := range r.machines {
			c.machine(m)
		}
		for _, e := range r.enrollments {
			c.enrollment(e)
		}
	})
}

// Each calls machine with each Machine and enrollment with each enrollment, unordered. The functions must not call
// the registry.
func (r *Registry) Each(machine func(Machine), enrollment func(*Enrollment)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, k := range r.machines {
		machine(k.machine())
	}
	for _, e := range r.enrollments {
		enrollment(e)
	}
}

// related returns the index of all manifests that can affect the result for an identity.
func (r *Registry) related(id Identity) *Index {
	return r.collect(func(c *closure) {
		if id.EK != (EKHash{}) {
			for _, m := range r.byEK[id.EK] {
				c.machine(m)
			}
			for _, e := range r.enrolledEK[id.EK] {
				c.enrollment(e)
			}
		}
		for _, p := range id.ProviderIDs {
			c.instance(NormalProviderID(p))
		}
		if id.MachineUID != "" {
			for _, m := range r.byUID[id.MachineUID] {
				c.machine(m)
			}
			for _, e := range r.standInUID[id.MachineUID] {
				c.enrollment(e)
			}
		}
	})
}

func (r *Registry) collect(from func(*closure)) *Index {
	r.mu.RLock()
	c := closure{Registry: r, machinesSeen: map[*compactMachine]bool{}, enrollmentsSeen: map[*Enrollment]bool{}}
	from(&c)
	r.mu.RUnlock()
	ix, _ := NewIndex(c.found, r.pointers)
	return ix
}
