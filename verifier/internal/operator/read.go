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
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// gathered is what was read of a cluster, by name.
type gathered struct {
	own      string   // the verifier's namespace
	only     []string // the namespaces that were asked for; none means all
	unread   error    // why objects of a namespace of mirrors are missing
	machines map[string]machine.Machine
	enrolled map[string]machine.Enrollment
	objects  map[string]*v1alpha1.MachineAttestation // the enrollments' objects, records included
	records  map[string]*v1alpha1.MachineAttestation
	glass    map[string]*v1alpha1.MachineAttestation
	pending  map[string]store.Pending
	problems map[string]string
}

func (c *Cluster) newGathered(only ...string) *gathered {
	if slices.Contains(only, "*") {
		only = nil
	}
	return &gathered{
		own: c.o.Own, only: only, machines: map[string]machine.Machine{}, enrolled: map[string]machine.Enrollment{},
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
		if len(g.only) == 0 || slices.Contains(g.only, m.Namespace) || isMirror(ix, m.Mirror, g.only) {
			out.Machines = append(out.Machines, admin.About(m, g.records[records.UID(m)]))
		}
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

// isMirror reports whether m is in one of the namespaces, and only another object of the same machine is in force.
func isMirror(ix *machine.Index, m *machine.Machine, namespaces []string) bool {
	if m == nil || !slices.Contains(namespaces, m.Namespace) {
		return false
	}
	inForce, ok := ix.ByUID(m.UID)
	return ok && inForce != m
}

// named is the part of the state that a person calls name. A name or UID of a Machine's other object is the Machine's.
func (g *gathered) named(now time.Time, name string) *admin.State {
	ix := g.index()
	if m, ok := ix.ByUID(name); ok {
		name = m.UID
	} else if namespace, rest := split(name); namespace != "" {
		if found := ix.ByName(namespace, rest); len(found) == 1 {
			name = found[0].String()
		}
	}
	return named(g.state(now), name)
}

// withMirrors returns namespaces, and those of the mirrors of their Machines. A machine that moves between the Machine
// API and Cluster API is an object in both of OpenShift's namespaces, and has one record.
func withMirrors(in []string) []string {
	out := slices.Clone(in)
	for _, other := range []string{machineAPINamespace, clusterAPINamespace} {
		if !slices.Contains(in, other) &&
			(slices.Contains(in, machineAPINamespace) || slices.Contains(in, clusterAPINamespace)) {
			out = append(out, other)
		}
	}
	return out
}

// tolerate keeps the error of a namespace that was read in addition to those asked for, if this user may not read it.
func (g *gathered) tolerate(err error, in []string, namespace string) error {
	if !Forbidden(err) || in[0] == metav1.NamespaceAll || slices.Contains(in, namespace) {
		return err
	}
	if namespace != g.own { // that one has no object of a Machine
		g.unread = err
	}
	g.problems["~"+namespace] = err.Error()
	return nil
}

// attestationScope is where MachineAttestations are: beside the Machines, and in
// the verifier's own namespace.
func (c *Cluster) attestationScope(in []string) []string {
	in = withMirrors(in)
	if in[0] == metav1.NamespaceAll || slices.Contains(in, c.o.Own) {
		return in
	}
	return append(in, c.o.Own)
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
	g := c.newGathered(c.o.Namespaces...)
	for _, ns := range c.attestationScope(in) {
		err := c.each(ctx, attestations, ns, o, g.object)
		if err := g.tolerate(err, in, ns); err != nil {
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
	for _, ns := range withMirrors(in) {
		for _, r := range resources {
			err := c.each(ctx, r, ns, o, g.object)
			if err := g.tolerate(err, in, ns); err != nil {
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
	if renewed := c.abandoned(ctx); !renewed.IsZero() {
		s.Problems = append(s.Problems, fmt.Sprintf("no controller runs: none has renewed Lease %s/%s since %s, and the "+
			"conditions are from then; see: kubectl -n %s get deployment,pods", c.o.Own, kube.LeaseName,
			renewed.UTC().Format(time.RFC3339), c.o.Own))
	}
	return nil
}

// lingers is how old the Lease of the controller may be. The clock of this program may be wrong by minutes.
const lingers = 5 * time.Minute

// abandoned returns when a controller last renewed its Lease, if that is long ago. Without the permission to read it,
// that is not known.
func (c *Cluster) abandoned(ctx context.Context) time.Time {
	o, err := c.dynamic.Resource(leases).Namespace(c.o.Own).Get(ctx, kube.LeaseName, metav1.GetOptions{})
	if err != nil {
		return time.Time{}
	}
	text, _, _ := unstructured.NestedString(o.Object, "spec", "renewTime")
	renewed, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || c.o.Now().Sub(renewed) < lingers {
		return time.Time{}
	}
	return renewed
}

var uid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// Find is State without what is not called name. It reads as little as it can.
func (c *Cluster) Find(ctx context.Context, name string) (*admin.State, error) {
	if err := c.installed(); err != nil {
		return nil, err
	}
	g := c.newGathered()
	if id := pendingID(name); id != "" {
		o, err := c.dynamic.Resource(attestations).Namespace(c.o.Own).Get(ctx, v1alpha1.PendingPrefix+id, metav1.GetOptions{})
		switch {
		case err == nil:
			if err := g.object(o); err != nil {
				return nil, err
			}
			s := named(g.state(c.o.Now()), strings.TrimPrefix(name, v1alpha1.PendingPrefix))
			if len(s.Pending) > 0 {
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
	s := found.named(c.o.Now(), name)
	s.Problems = nil // of what shares a namespace with it
	if found.unread != nil {
		s.Problems = []string{found.unread.Error()}
	}
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
	g := c.newGathered(c.o.Namespaces...)
	if namespace != "" {
		in = []string{namespace}
		g.only = in
	} else if g.only != nil {
		g.only = append(slices.Clone(g.only), c.o.Own) // a machine without a Machine object is also found
	}
	only := metav1.ListOptions{FieldSelector: "metadata.name=" + rest}
	if err := c.gatherMachines(ctx, g, in, only); err != nil {
		return nil, err
	}
	beside := map[string]bool{}
	for _, m := range g.machines {
		beside[m.Namespace] = true
	}
	for _, ns := range c.attestationScope(in) {
		err := c.each(ctx, attestations, ns, only, func(o *unstructured.Unstructured) error {
			beside[o.GetNamespace()] = true
			return g.object(o)
		})
		if ns == c.o.Own && err != nil {
			return nil, err
		}
		if err := g.tolerate(err, in, ns); err != nil {
			return nil, err
		}
	}
	// Its enrollments may have any name, and the record is named by the UID.
	for _, ns := range sorted(beside) {
		if err := g.tolerate(c.each(ctx, attestations, ns, metav1.ListOptions{}, g.object), in, ns); err != nil {
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
