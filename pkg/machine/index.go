package machine

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
)

// Index finds Machines by verified identity. It is read only and safe for
// concurrent use. The zero value holds no Machine.
type Index struct {
	all        []*Machine // by namespace and name
	byEK       map[EKHash][]enrolled
	byProvider map[string][]*Machine
	byUID      map[string]*Machine
	byName     map[name]*Machine
	// waiting are EKs that are enrolled for a Machine which is not there (yet).
	waiting map[EKHash]*Enrolment
}

// enrolled is a Machine under one of its EKs.
type enrolled struct {
	*Machine
	by *Enrolment // nil when the Machine's own annotation says so
}

// name of an object of one API group.
type name struct{ group, namespace, name string }

// userData tells which pool the pointer config in a user-data secret asks for;
// "" if it is not known. It may be nil.
type userData interface {
	PointerPool(namespace, secret string) string
}

// maxReported bounds the problems between manifests.
const maxReported = 100

// NewIndex builds an index over the manifests of many files. It never fails: two
// Machines with one identity are a warning here and a refusal in Match. What is
// passed in is not changed.
func NewIndex(in Manifests, pointers userData) (*Index, []manifest.Problem) {
	b := builder{Index: &Index{
		byEK:       make(map[EKHash][]enrolled, len(in.Machines)),
		byProvider: make(map[string][]*Machine, len(in.Machines)),
		byUID:      make(map[string]*Machine, len(in.Machines)),
		byName:     make(map[name]*Machine, len(in.Machines)),
		waiting:    map[EKHash]*Enrolment{},
	}}
	machines := make([]Machine, 0, len(in.Machines)+len(in.Enrolments))
	machines = append(machines, in.Machines...)
	enrolments := slices.Clone(in.Enrolments)
	// By place, so that the outcome does not depend on the order of files.
	slices.SortStableFunc(enrolments, func(a, b Enrolment) int {
		return cmp.Or(cmp.Compare(a.source.file, b.source.file), cmp.Compare(a.source.line, b.source.line))
	})
	for i := range enrolments {
		if enrolments[i].Spec.MachineRef == nil {
			machines = append(machines, enrolments[i].standIn())
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
			b.enrol(m, s, nil)
		}
	}
	for i := range enrolments {
		b.attach(&enrolments[i])
	}
	b.collisions()
	slices.SortFunc(b.all, func(x, y *Machine) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return b.Index, b.problems
}

// Machines are all Machines, sorted by namespace and name.
func (ix *Index) Machines() []*Machine { return slices.Clone(ix.all) }

// ByUID finds a Machine by its UID; a mirrored object's UID finds the one that counts.
func (ix *Index) ByUID(uid string) (*Machine, bool) {
	m, ok := ix.byUID[uid]
	return m, ok
}

// ByName finds Machines of either API, and stand-ins, by name: for people, never for Match.
func (ix *Index) ByName(namespace, machine string) []*Machine {
	var found []*Machine
	for _, group := range []string{groupMachineAPI, groupClusterAPI, v1alpha1.GroupVersion.Group} {
		if m, ok := ix.byName[name{group, namespace, machine}]; ok && !slices.Contains(found, m) {
			found = append(found, m)
		}
	}
	return found
}

// builder is an index while it is made.
type builder struct {
	*Index
	problems []manifest.Problem
}

func (b *builder) warn(at place, what, want string) {
	if len(b.problems) < maxReported {
		b.problems = append(b.problems, manifest.Problem{File: at.file, Line: at.line, What: what, Want: want, Warning: true})
	}
}

// add takes a Machine in under its names; the first of two same ones counts.
func (b *builder) add(m *Machine) {
	key := name{m.group(), m.Namespace, m.Name}
	if first, ok := b.byName[key]; ok {
		b.warn(m.source, fmt.Sprintf("%s %s is in two files and ignored here", m.Kind, m),
			fmt.Sprintf("the other is %s; keep one", first.source))
		return
	}
	if first, ok := b.byUID[m.UID]; ok {
		b.warn(m.source, fmt.Sprintf("%s %s has the UID of %s and is ignored", m.Kind, m, first),
			"a UID belongs to one object; leave it out if the manifest was copied")
		return
	}
	b.byName[key], b.byUID[m.UID] = m, m
	b.all = append(b.all, m)
}

// The values of authoritativeAPI (machine.openshift.io/v1beta1).
const (
	authorityMachineAPI = "MachineAPI"
	authorityClusterAPI = "ClusterAPI"
)

// fold removes mirrors. While a cluster moves from the Machine API to Cluster
// API, one machine is two objects with one provider id; the one that the Machine
// API object names as authoritative counts. The other still counts for what it
// forbids: being deleted, or having joined. In the middle of the move
// ("Migrating") neither can be told apart, and both stay: Match then refuses
// for the time being.
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
			b.warn(here.source, fmt.Sprintf("Machine %s is being moved between the Machine API and Cluster API", here),
				"it can attest when authoritativeAPI is MachineAPI or ClusterAPI")
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

// enrol puts a Machine under an EK. Twice the same Machine is once; an
// enrolment without end is the better of two.
func (b *builder) enrol(m *Machine, ek string, by *Enrolment) {
	var h EKHash
	if _, err := hex.Decode(h[:], []byte(ek)); err != nil {
		return // every hash was parsed before
	}
	for i, have := range b.byEK[h] {
		if have.Machine == m {
			if have.by != nil && have.by.Spec.NotAfter != nil && (by == nil || by.Spec.NotAfter == nil) {
				b.byEK[h][i].by = by
			}
			return
		}
	}
	b.byEK[h] = append(b.byEK[h], enrolled{m, by})
}

// attach gives a MachineAttestation to the Machine that it names.
func (b *builder) attach(e *Enrolment) {
	m := b.named(e)
	if m == nil {
		for _, h := range e.eks {
			b.waiting[h] = e
		}
		return
	}
	b.speaks(m, e)
	m.quarantined = m.quarantined || e.Spec.Quarantined
	if want := e.Spec.ExpectedProviderID; want != "" && m.ProviderID != "" &&
		NormalProviderID(want) != NormalProviderID(m.ProviderID) {
		b.warn(e.source, fmt.Sprintf("expectedProviderID is %q and Machine %s has %q", want, m, m.ProviderID),
			"correct one of them; until then it cannot attest with a cloud's evidence")
	}
	for _, h := range e.eks {
		m.addEK(h)
		b.enrol(m, hex.EncodeToString(h[:]), e)
	}
}

// speaks makes one of the enrolments of a Machine: of two grants the one that
// ends later counts.
func (b *builder) speaks(m *Machine, e *Enrolment) {
	if m.Enrolment == nil {
		m.Enrolment = &e.MachineAttestation
		return
	}
	if m.StandIn && m.Enrolment.Name == e.Name {
		return
	}
	if m.Enrolment.Name != m.UID && e.Name != m.UID { // one that is named by the UID is the verifier's record
		b.warn(e.source, fmt.Sprintf("Machine %s has a MachineAttestation already: %s", m, m.Enrolment.Name),
			"one per Machine is enough; what both say is in force")
	}
	one := m.Enrolment.DeepCopy()
	if g := e.Spec.Reattest; g != nil && (one.Spec.Reattest == nil || one.Spec.Reattest.Until.Before(&g.Until)) {
		one.Spec.Reattest = g
	}
	one.Spec.ExpectedProviderID = cmp.Or(one.Spec.ExpectedProviderID, e.Spec.ExpectedProviderID)
	m.Enrolment = one
}

// named is the Machine that an enrolment belongs to; nil if it is not there, or
// if two fit.
func (b *builder) named(e *Enrolment) *Machine {
	ref := e.Spec.MachineRef
	if ref == nil {
		m := b.byName[name{v1alpha1.GroupVersion.Group, e.Namespace, e.Name}]
		if m != nil && m.source != e.source {
			m.quarantined = m.quarantined || e.Spec.Quarantined
			return nil // the second of two with one name
		}
		return m
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
		b.warn(e.source, fmt.Sprintf("Machine %s/%s is not there", ref.Namespace, ref.Name),
			"nothing to do if it will come; else correct machineRef")
		return nil
	case 1:
		return found[0]
	}
	for _, m := range found { // whichever is meant
		m.quarantined = m.quarantined || e.Spec.Quarantined
	}
	b.warn(e.source, fmt.Sprintf("two Machines are named %s/%s", ref.Namespace, ref.Name), "set machineRef.apiVersion")
	return nil
}

// collisions reports identities that more than one Machine has.
func (b *builder) collisions() {
	for h, list := range b.byEK {
		for _, other := range list[1:] {
			b.warn(other.source, fmt.Sprintf("the EK %x is enrolled for %s and for %s", h, list[0].Machine, other.Machine),
				"one TPM is one machine; until then neither can attest")
		}
	}
	for id, list := range b.byProvider {
		for _, other := range list[1:] {
			b.warn(other.source, fmt.Sprintf("provider id %q belongs to %s and to %s", id, list[0], other),
				"one instance is one Machine; until then neither can attest")
		}
	}
	slices.SortFunc(b.problems, func(x, y manifest.Problem) int {
		return cmp.Or(cmp.Compare(x.File, y.File), cmp.Compare(x.Line, y.Line), cmp.Compare(x.What, y.What))
	})
}
