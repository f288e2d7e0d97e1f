// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

// Machines has the cached state of Machines, Nodes, enrollments and records. It is safe for concurrent
// use.
type Machines struct {
	o          machinesOptions
	registry   *machine.Registry
	*nameIndex // nil unless configured
	credentialIndex
	controlPlane controlPlane
	observed     *observed // nil without a web page

	mu      sync.Mutex
	texts   map[string]string
	latches map[string]latch // by UID of the Machine
	// otherNames has the UID of each latch whose object has another name: a stand-in or a break-glass
	// token.
	otherNames map[key]string
}

// machinesOptions configure Machines. All but Names are required. The functions are called without a
// lock.
type machinesOptions struct {
	Registry  *machine.Registry
	Now       func() time.Time
	Names     bool // also index Machines by the names in certificate signing requests
	Revocable bool // bootstrap credentials can be revoked
	Observe   bool // keep whole records, for the web page
	// After a restore of etcd, Admit returns the state of a Machine that is in force, and
	// AdmitEnrollment that of an enrollment. They return false if the object is not accepted.
	Admit           func(machine.Machine) (machine.Machine, bool)
	AdmitEnrollment func(machine.Enrollment) (machine.Enrollment, bool)
	// Recorded is called with each state of a Machine's record.
	Recorded func(uid string, l latch)
	// Trigger is called with the UID of each Machine whose record may need a change.
	Trigger *kube.Trigger
	// Token is called at each change of a record with the id of the attestation token that its Machine
	// may use now, or "".
	Token func(uid, tokenID string)
	// Requested is called at each change of the record of a machine that waits for its node's certificate.
	Requested func(uid string)
	// RolesChanged is called after changes of Nodes, or of the state that determines their roles.
	RolesChanged func()
	// Rejected is called with each usable state of a MachineAttestation, and when it was deleted. It
	// receives whether the condition Accepted is not True.
	Rejected func(name types.NamespacedName, rejected bool)
}

func newMachines(o machinesOptions) *Machines {
	m := &Machines{
		o: o, registry: o.Registry, texts: map[string]string{}, latches: map[string]latch{}, otherNames: map[key]string{},
		controlPlane:    controlPlane{nodes: map[string]node{}, plans: map[plannedKey]planned{}},
		credentialIndex: credentialIndex{uids: map[string]string{}, orphaned: map[string][]v1alpha1.CredentialStatus{}},
	}
	if o.Names {
		m.nameIndex = newNameIndex()
	}
	if o.Observe {
		m.observed = newObserved()
	}
	return m
}

// Sources returns the sources to watch: Machines in these namespaces, records also in the verifier's
// own, and Nodes.
func (ms *Machines) Sources(machineNamespaces, recordNamespaces []string) (all []*sources.Source) {
	for _, ns := range machineNamespaces {
		for _, kind := range []kind{machineAPIKind, clusterAPIKind} {
			all = append(all, &sources.Source{Kind: kind, Namespace: ns, Optional: true, Object: &unstructured.Unstructured{},
				Read: compactMachine, Put: ms.putMachine, Advance: ms.advanceMachine, Drop: ms.dropMachine(kind.Group)})
		}
		all = append(all, &sources.Source{Kind: hostKind, Namespace: ns, Optional: true, Object: &unstructured.Unstructured{},
			Read: compactEnrollment, Put: ms.putHost, Drop: ms.dropHost})
	}
	for _, ns := range recordNamespaces {
		all = append(all, &sources.Source{Kind: attestationKind, Namespace: ns, Object: &unstructured.Unstructured{},
			Read: ms.readAttestation, Put: ms.putAttestation, Drop: ms.dropAttestation})
	}
	return append(all, &sources.Source{Kind: nodeKind, Object: &corev1.Node{}, Read: compactNode, Put: ms.putNode,
		Drop: ms.dropNode})
}

// intern returns one shared copy of a text that many objects contain.
func (ms *Machines) intern(s string) string {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if one, ok := ms.texts[s]; ok {
		return one
	}
	if len(ms.texts) < 10_000 {
		ms.texts[s] = s
	}
	return s
}

// latch is the cached state of a record that is needed to compare it with its Machine. Each Machine has
// one, so it must be small.
type latch struct {
	key
	grant       *grant // the last used grant; nil if there is none
	joined      bool
	quarantined bool
	restored    bool     // quarantined by the memory of a restore
	credentials []string // ids of bootstrap credentials that have not expired
	unrevoked   bool     // some of them were not revoked
	pool        string   // for which the machine attested
	node        string   // of its certificate
	used        bool     // that Node existed
	certified   bool     // the machine requested that certificate through the verifier
	requests    bool     // it waits for that certificate
	mismatch    bool     // the condition RoleMismatch is true
	rehearsed   int64    // Unix time of the last rehearsal; 0 if there was none
	failed      bool     // it failed
}

// grant is a used grant to attest again.
type grant struct {
	until time.Time
	count int32
}

// plan stores what is planned with a Machine of the control plane's pool.
func (ms *Machines) plan(at plannedKey, next *planned) {
	if ms.controlPlane.plan(at, next) {
		ms.o.RolesChanged()
	}
}

// latch returns the cached state of a Machine's record.
func (ms *Machines) latch(uid string) (latch, bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	l, ok := ms.latches[uid]
	return l, ok
}

// misplaced reports whether an object is not where the record of a Machine is.
func (ms *Machines) misplaced(uid string, at key) bool {
	m, ok := ms.registry.ByUID(uid)
	if !ok || records.UID(m) != uid {
		return false
	}
	return at.namespace != records.Namespace(m) || m.StandIn && at.name != m.Name
}

// dropMisplaced deletes a latch that was read before its Machine, from an object that is not the record of
// the Machine. Without a latch, the controller writes a quarantine to the record, and that event delivers
// the record's own latch.
func (ms *Machines) dropMisplaced(uid string) {
	l, ok := ms.latch(uid)
	if !ok || !ms.misplaced(uid, l.key) {
		return
	}
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if ms.latches[uid].key == l.key {
		ms.dropLatch(uid)
	}
}

// Compare returns the next step for the record of a Machine, and the Machine, which is nil if it was
// deleted. A machine in both Machine APIs has one record. The Machine has the Node of its certificate, if
// that exists.
func (ms *Machines) Compare(uid string) (record.Step, *machine.Machine) {
	if record.IsBreakGlass(uid) {
		return record.StepNone, nil
	}
	m, ok := ms.registry.ByUID(uid)
	if !ok {
		return record.StepDelete, nil
	}
	l, exists := ms.latch(records.UID(m))
	node := l.node != "" && ms.registry.HasNode(l.node)
	arrived := l.certified && node
	if arrived {
		m.NodeRef = cmp.Or(m.NodeRef, l.node)
	}
	step := record.Compare(record.State{
		Exists: exists, Joined: l.joined, Arrived: arrived, Quarantined: l.quarantined, Restored: l.restored,
		Used: node && !l.used, Unrevoked: l.unrevoked && ms.o.Revocable,
	}, m, ms.o.Now())
	if step == record.StepUse {
		m.NodeRef = l.node
	}
	return step, m
}

// OutOfLine returns the UIDs of all Machines and records with a next step, and of Machines that were deleted with their
// records while no replica led.
func (ms *Machines) OutOfLine() []string {
	uids := ms.registry.UIDs()
	ms.mu.Lock()
	for uid := range ms.latches {
		if !ms.registry.Known(uid) {
			uids = append(uids, uid)
		}
	}
	for _, uid := range ms.orphans(ms.o.Now()) {
		if _, exists := ms.latches[uid]; !exists && !ms.registry.Known(uid) {
			uids = append(uids, uid)
		}
	}
	ms.mu.Unlock()
	return slices.DeleteFunc(uids, func(uid string) bool {
		step, _ := ms.Compare(uid)
		return step == record.StepNone
	})
}

// CertificateRequests returns the UIDs of the records whose machines wait for their node's certificate.
func (ms *Machines) CertificateRequests() (uids []string) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	for uid, l := range ms.latches {
		if l.requests {
			uids = append(uids, uid)
		}
	}
	return uids
}

// RecordNamespace returns the namespace of a Machine's record, or false if there is none.
func (ms *Machines) RecordNamespace(uid string) (string, bool) {
	l, ok := ms.latch(uid)
	return l.namespace, ok
}

// Revocable reports whether a Machine that was deleted has live credentials.
func (ms *Machines) Revocable(uid string) bool {
	l, _ := ms.latch(uid)
	return ms.o.Revocable && (l.unrevoked || len(ms.Orphaned(uid)) > 0)
}

// RecordUID returns the UID that names the record of this Machine. A machine that is an object of both
// Machine APIs has one record.
func (ms *Machines) RecordUID(uid string) string {
	if m, ok := ms.registry.ByUID(uid); ok {
		return records.UID(m)
	}
	return uid
}

// Counts returns the numbers of Machines and Nodes.
func (ms *Machines) Counts() (machines, nodes int) { return ms.registry.Len(), ms.registry.Nodes() }
