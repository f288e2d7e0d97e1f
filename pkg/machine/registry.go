package machine

import (
	"cmp"
	"encoding/hex"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
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
	machines   map[name]*kept
	enrolments map[name]*Enrolment
	nodes      map[string]string // provider id by Node

	byUID      multimap[string, *kept]
	byProvider multimap[string, *kept]
	byEK       multimap[EKHash, *kept] // by annotation
	// The same of enrolments; those by UID and provider id stand in for a Machine.
	standInUID      multimap[string, *Enrolment]
	standInProvider multimap[string, *Enrolment]
	enrolledEK      multimap[EKHash, *Enrolment]
	enrolledBy      multimap[name, *Enrolment] // by the Machine they name; its group is empty
	nodeOf          multimap[string, string]   // Nodes by provider id
	shared          map[alike]*alike           // what many Machines share
}

// kept is a Machine in as little memory as will do.
type kept struct {
	*alike
	name, uid, nodeRef, providerID string
	created                        int64 // Unix time in nanoseconds; 0 is none
	eks                            []EKHash
}

// alike is what many Machines share.
type alike struct {
	apiVersion, kind, namespace, phase, userDataSecret, authority string

	pools    string // joined by commas, which no pool's name has
	deleting bool
	undated  bool
}

// keep leaves out what nothing is found by: InternalDNS and addresses.
func (r *Registry) keep(m Machine) *kept {
	shared := alike{m.APIVersion, m.Kind, m.Namespace, m.Phase, m.UserDataSecret, m.authority, strings.Join(m.Pools, ","),
		m.Deleting, m.Undated}
	one, ok := r.shared[shared]
	if !ok {
		one = &shared
		if len(r.shared) < maxShared {
			r.shared[shared] = one
		}
	}
	k := &kept{alike: one, name: m.Name, uid: m.UID, nodeRef: m.NodeRef, providerID: m.ProviderID}
	if !m.Created.IsZero() {
		k.created = m.Created.UnixNano()
	}
	for _, s := range m.EKSHA256 {
		var h EKHash
		_, _ = hex.Decode(h[:], []byte(s)) // a Machine's hashes were parsed before
		k.eks = append(k.eks, h)
	}
	return k
}

// maxShared bounds what is kept once for many.
const maxShared = 10_000

// machine is what was kept.
func (k *kept) machine() Machine {
	m := Machine{
		APIVersion: k.apiVersion, Kind: k.kind, Namespace: k.namespace, Name: k.name, UID: k.uid, Deleting: k.deleting,
		Undated: k.undated, Phase: k.phase,
		NodeRef: k.nodeRef, ProviderID: k.providerID, UserDataSecret: k.userDataSecret, authority: k.authority,
	}
	if k.created != 0 {
		m.Created = time.Unix(0, k.created)
	}
	if k.pools != "" {
		m.Pools = strings.Split(k.pools, ",")
	}
	for _, h := range k.eks {
		m.EKSHA256 = append(m.EKSHA256, hex.EncodeToString(h[:]))
	}
	return m
}

func (k *kept) provider() string { return NormalProviderID(k.providerID) }

// NewRegistry returns an empty one. Pointers may be nil.
func NewRegistry(pointers userData) *Registry {
	return &Registry{
		pointers: pointers, machines: map[name]*kept{}, enrolments: map[name]*Enrolment{}, nodes: map[string]string{},
		byUID: newMultimap[string, *kept](), byProvider: newMultimap[string, *kept](), byEK: newMultimap[EKHash, *kept](),
		standInUID: newMultimap[string, *Enrolment](), standInProvider: newMultimap[string, *Enrolment](),
		enrolledEK: newMultimap[EKHash, *Enrolment](), enrolledBy: newMultimap[name, *Enrolment](),
		nodeOf: newMultimap[string, string](),
		shared: map[alike]*alike{},
	}
}

// PutMachine takes a Machine in, or its next state. Its names and addresses are
// not kept: nothing is found by them.
func (r *Registry) PutMachine(m Machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.keep(m)
	key := name{groupOf(k.apiVersion), k.namespace, k.name}
	r.dropMachine(key)
	r.machines[key] = k
	r.byUID.add(k.uid, k)
	if k.providerID != "" {
		r.byProvider.add(k.provider(), k)
	}
	for _, h := range k.eks {
		r.byEK.add(h, k)
	}
}

// HasMachine reports whether the Machine is known in this very state.
func (r *Registry) HasMachine(m Machine) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.machines[name{m.group(), m.Namespace, m.Name}]
	return ok && reflect.DeepEqual(*known, *r.keep(m))
}

// DeleteMachine removes a Machine, and returns its UID; "" if there is no such Machine.
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
	r.byUID.remove(k.uid, k)
	if k.providerID != "" {
		r.byProvider.remove(k.provider(), k)
	}
	for _, h := range k.eks {
		r.byEK.remove(h, k)
	}
	return k.uid
}

// PutEnrolment takes an enrolment in, or its next state. One that says nothing,
// as the verifier's own record of a Machine does until an administrator writes
// something into it, is not kept.
func (r *Registry) PutEnrolment(e Enrolment) {
	e = e.reduced()
	r.mu.Lock()
	defer r.mu.Unlock()
	key := name{e.kind, e.Namespace, e.Name}
	r.dropEnrolment(key)
	if e.silent() {
		return
	}
	r.enrolments[key] = &e
	for _, h := range e.eks {
		r.enrolledEK.add(h, &e)
	}
	if ref := e.Spec.MachineRef; ref != nil {
		r.enrolledBy.add(name{"", ref.Namespace, ref.Name}, &e)
		return
	}
	m := e.standIn()
	r.standInUID.add(m.UID, &e)
	if m.ProviderID != "" {
		r.standInProvider.add(NormalProviderID(m.ProviderID), &e)
	}
}

// reduced is what is kept of an enrolment.
func (e Enrolment) reduced() Enrolment {
	e.Status, e.ManagedFields, e.ResourceVersion = v1alpha1.MachineAttestationStatus{}, nil, ""
	return e
}

// HasEnrolment reports whether the enrolment is known in this very state.
func (r *Registry) HasEnrolment(e Enrolment) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	known, ok := r.enrolments[name{e.kind, e.Namespace, e.Name}]
	return !ok && e.silent() || ok && reflect.DeepEqual(*known, e.reduced())
}

// DeleteEnrolment removes a MachineAttestation, and returns the Machine that it was about; nil if there is none.
func (r *Registry) DeleteEnrolment(namespace, enrolment string) *v1alpha1.MachineReference {
	return r.delete(name{"", namespace, enrolment})
}

// DeleteHost forgets the enrolment that a BareMetalHost is.
func (r *Registry) DeleteHost(namespace, host string) { r.delete(name{kindHost, namespace, host}) }

func (r *Registry) delete(key name) *v1alpha1.MachineReference {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropEnrolment(key)
}

func (r *Registry) dropEnrolment(key name) *v1alpha1.MachineReference {
	e, ok := r.enrolments[key]
	if !ok {
		return nil
	}
	delete(r.enrolments, key)
	for _, h := range e.eks {
		r.enrolledEK.remove(h, e)
	}
	if ref := e.Spec.MachineRef; ref != nil {
		r.enrolledBy.remove(name{"", ref.Namespace, ref.Name}, e)
		return ref
	}
	m := e.standIn()
	r.standInUID.remove(m.UID, e)
	if m.ProviderID != "" {
		r.standInProvider.remove(NormalProviderID(m.ProviderID), e)
	}
	return nil
}

// PutNode notes a Node: a Machine with its provider id has joined, whatever the
// Machine's own status says (DESIGN, section 19, rule 11).
func (r *Registry) PutNode(node, providerID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropNode(node)
	if providerID != "" {
		id := NormalProviderID(providerID)
		if k, ok := r.byProvider.one[id]; ok { // the Machine's copy of both texts will do
			id = k.provider()
			if k.nodeRef == node {
				node = k.nodeRef
			}
		}
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
	return r.byUID.has(uid) || r.standInUID.has(uid)
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
	return r.collect(func(c *closure) {
		for _, group := range []string{groupMachineAPI, groupClusterAPI} {
			c.machine(r.machines[name{group, namespace, machine}])
		}
		c.enrolment(r.enrolments[name{"", namespace, machine}])
	}).ByName(namespace, machine)
}

// WithNodes returns the UIDs of the Machines whose nodeRef is one of some Nodes, with
// that Node.
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

// UIDs are those of all Machines and stand-ins, in no order.
func (r *Registry) UIDs() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.AppendSeq(slices.Collect(maps.Keys(r.byUID.one)), maps.Keys(r.standInUID.one))
}

// Len is how many Machines there are, stand-ins aside.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.machines)
}

// Nodes is how many Nodes are known.
func (r *Registry) Nodes() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.nodes)
}

// All is the index of everything: for what is asked seldom.
func (r *Registry) All() *Index {
	return r.collect(func(c *closure) {
		for _, m := range r.machines {
			c.machine(m)
		}
		for _, e := range r.enrolments {
			c.enrolment(e)
		}
	})
}

// Each calls one of the functions with each Machine and each enrolment as it was put, in no order. They must not call
// the registry.
func (r *Registry) Each(machine func(Machine), enrolment func(*Enrolment)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, k := range r.machines {
		machine(k.machine())
	}
	for _, e := range r.enrolments {
		enrolment(e)
	}
}

// about is the index of what can have to do with an identity.
func (r *Registry) about(id Identity) *Index {
	return r.collect(func(c *closure) {
		if id.EK != (EKHash{}) {
			for m := range r.byEK.all(id.EK) {
				c.machine(m)
			}
			for e := range r.enrolledEK.all(id.EK) {
				c.enrolment(e)
			}
		}
		for _, p := range id.ProviderIDs {
			c.instance(NormalProviderID(p))
		}
		if id.MachineUID != "" {
			for m := range r.byUID.all(id.MachineUID) {
				c.machine(m)
			}
			for e := range r.standInUID.all(id.MachineUID) {
				c.enrolment(e)
			}
		}
	})
}

func (r *Registry) collect(from func(*closure)) *Index {
	r.mu.RLock()
	c := closure{Registry: r, machinesSeen: map[*kept]bool{}, enrolmentsSeen: map[*Enrolment]bool{}}
	from(&c)
	r.mu.RUnlock()
	ix, _ := NewIndex(c.found, r.pointers)
	return ix
}

// closure collects what belongs together. The registry is locked for reading.
type closure struct {
	*Registry
	machinesSeen   map[*kept]bool
	enrolmentsSeen map[*Enrolment]bool
	found          Manifests
}

// instance collects what has a provider id.
func (c *closure) instance(id string) {
	for m := range c.byProvider.all(id) {
		c.machine(m)
	}
	for e := range c.standInProvider.all(id) {
		c.enrolment(e)
	}
}

// node is the Node with a provider id; "" if there is none.
func (c *closure) node(id string) string {
	for node := range c.nodeOf.all(id) {
		return node
	}
	return ""
}

// machine collects a Machine; nil is none.
func (c *closure) machine(k *kept) {
	if k == nil || c.machinesSeen[k] {
		return
	}
	c.machinesSeen[k] = true
	m := k.machine()
	if k.providerID != "" {
		m.NodeRef = cmp.Or(m.NodeRef, c.node(k.provider()))
	}
	c.found.Machines = append(c.found.Machines, m)
	if k.providerID != "" {
		c.instance(k.provider())
	}
	for e := range c.enrolledBy.all(name{"", k.namespace, k.name}) {
		c.enrolment(e)
	}
}

// enrolment collects an enrolment; nil is none.
func (c *closure) enrolment(e *Enrolment) {
	if e == nil || c.enrolmentsSeen[e] {
		return
	}
	c.enrolmentsSeen[e] = true
	own := *e
	id := NormalProviderID(e.Spec.ExpectedProviderID)
	standIn := e.Spec.MachineRef == nil
	if standIn && id != "" {
		own.node = c.node(id)
	}
	c.found.Enrolments = append(c.found.Enrolments, own)
	if standIn && id != "" {
		c.instance(id)
	}
	if ref := e.Spec.MachineRef; ref != nil {
		for _, group := range []string{groupMachineAPI, groupClusterAPI} {
			c.machine(c.machines[name{group, ref.Namespace, ref.Name}])
		}
	}
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

func (m multimap[K, V]) all(k K) iter.Seq[V] {
	return func(yield func(V) bool) {
		if v, ok := m.one[k]; !ok || !yield(v) {
			return
		}
		for _, v := range m.more[k] {
			if !yield(v) {
				return
			}
		}
	}
}

func (m multimap[K, V]) add(k K, v V) {
	if _, ok := m.one[k]; ok {
		m.more[k] = append(m.more[k], v)
		return
	}
	m.one[k] = v
}

func (m multimap[K, V]) remove(k K, v V) {
	if m.one[k] == v && len(m.more[k]) == 0 {
		delete(m.one, k)
		return
	}
	list := slices.DeleteFunc(slices.Collect(m.all(k)), func(x V) bool { return x == v })
	delete(m.one, k)
	delete(m.more, k)
	for _, x := range list {
		m.add(k, x)
	}
}
