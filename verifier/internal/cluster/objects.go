package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
)

// compactMachine keeps of a Machine what attestation needs. Of one that cannot be
// used for its annotations it keeps the rest.
func compactMachine(o client.Object) (any, []manifest.Problem) {
	found, problems := machine.FromObject(fields(o))
	if len(found.Machines) == 0 {
		problems = orProblem(problems, "no Machine")
		if m, ok := machine.FromUnannotated(fields(o)); ok {
			return m, problems
		}
		return nil, problems
	}
	return found.Machines[0], problems
}

// fields returns what the API has of an object of our own kinds and of the kinds of
// Machines. The parser that reads files reads them, so they are not decoded before: it
// refuses fields of a newer version, which a decoder drops.
func fields(o client.Object) map[string]any {
	u, _ := o.(*unstructured.Unstructured)
	return u.Object
}

func orProblem(problems []manifest.Problem, what string) []manifest.Problem {
	if manifest.Failed(problems) {
		return problems
	}
	return append(problems, manifest.Problem{What: what})
}

func (c *Cluster) putMachine(o *inventory.Object) []manifest.Problem {
	if m, ok := o.Value.(machine.Machine); ok {
		m.Namespace, m.Name = o.Namespace, o.Name // one copy of each
		c.registry.PutMachine(m)
		c.names.put(&m)
		c.plannedMachine(&m)
		c.tasks.add(task{about: aboutMachine, key: key{name: m.UID}})
	}
	return o.Problems
}

// advanceMachine keeps a Machine from seeming to wait for its first boot, because
// of a note on it, after it has joined or was deleted.
func (c *Cluster) advanceMachine(o *inventory.Object) bool {
	m, ok := o.Value.(machine.Machine)
	if !ok {
		return false
	}
	m.Namespace, m.Name = o.Namespace, o.Name
	c.names.put(&m)
	c.plannedMachine(&m)
	c.tasks.add(task{about: aboutMachine, key: key{name: m.UID}})
	return c.registry.Advance(m)
}

func (c *Cluster) dropMachine(group string) func(types.NamespacedName) {
	return func(n types.NamespacedName) {
		k := keyOf(n)
		c.registry.DeleteMachine(group, k.namespace, k.name)
		c.names.drop(group, k)
		c.planned(plannedKey{group, k}, "", nil, false)
		c.tasks.lookForGone()
	}
}

// nothing is the value of an object that can be used and says nothing.
type nothing struct{}

func compactEnrolment(o client.Object) (any, []manifest.Problem) {
	found, problems := machine.FromObject(fields(o))
	switch {
	case manifest.Failed(problems):
		return nil, problems
	case len(found.Enrolments) == 0:
		return nothing{}, problems
	}
	return found.Enrolments[0], problems
}

func (c *Cluster) putHost(o *inventory.Object) []manifest.Problem {
	if e, ok := o.Value.(machine.Enrolment); ok {
		c.registry.PutEnrolment(e)
	} else {
		c.registry.DeleteHost(o.Namespace, o.Name)
	}
	return o.Problems
}

func (c *Cluster) dropHost(n types.NamespacedName) { c.registry.DeleteHost(n.Namespace, n.Name) }

// attestation is a MachineAttestation: what the administrator says, and as much
// of what the verifier recorded as tells whether it is in line.
type attestation struct {
	enrolment *machine.Enrolment // nil: it waits for approval
	uid       string             // of the Machine that it is the record of; "" if it is none
	latch     latch
	condition bool // it has a condition Accepted that is not True
}

func compactAttestation(o client.Object) (any, []manifest.Problem) {
	object := fields(o)
	found, problems := machine.FromObject(object)
	if manifest.Failed(problems) {
		return unusableOf(o), problems
	}
	var a attestation
	if len(found.Enrolments) > 0 {
		a.enrolment = &found.Enrolments[0]
	}
	status, _, _ := unstructured.NestedMap(object, "status")
	a.latch.joined = status["phase"] == string(v1alpha1.PhaseJoined)
	a.latch.quarantined, _ = status["quarantined"].(bool)
	if s, ok := status["grantUsed"].(string); ok {
		if until, err := time.Parse(time.RFC3339, s); err == nil {
			n, _ := status["grantAttestations"].(int64)
			a.latch.grant = &grant{until, int32(min(n, 1<<20))}
		}
	}
	a.uid, _ = status["machineUID"].(string)
	if a.uid == "" {
		// Made in advance, and nothing recorded yet.
		for _, owner := range o.GetOwnerReferences() {
			if string(owner.UID) == o.GetName() {
				a.uid = o.GetName()
			}
		}
	}
	a.latch.pool, _ = status["pool"].(string)
	a.latch.node, _, _ = unstructured.NestedString(status, "certificate", "node")
	a.latch.credentials, a.latch.unrevoked = liveCredentials(status, time.Now())
	conditions, _ := status["conditions"].([]any)
	for _, x := range conditions {
		m, _ := x.(map[string]any)
		switch {
		case m["type"] == v1alpha1.ConditionAccepted && m["status"] != "True":
			a.condition = true
		case m["type"] == conditionQuarantined && m["status"] == "True" && m["reason"] == reasonEtcdRestored:
			a.latch.restored = true
		case m["type"] == v1alpha1.ConditionRoleMismatch && m["status"] == "True":
			a.latch.mismatch = true
		}
	}
	return a, problems
}

// mayStop is whom a MachineAttestation that cannot be used may quarantine.
type mayStop struct {
	nobody  bool
	machine key // the zero value: anyone
}

// unusableOf reads of a MachineAttestation that cannot be used whom it may quarantine.
func unusableOf(o client.Object) mayStop {
	on, _, err := unstructured.NestedBool(fields(o), "spec", "quarantined")
	if err == nil && !on {
		return mayStop{nobody: true}
	}
	ref, named, err := unstructured.NestedMap(fields(o), "spec", "machineRef")
	switch {
	case err != nil:
		return mayStop{}
	case !named: // it stands in for a Machine
		return mayStop{machine: key{o.GetNamespace(), o.GetName()}}
	}
	name, _ := ref["name"].(string)
	namespace, _ := ref["namespace"].(string)
	if name == "" {
		return mayStop{}
	}
	return mayStop{machine: key{cmp.Or(namespace, o.GetNamespace()), name}}
}

// liveCredentials are the ids of the bootstrap credentials that have not ended, and
// whether some of them have not been taken back.
func liveCredentials(status map[string]any, now time.Time) (ids []string, unrevoked bool) {
	all, _ := status["credentials"].([]any)
	for _, x := range all {
		m, _ := x.(map[string]any)
		id, _ := m["id"].(string)
		ends, _ := m["expiry"].(string)
		if at, err := time.Parse(time.RFC3339, ends); id != "" && err == nil && now.Before(at) {
			ids = append(ids, id)
			revoked, _ := m["revoked"].(bool)
			unrevoked = unrevoked || !revoked
		}
	}
	return ids, unrevoked
}

func (c *Cluster) putAttestation(o *inventory.Object) []manifest.Problem {
	a, ok := o.Value.(attestation)
	if !ok {
		return o.Problems
	}
	at := keyOf(o.NamespacedName)
	if a.enrolment != nil {
		e := *a.enrolment
		if c.withheld(&e.MachineAttestation) {
			e.Spec.Reattest = nil
		}
		c.registry.PutEnrolment(e)
	} else {
		c.registry.DeleteEnrolment(o.Namespace, o.Name)
	}
	a.latch.key, a.latch.pool = at, c.intern(a.latch.pool)
	uid := a.uid
	standIn := a.enrolment != nil && a.enrolment.Spec.MachineRef == nil
	c.planned(plannedKey{v1alpha1.GroupVersion.Group, at}, o.UID, []string{o.Name}, standIn && a.enrolment.Spec.Pool == controlPlanePool)
	if a.enrolment != nil && a.enrolment.Spec.MachineRef == nil {
		uid = o.UID // a stand-in is its own record
	}
	if uid == o.Name { // as most records' is
		uid = o.Name // one copy of the text
	}
	if uid != "" {
		c.mu.Lock()
		before := c.latches[uid]
		c.keepCredentials(uid, before.credentials, a.latch.credentials)
		c.latches[uid] = a.latch
		_, control := c.controlPlane[a.latch.node]
		isPlanned := false
		for _, p := range c.plans { // a control plane's, which are few
			isPlanned = isPlanned || p.uid == uid
		}
		c.mu.Unlock()
		if before.pool != a.latch.pool && (isPlanned || a.latch.pool == controlPlanePool) || before.node != a.latch.node && a.latch.pool == controlPlanePool ||
			control || before.mismatch != a.latch.mismatch {
			c.tasks.roles()
		}
		c.tasks.add(task{about: aboutMachine, key: key{name: uid}})
	}
	if a.condition {
		c.tasks.add(task{about: aboutFault, kind: attestationKind.String(), key: at})
	}
	if a.enrolment != nil && a.enrolment.Spec.MachineRef != nil && uid == "" {
		c.tasks.enrolled(a.enrolment)
	}
	return o.Problems
}

func (c *Cluster) dropAttestation(n types.NamespacedName) {
	k := keyOf(n)
	c.registry.DeleteEnrolment(k.namespace, k.name)
	c.planned(plannedKey{v1alpha1.GroupVersion.Group, k}, "", nil, false)
	c.mu.Lock()
	defer c.mu.Unlock()
	// Deletions are few; an index by name would be as large as the rest.
	if l, ok := c.latches[k.name]; ok && l.key == k {
		c.orphan(k.name, l)
		delete(c.latches, k.name)
		c.tasks.add(task{about: aboutMachine, key: key{name: k.name}})
		return
	}
	for uid, l := range c.latches {
		if l.key == k {
			c.orphan(uid, l)
			delete(c.latches, uid)
			c.tasks.add(task{about: aboutMachine, key: key{name: uid}})
		}
	}
}

// node is what is kept of a Node.
type node struct {
	providerID string
	// controlPlane: it has a label of the control plane's role. Only then addresses
	// has its internal IPs.
	controlPlane bool
	addresses    []netip.Addr
}

// The labels of which either makes a Node one of the control plane.
const (
	labelControlPlane = "node-role.kubernetes.io/control-plane"
	labelMaster       = "node-role.kubernetes.io/master"
)

// maxAddresses bounds what is kept of a Node's own list.
const maxAddresses = 8

func compactNode(o client.Object) (any, []manifest.Problem) {
	in, ok := o.(*corev1.Node)
	if !ok {
		return nil, []manifest.Problem{{What: fmt.Sprintf("%T is not a Node", o)}}
	}
	n := node{providerID: in.Spec.ProviderID}
	_, control := in.Labels[labelControlPlane]
	_, master := in.Labels[labelMaster]
	if n.controlPlane = control || master; !n.controlPlane {
		return n, nil
	}
	for _, address := range in.Status.Addresses {
		a, err := netip.ParseAddr(address.Address)
		if err == nil && address.Type == corev1.NodeInternalIP && len(n.addresses) < maxAddresses {
			n.addresses = append(n.addresses, a.Unmap())
		}
	}
	return n, nil
}

func (c *Cluster) putNode(o *inventory.Object) []manifest.Problem {
	n, _ := o.Value.(node)
	c.registry.PutNode(o.Name, n.providerID)
	c.mu.Lock()
	before, known := c.controlPlane[o.Name]
	delete(c.controlPlane, o.Name)
	if n.controlPlane {
		c.controlPlane[o.Name] = n
	}
	c.mu.Unlock()
	if known != n.controlPlane || before.providerID != n.providerID && n.controlPlane {
		c.tasks.roles()
	}
	if n.providerID != "" && c.tasks.leading() {
		if m := c.registry.Named(machine.Identity{ProviderIDs: []string{n.providerID}}, machine.Rules{Now: c.o.Now()}); m != nil {
			c.tasks.add(task{about: aboutMachine, key: key{name: m.UID}})
		}
	}
	return nil
}

func (c *Cluster) dropNode(k types.NamespacedName) {
	c.registry.DeleteNode(k.Name)
	c.mu.Lock()
	_, known := c.controlPlane[k.Name]
	delete(c.controlPlane, k.Name)
	c.mu.Unlock()
	if known {
		c.tasks.roles()
	}
}

// ControlPlane returns the Nodes of the control plane with their internal addresses.
// It returns none in a cluster without MachineConfigPools, which has no Machine
// Config Server. The second result is false while it is not known whether there are any.
func (c *Cluster) ControlPlane() (map[string][]netip.Addr, bool) {
	if c.poolsUnknown() {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pools) == 0 {
		return nil, true
	}
	all := make(map[string][]netip.Addr, len(c.controlPlane))
	for name, n := range c.controlPlane {
		all[name] = n.addresses
	}
	return all, true
}
