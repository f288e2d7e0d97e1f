package inventory

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

// Machines is what is known of Machines, Nodes, enrolments and records. It is safe for
// concurrent use.
type Machines struct {
	o          machinesOptions
	registry   *machine.Registry
	*nameIndex // nil unless asked for
	credentialIndex
	controlPlane controlPlane
	observed     *observed // nil without a web page

	mu      sync.Mutex
	texts   map[string]string
	latches map[string]latch // by the Machine's UID
	// otherNames has the UID of each latch whose object is not named by it: a stand-in, a break-glass token.
	otherNames map[key]string
}

// machinesOptions are what Machines needs. All but Names are required. The functions are
// called without a lock.
type machinesOptions struct {
	Registry  *machine.Registry
	Now       func() time.Time
	Names     bool // keep Machines also by the names that certificate signing requests have
	Revocable bool // bootstrap credentials can be revoked
	Observe   bool // keep whole records, for the web page
	// Admit returns what counts of a Machine, and AdmitEnrollment what counts of an enrollment, after a restore of
	// etcd; false if it is not accepted.
	Admit           func(machine.Machine) (machine.Machine, bool)
	AdmitEnrollment func(machine.Enrollment) (machine.Enrollment, bool)
	// Recorded is called with each state of a Machine's record.
	Recorded func(uid string, l latch)
	// Trigger is called with the UID of each Machine whose record may have to change.
	Trigger *kube.Trigger
	// Token is called with each change of a record: the id of the attestation token that its Machine may use now,
	// "" if there is none.
	Token func(uid, tokenID string)
	// RolesChanged is called when Nodes, or what decides over their roles, have changed.
	RolesChanged func()
	// Rejected is called with each state of a MachineAttestation that can be used, and when it was deleted: whether it
	// has a condition Accepted which is not True.
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

// Sources lists what is watched: Machines in these namespaces, records also in the verifier's
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

// intern keeps one copy of what many objects say alike.
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

// latch is what is remembered of a record: as much as tells whether it is in line
// with its Machine. There is one for each Machine, so it is kept small.
type latch struct {
	key
	grant       *grant // the last that was used; nil: none
	joined      bool
	quarantined bool
	restored    bool     // quarantined by what was remembered over a restore
	credentials []string // ids of bootstrap credentials that have not ended
	unrevoked   bool     // some of them have not been taken back
	pool        string   // that the machine attested for
	node        string   // of its certificate
	mismatch    bool     // the condition RoleMismatch is true
}

// grant is a grant to attest once more that was used.
type grant struct {
	until time.Time
	count int32
}

// plan keeps what is planned with a Machine of the control plane's pool.
func (ms *Machines) plan(at plannedKey, next *planned) {
	if ms.controlPlane.plan(at, next) {
		ms.o.RolesChanged()
	}
}

// latch returns what is known of a Machine's record.
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

// dropMisplaced drops a latch that was read before its Machine, from an object that is not the record of the Machine.
// Without a latch, a quarantine is written to the record, and that event brings the record's own latch.
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

// request asks for the record of a Machine.
func request(uid string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: uid}}
}

// Compare returns the next step for the record of a Machine, and the Machine; nil if it was
// deleted. A machine in both Machine APIs has one record.
func (ms *Machines) Compare(uid string) (record.Step, *machine.Machine) {
	if record.IsBreakGlass(uid) {
		return record.StepNone, nil
	}
	m, ok := ms.registry.ByUID(uid)
	if !ok {
		return record.StepDelete, nil
	}
	l, exists := ms.latch(records.UID(m))
	return record.Compare(record.State{
		Exists: exists, Joined: l.joined, Quarantined: l.quarantined, Restored: l.restored,
		Unrevoked: l.unrevoked && ms.o.Revocable,
	}, m, ms.o.Now()), m
}

// OutOfLine returns the UIDs of all Machines and records with a next step.
func (ms *Machines) OutOfLine() []string {
	uids := ms.registry.UIDs()
	ms.mu.Lock()
	for uid := range ms.latches {
		if !ms.registry.Known(uid) {
			uids = append(uids, uid)
		}
	}
	ms.mu.Unlock()
	return slices.DeleteFunc(uids, func(uid string) bool {
		step, _ := ms.Compare(uid)
		return step == record.StepNone
	})
}

// RecordNamespace returns where the record of a Machine is; false if there is none.
func (ms *Machines) RecordNamespace(uid string) (string, bool) {
	l, ok := ms.latch(uid)
	return l.namespace, ok
}

// Revocable reports whether a Machine that was deleted has live credentials.
func (ms *Machines) Revocable(uid string) bool {
	l, _ := ms.latch(uid)
	return ms.o.Revocable && (l.unrevoked || len(ms.Orphaned(uid)) > 0)
}

// RecordUID is the UID of the Machine that the record of this Machine is named by:
// while a machine is an object of both Machine APIs it has one record.
func (ms *Machines) RecordUID(uid string) string {
	if m, ok := ms.registry.ByUID(uid); ok {
		return records.UID(m)
	}
	return uid
}

// Counts are how many Machines and Nodes there are.
func (ms *Machines) Counts() (machines, nodes int) { return ms.registry.Len(), ms.registry.Nodes() }
