// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
)

// Index finds Machines by verified identity. It is read-only and safe for concurrent
// use. The zero value contains no Machine.
type Index struct {
	all        []*Machine // by namespace and name
	byEK       map[EKHash][]enrolled
	byProvider map[string][]*Machine
	byUID      map[string]*Machine
	byName     map[name]*Machine
	// waiting has the EKs that are enrolled for a Machine that does not exist (yet).
	waiting map[EKHash]*Enrollment
	// byTicket has the Machines with a ticket for a rehearsal, by its hash.
	byTicket map[string][]ticketed
}

// enrolled is a Machine with one of its EKs.
type enrolled struct {
	*Machine
	by *Enrollment // nil if the Machine's own annotation enrolls it
}

// name identifies an object of one API group.
type name struct{ group, namespace, name string }

// userData returns the pool that the pointer config in a user-data secret requests, or ""
// if unknown. It may be nil.
type userData interface {
	PointerPool(namespace, secret string) string
}

// maxReported limits the reported problems between manifests.
const maxReported = 100

// NewIndex builds an index of the manifests of many files. It never fails: if two
// Machines have the same identity, it returns a warning, and Match denies both. It does
// not modify in.
func NewIndex(in Manifests, pointers userData) (*Index, []manifest.Problem) {
	b := builder{Index: &Index{
		byEK:       make(map[EKHash][]enrolled, len(in.Machines)),
		byProvider: make(map[string][]*Machine, len(in.Machines)),
		byUID:      make(map[string]*Machine, len(in.Machines)),
		byName:     make(map[name]*Machine, len(in.Machines)),
		waiting:    map[EKHash]*Enrollment{},
		byTicket:   map[string][]ticketed{},
	}, byMetal3: map[name][]name{}}
	machines := make([]Machine, 0, len(in.Machines)+len(in.Enrollments))
	machines = append(machines, in.Machines...)
	enrollments := slices.Clone(in.Enrollments)
	// Sort by place, so that the result does not depend on the order of files.
	slices.SortStableFunc(enrollments, func(a, b Enrollment) int {
		return cmp.Or(cmp.Compare(a.source.File, b.source.File), cmp.Compare(a.source.Line, b.source.Line))
	})
	for i := range enrollments {
		if enrollments[i].Spec.MachineRef == nil {
			machines = append(machines, enrollments[i].standIn())
		}
	}
	for i := range machines {
		m := &machines[i]
		m.Pools, m.EKSHA256 = slices.Clone(m.Pools), slices.Clone(m.EKSHA256)
		if pointers != nil && m.UserDataSecret != "" {
			m.addPool(pointers.PointerPool(m.Namespace, m.UserDataSecret))
		}
		b.add(m)
	}
	b.fold()
	for _, m := range b.all {
		for _, s := range m.EKSHA256 {
			b.enroll(m, ekOf(s), nil)
		}
	}
	for i := range enrollments {
		b.attach(&enrollments[i])
	}
	b.collisions()
	slices.SortFunc(b.all, func(x, y *Machine) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return b.Index, b.problems
}

// Machines returns all Machines, sorted by namespace and name.
func (ix *Index) Machines() []*Machine { return slices.Clone(ix.all) }

// ByUID finds a Machine by its UID. The UID of a mirror finds the authoritative Machine.
func (ix *Index) ByUID(uid string) (*Machine, bool) {
	m, ok := ix.byUID[uid]
	return m, ok
}

// ByName finds Machines of either API, and stand-ins, by name. It is for administrators, never for Match.
func (ix *Index) ByName(namespace, machine string) []*Machine {
	var found []*Machine
	for _, group := range []string{groupMachineAPI, groupClusterAPI, v1alpha1.GroupVersion.Group} {
		if m, ok := ix.byName[name{group, namespace, machine}]; ok && !slices.Contains(found, m) {
			found = append(found, m)
		}
	}
	return found
}

// builder builds an index.
type builder struct {
	*Index
	byMetal3 map[name][]name // Machines by their Metal3Machine
	problems []manifest.Problem
}

func (b *builder) warn(at manifest.Place, what, want string) {
	if len(b.problems) < maxReported {
		b.problems = append(b.problems, manifest.Problem{File: at.File, Line: at.Line, What: what, Want: want, Warning: true})
	}
}

// add adds a Machine by its names. Of two with the same name or UID, the first one counts.
func (b *builder) add(m *Machine) {
	key := name{m.group(), m.Namespace, m.Name}
	if first, ok := b.byName[key]; ok {
		b.warn(m.source, fmt.Sprintf("%s %s is in two files; this one is ignored", m.Kind, m),
			fmt.Sprintf("the other is %s; remove one", first.source))
		return
	}
	if first, ok := b.byUID[m.UID]; ok {
		b.warn(m.source, fmt.Sprintf("%s %s has the UID of %s and is ignored", m.Kind, m, first),
			"a UID belongs to one object; remove it if the manifest is a copy")
		return
	}
	b.byName[key], b.byUID[m.UID] = m, m
	b.all = append(b.all, m)
	if m.metal3 != "" {
		consumer := name{kindMetal3Machine, m.Namespace, m.metal3}
		b.byMetal3[consumer] = append(b.byMetal3[consumer], key)
	}
}

// The values of authoritativeAPI (machine.openshift.io/v1beta1).
const (
	authorityMachineAPI = "MachineAPI"
	authorityClusterAPI = "ClusterAPI"
)

// fold removes mirrors. While a cluster migrates from the Machine API to Cluster API,
// one machine has two objects with the same provider ID. The Machine API object names
// the authoritative one, which is kept. The mirror still adds its restrictions: that it
// is being deleted, or has joined. During the migration itself ("Migrating") neither is
// authoritative, so both are kept and Match denies temporarily.
func (b *builder) fold() {
	groups := make(map[string][]*Machine, len(b.all))
	for _, m := range b.all {
		if m.ProviderID != "" {
			id := NormalProviderID(m.ProviderID)
			groups[id] = append(groups[id], m)
		}
	}
	gone := map[*Machine]bool{}
	for _, pair := range groups {
		if len(pair) != 2 {
			continue
		}
		here, mirror := pair[0], pair[1]
		if here.group() != groupMachineAPI {
			here, mirror = mirror, here
		}
		if here.group() != groupMachineAPI || mirror.group() != groupClusterAPI {
			continue
		}
		here.Mirror, mirror.Mirror = mirror, here
		switch here.authority {
		case authorityMachineAPI:
		case authorityClusterAPI:
			here, mirror = mirror, here
		default:
			b.warn(here.source, fmt.Sprintf("Machine %s is migrating between the Machine API and Cluster API", here),
				"it can attest after authoritativeAPI becomes MachineAPI or ClusterAPI")
			continue
		}
		here.Deleting = here.Deleting || mirror.Deleting
		here.NodeRef = cmp.Or(here.NodeRef, mirror.NodeRef)
		if mirror.Joined() {
			here.Phase = mirror.Phase
		}
		for _, s := range mirror.EKSHA256 {
			if i, found := slices.BinarySearch(here.EKSHA256, s); !found {
				here.EKSHA256 = slices.Insert(here.EKSHA256, i, s)
			}
		}
		b.byUID[mirror.UID] = here
		b.byName[name{mirror.group(), mirror.Namespace, mirror.Name}] = here
		gone[mirror] = true
	}
	b.all = slices.DeleteFunc(b.all, func(m *Machine) bool { return gone[m] })
	for _, m := range b.all {
		if m.ProviderID != "" {
			id := NormalProviderID(m.ProviderID)
			b.byProvider[id] = append(b.byProvider[id], m)
		}
	}
}

// enroll adds a Machine's EK. If the Machine already has the EK, an enrollment without
// an end takes precedence. A Machine's own EKs, for which by is nil, come first.
func (b *builder) enroll(m *Machine, ek EKHash, by *Enrollment) {
	for i, have := range b.byEK[ek] {
		if have.Machine == m {
			if have.by != nil && by.Spec.NotAfter == nil {
				b.byEK[ek][i].by = by
			}
			return
		}
	}
	b.byEK[ek] = append(b.byEK[ek], enrolled{m, by})
}

// attach applies an enrollment to the Machine that it names.
func (b *builder) attach(e *Enrollment) {
	m := b.named(e)
	if m == nil {
		for _, h := range e.eks {
			b.waiting[h] = e
		}
		return
	}
	b.combine(m, e)
	m.quarantined = m.quarantined || e.Spec.Quarantined
	if t := e.Spec.Rehearsal; t != nil {
		b.byTicket[t.TicketSHA256] = append(b.byTicket[t.TicketSHA256], ticketed{m, t.Until.Time})
	}
	if want := e.Spec.ExpectedProviderID; want != "" {
		m.expected = append(m.expected, want)
		if m.ProviderID != "" && NormalProviderID(want) != NormalProviderID(m.ProviderID) {
			b.warn(e.source, fmt.Sprintf("expectedProviderID is %q, but Machine %s has %q", want, m, m.ProviderID),
				"correct one of them; until then the Machine cannot attest with a cloud's evidence")
		}
	}
	for _, h := range e.eks {
		m.addEK(h)
		b.enroll(m, h, e)
	}
}

// combine merges the enrollments of a Machine into one. Of two grants, the one that
// ends later counts.
func (b *builder) combine(m *Machine, e *Enrollment) {
	if m.Enrollment == nil {
		m.Enrollment = &e.MachineAttestation
		return
	}
	if m.StandIn { // e is the stand-in itself
		return
	}
	if m.Enrollment.Name != m.UID && e.Name != m.UID { // a record of the verifier has the UID as its name
		b.warn(e.source, fmt.Sprintf("Machine %s already has a MachineAttestation: %s", m, m.Enrollment.Name),
			"one per Machine is enough; both apply")
	}
	one := m.Enrollment.DeepCopy()
	if g := e.Spec.Reattest; g != nil && (one.Spec.Reattest == nil || one.Spec.Reattest.Until.Before(&g.Until)) {
		one.Spec.Reattest = g
	}
	m.Enrollment = one
}

// named returns the Machine that an enrollment belongs to, or nil if it does not exist
// or is ambiguous.
func (b *builder) named(e *Enrollment) *Machine {
	ref := e.Spec.MachineRef
	if ref == nil {
		m := b.byName[name{v1alpha1.GroupVersion.Group, e.Namespace, e.Name}]
		if m != nil && m.source != e.source {
			m.quarantined = m.quarantined || e.Spec.Quarantined
			return nil // a duplicate name
		}
		return m
	}
	if e.kind == kindHost && ref.Kind == kindMetal3Machine {
		return b.consumer(e)
	}
	var found []*Machine
	for _, group := range []string{groupMachineAPI, groupClusterAPI} {
		m, ok := b.byName[name{group, ref.Namespace, ref.Name}]
		if ok && !slices.Contains(found, m) && (ref.APIVersion == "" || groupOf(ref.APIVersion) == group) &&
			(ref.Kind == "" || ref.Kind == "Machine") {
			found = append(found, m)
		}
	}
	switch len(found) {
	case 0:
		b.warn(e.source, fmt.Sprintf("Machine %s/%s does not exist", ref.Namespace, ref.Name),
			"correct machineRef, unless the Machine will be created later")
		return nil
	case 1:
		return found[0]
	}
	for _, m := range found { // either may be meant
		m.quarantined = m.quarantined || e.Spec.Quarantined
	}
	b.warn(e.source, fmt.Sprintf("two Machines have the name %s/%s", ref.Namespace, ref.Name), "set machineRef.apiVersion")
	return nil
}

// consumer returns the Machine of the Metal3Machine that consumes a host, or nil unless there is exactly one.
func (b *builder) consumer(host *Enrollment) *Machine {
	ref := host.Spec.MachineRef
	keys := b.byMetal3[name{kindMetal3Machine, ref.Namespace, ref.Name}]
	if len(keys) == 1 {
		return b.byName[keys[0]]
	}
	b.warn(host.source, fmt.Sprintf("%d Machines have the Metal3Machine %s/%s", len(keys), ref.Namespace, ref.Name),
		"exactly one Machine, whose infrastructureRef names it; the host enrolls nothing until then")
	return nil
}

// collisions reports identities that belong to more than one Machine.
func (b *builder) collisions() {
	for h, list := range b.byEK {
		for _, other := range list[1:] {
			b.warn(other.source, fmt.Sprintf("EK %x is enrolled for both %s and %s", h, list[0].Machine, other.Machine),
				"enroll it for one Machine; until then neither can attest")
		}
	}
	for id, list := range b.byProvider {
		for _, other := range list[1:] {
			b.warn(other.source, fmt.Sprintf("provider ID %q belongs to both %s and %s", id, list[0], other),
				"keep it in one Machine; until then neither can attest")
		}
	}
	slices.SortFunc(b.problems, func(x, y manifest.Problem) int {
		return cmp.Or(cmp.Compare(x.File, y.File), cmp.Compare(x.Line, y.Line), cmp.Compare(x.What, y.What))
	})
}
