// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// gathered is what was read of a cluster, by name.
type gathered struct {
	own      string // the verifier's namespace
	machines map[string]machine.Machine
	enrolled map[string]machine.Enrollment
	objects  map[string]*v1alpha1.MachineAttestation // the enrollments' objects, records included
	records  map[string]*v1alpha1.MachineAttestation
	glass    map[string]*v1alpha1.MachineAttestation
	pending  map[string]store.Pending
	problems map[string]string
}

func newGathered(own string) *gathered {
	return &gathered{
		own: own, machines: map[string]machine.Machine{}, enrolled: map[string]machine.Enrollment{},
		objects: map[string]*v1alpha1.MachineAttestation{},
		records: map[string]*v1alpha1.MachineAttestation{}, glass: map[string]*v1alpha1.MachineAttestation{},
		pending: map[string]store.Pending{}, problems: map[string]string{},
	}
}

func key(o *unstructured.Unstructured) string {
	return o.GroupVersionKind().Group + "|" + o.GetNamespace() + "/" + o.GetName()
}

// object takes in a Machine, a host or a MachineAttestation.
func (g *gathered) object(o *unstructured.Unstructured) error {
	k := key(o)
	if o.GetAPIVersion() == v1alpha1.APIVersion {
		a := new(v1alpha1.MachineAttestation)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, a); err != nil {
			g.problems[k] = fmt.Sprintf("MachineAttestation %s/%s: %v", o.GetNamespace(), o.GetName(), err)
			return nil
		}
		g.objects[k] = a
		switch {
		case a.Namespace == g.own && record.IsBreakGlass(a.Status.MachineUID):
			g.glass[k] = a
			return nil
		case a.Namespace == g.own && a.Status.Pending != nil && a.Spec.MachineRef == nil && a.Spec.Pool == "":
			g.pending[k] = store.PendingOf(a)
			return nil
		case a.Namespace == g.own && strings.HasPrefix(a.Name, record.BreakGlassNamespace+"-") && a.Spec.MachineRef == nil &&
			a.Spec.Pool == "":
			return nil // it is being made
		case a.Spec.MachineRef == nil:
			g.records[string(a.UID)] = a
		case a.Status.MachineUID != "" || a.Status.Phase != "" || a.Status.Rehearsal != nil:
			g.records[a.Name] = a
		}
	}
	found, problems := machine.FromObject(o.Object)
	for _, p := range problems {
		g.problems[k] = p.Error()
	}
	for _, m := range found.Machines {
		g.machines[k] = m
	}
	for _, e := range found.Enrollments {
		s := e.Spec
		// A record in which an administrator wrote nothing says nothing of its Machine.
		if s.MachineRef == nil || len(s.EKSHA256) > 0 || s.ExpectedProviderID != "" || s.Quarantined || s.Reattest != nil {
			g.enrolled[k] = e
		}
	}
	return nil
}

// index joins what was gathered.
func (g *gathered) index() *machine.Index {
	var in machine.Manifests
	for _, k := range sorted(g.machines) {
		in.Machines = append(in.Machines, g.machines[k])
	}
	for _, k := range sorted(g.enrolled) {
		in.Enrollments = append(in.Enrollments, g.enrolled[k])
	}
	ix, problems := machine.NewIndex(in, nil)
	for i, p := range problems {
		g.problems[fmt.Sprintf("~%06d", i)] = p.Error()
	}
	return ix
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (g *gathered) state(now time.Time) *admin.State {
	out := &admin.State{Time: now.UTC()}
	ix := g.index()
	for _, m := range ix.Machines() {
		out.Machines = append(out.Machines, admin.About(m, g.records[m.UID]))
	}
	for _, k := range sorted(g.glass) {
		out.Machines = append(out.Machines, admin.BreakGlass(g.glass[k]))
	}
	out.Sort()
	for _, k := range sorted(g.pending) {
		p := g.pending[k]
		if ek, err := machine.ParseEKHash(p.EKSHA256); err == nil && ix.Enrolled(ek) {
			continue // approved; it has not asked again yet
		}
		out.Pending = append(out.Pending, p)
	}
	for _, k := range sorted(g.problems) {
		out.Problems = append(out.Problems, g.problems[k])
	}
	return out
}

// attestationScope is where MachineAttestations are: beside the Machines, and in
// the verifier's own namespace.
func (c *Cluster) attestationScope(in []string) []string {
	if in[0] == metav1.NamespaceAll || slices.Contains(in, c.o.Own) {
		return in
	}
	return append(slices.Clone(in), c.o.Own)
}

// gather reads Machines, hosts and MachineAttestations, whole or by a selector of
// their metadata.
func (c *Cluster) gather(ctx context.Context, o metav1.ListOptions) (*gathered, error) {
	if err := c.installed(); err != nil {
		return nil, err
	}
	in, err := c.scope(ctx)
	if err != nil {
		return nil, err
	}
	g := newGathered(c.o.Own)
	for _, ns := range c.attestationScope(in) {
		stranger := ns == c.o.Own && !slices.Contains(in, ns) && in[0] != metav1.NamespaceAll
		err := c.each(ctx, attestations, ns, o, func(o *unstructured.Unstructured) error {
			// A stand-in of the verifier's namespace is no Machine of the ones asked for.
			if pool, _, _ := unstructured.NestedString(o.Object, "spec", "pool"); stranger && len(c.o.Namespaces) > 0 &&
				pool != "" {
				return nil
			}
			return g.object(o)
		})
		if stranger && Forbidden(err) {
			g.problems["~"+ns] = err.Error()
			err = nil
		}
		if err != nil {
			return nil, err
		}
	}
	return g, c.gatherMachines(ctx, g, in, o)
}

func (c *Cluster) gatherMachines(ctx context.Context, g *gathered, in []string, o metav1.ListOptions) error {
	resources, err := c.machineResources()
	if err != nil {
		return err
	}
	for _, ns := range in {
		for _, r := range resources {
			if err := c.each(ctx, r, ns, o, g.object); err != nil {
				return err
			}
		}
	}
	if v, err := c.versions(hosts.Group); err != nil || !slices.Contains(v, hosts.Version) || o.FieldSelector != "" {
		return err
	}
	for _, ns := range in {
		if err := c.each(ctx, hosts, ns, o, g.object); err != nil && !Forbidden(err) {
			return err
		} else if err != nil {
			g.problems["~hosts"] = err.Error()
		}
	}
	return nil
}

// State reads every Machine, record and machine that waits.
func (c *Cluster) State(ctx context.Context) (*admin.State, error) {
	g, err := c.gather(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	s := g.state(c.o.Now())
	return s, c.conditions(ctx, s)
}

// conditions adds how the verifier itself is doing.
func (c *Cluster) conditions(ctx context.Context, s *admin.State) error {
	s.Cluster = c.host
	o, err := c.dynamic.Resource(verifiers).Get(ctx, v1alpha1.VerifierName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsForbidden(err):
		s.Problems = append(s.Problems, c.failed("get", verifiers, "", err).Error())
		return nil
	case err != nil:
		return c.failed("get", verifiers, "", err)
	}
	v := new(v1alpha1.AttestationVerifier)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, v); err != nil {
		return fmt.Errorf("AttestationVerifier %s: %w", v1alpha1.VerifierName, err)
	}
	s.Conditions, s.Holder = v.Status.Conditions, v.Status.Holder
	s.Serving = s.Serving || meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionAvailable)
	return nil
}

var uid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// Find is State without what is not called name. It reads as little as it can.
func (c *Cluster) Find(ctx context.Context, name string) (*admin.State, error) {
	if err := c.installed(); err != nil {
		return nil, err
	}
	g := newGathered(c.o.Own)
	if id := pendingID(name); id != "" {
		o, err := c.dynamic.Resource(attestations).Namespace(c.o.Own).Get(ctx, v1alpha1.PendingPrefix+id, metav1.GetOptions{})
		switch {
		case err == nil:
			if err := g.object(o); err != nil {
				return nil, err
			}
			if s := g.state(c.o.Now()); len(s.Pending) > 0 {
				return s, c.conditions(ctx, s)
			}
		case !apierrors.IsNotFound(err):
			return nil, c.failed("get", attestations, c.o.Own, err)
		}
	}
	found, err := c.find(ctx, name)
	if err != nil {
		return nil, err
	}
	s := found.state(c.o.Now())
	s = named(s, name)
	s.Problems = nil // of what shares a namespace with it
	return s, c.conditions(ctx, s)
}

// find gathers what is called name, and the MachineAttestations beside it.
func (c *Cluster) find(ctx context.Context, name string) (*gathered, error) {
	if uid.MatchString(name) || IsHexID(name) || strings.HasPrefix(name, record.BreakGlassNamespace) {
		return c.gather(ctx, metav1.ListOptions{}) // there is no selector by UID, EK or correlation id
	}
	namespace, rest := split(name)
	in, err := c.scope(ctx)
	if err != nil {
		return nil, err
	}
	if namespace != "" {
		in = []string{namespace}
	}
	g := newGathered(c.o.Own)
	only := metav1.ListOptions{FieldSelector: "metadata.name=" + rest}
	if err := c.gatherMachines(ctx, g, in, only); err != nil {
		return nil, err
	}
	beside := map[string]bool{}
	for _, m := range g.machines {
		beside[m.Namespace] = true
	}
	for _, ns := range c.attestationScope(in) {
		if err := c.each(ctx, attestations, ns, only, func(o *unstructured.Unstructured) error {
			beside[o.GetNamespace()] = true
			return g.object(o)
		}); err != nil {
			return nil, err
		}
	}
	// Its enrollments may have any name, and the record is named by the UID.
	for _, ns := range sorted(beside) {
		if err := c.each(ctx, attestations, ns, metav1.ListOptions{}, g.object); err != nil {
			return nil, err
		}
		if v, err := c.versions(hosts.Group); err == nil && slices.Contains(v, hosts.Version) {
			if err := c.each(ctx, hosts, ns, metav1.ListOptions{}, g.object); err != nil && !Forbidden(err) {
				return nil, err
			}
		}
	}
	return g, nil
}

// Waiting finds a machine that waits for approval.
func (c *Cluster) Waiting(ctx context.Context, name string) (store.Pending, error) {
	if err := c.installed(); err != nil {
		return store.Pending{}, err
	}
	id := pendingID(name)
	if id == "" {
		return store.Pending{}, noPendingMachine(name)
	}
	o, err := c.dynamic.Resource(attestations).Namespace(c.o.Own).Get(ctx, v1alpha1.PendingPrefix+id, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return store.Pending{}, noPendingMachine(name)
	}
	if err != nil {
		return store.Pending{}, c.failed("get", attestations, c.o.Own, err)
	}
	g := newGathered(c.o.Own)
	if err := g.object(o); err != nil {
		return store.Pending{}, err
	}
	for _, p := range g.pending {
		if len(name) == 64 && !strings.EqualFold(name, p.EKSHA256) {
			break
		}
		return p, nil
	}
	return store.Pending{}, noPendingMachine(name)
}

// Event is a Kubernetes Event, as explain shows it.
type Event struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Count   int64     `json:"count,omitempty"`
	From    string    `json:"from,omitempty"`
}

// Events of one machine, the oldest first.
func (c *Cluster) Events(ctx context.Context, m admin.Machine) ([]Event, error) {
	namespace, _ := split(m.Name)
	var all []Event
	err := c.each(ctx, events, namespace, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + m.UID},
		func(o *unstructured.Unstructured) error {
			all = append(all, event(o))
			return nil
		})
	slices.SortStableFunc(all, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return all, err
}

func event(o *unstructured.Unstructured) Event {
	str := func(path ...string) string { s, _, _ := unstructured.NestedString(o.Object, path...); return s }
	e := Event{Type: str("type"), Reason: str("reason"), Message: str("message"),
		From: cmp.Or(str("reportingComponent"), str("source", "component"))}
	e.Count, _, _ = unstructured.NestedInt64(o.Object, "count")
	for _, t := range []string{str("series", "lastObservedTime"), str("lastTimestamp"), str("eventTime"),
		str("firstTimestamp")} {
		if at, err := time.Parse(time.RFC3339, t); err == nil {
			e.Time = at
			return e
		}
	}
	e.Time = o.GetCreationTimestamp().Time
	return e
}

// errGone: the Machine was there a moment ago.
var errGone = errors.New("the Machine was deleted")
