package cluster

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
)

// Machines is what is known of Machines, Nodes, enrolments and records. It is safe for
// concurrent use.
type Machines struct {
	o        machinesOptions
	registry *machine.Registry
	names    *names // nil unless asked for

	mu           sync.Mutex
	texts        map[string]string
	latches      map[string]latch // by the Machine's UID
	controlPlane map[string]node
	// plans are the Machines of the control plane's pool.
	plans map[plannedKey]planned
	// credentials has the Machine's UID by the id of each live bootstrap credential.
	credentials map[string]string
	// orphaned are the credentials of records that are gone, by the Machine's UID,
	// until they were revoked.
	orphaned map[string][]v1alpha1.CredentialStatus
}

// machinesOptions are what Machines needs. All but Names are required. The functions are
// called without a lock.
type machinesOptions struct {
	Registry  *machine.Registry
	Now       func() time.Time
	Names     bool // keep Machines also by the names that certificate signing requests have
	Revocable bool // bootstrap credentials are revoked
	// Admit returns what counts of a Machine, and AdmitEnrollment what counts of an enrollment, after a restore of
	// etcd; false if it is not accepted.
	Admit           func(machine.Machine) (machine.Machine, bool)
	AdmitEnrollment func(machine.Enrolment) (machine.Enrolment, bool)
	// Changed is called when the record of the Machine with this UID may have to change,
	// Deleted when a Machine was deleted. Leading reports whether anyone acts on it.
	Changed func(uid string)
	Deleted func()
	Leading func() bool
	// Token is called with each change of a record: the id of the attestation token that its Machine may use now,
	// "" if there is none.
	Token func(uid, tokenID string)
	// RolesChanged is called when Nodes, or what decides over their roles, have changed.
	RolesChanged func()
	// Rejected is called for a MachineAttestation that carries a condition Accepted which
	// is not True.
	Rejected func(key)
}

func newMachines(o machinesOptions) *Machines {
	m := &Machines{
		o: o, registry: o.Registry, texts: map[string]string{}, latches: map[string]latch{}, controlPlane: map[string]node{},
		plans: map[plannedKey]planned{}, credentials: map[string]string{}, orphaned: map[string][]v1alpha1.CredentialStatus{},
	}
	if o.Names {
		m.names = newNames()
	}
	return m
}

// Sources lists what is watched: Machines in these namespaces, records also in the verifier's
// own, and Nodes.
func (ms *Machines) Sources(machineNamespaces, recordNamespaces []string) (all []*inventory.Source) {
	for _, ns := range machineNamespaces {
		for _, kind := range []kind{machineAPIKind, clusterAPIKind} {
			all = append(all, &inventory.Source{Kind: kind, Namespace: ns, Optional: true, Object: &unstructured.Unstructured{},
				Read: compactMachine, Put: ms.putMachine, Advance: ms.advanceMachine, Drop: ms.dropMachine(kind.Group)})
		}
		all = append(all, &inventory.Source{Kind: hostKind, Namespace: ns, Optional: true, Object: &unstructured.Unstructured{},
			Read: compactEnrolment, Put: ms.putHost, Drop: ms.dropHost})
	}
	for _, ns := range recordNamespaces {
		all = append(all, &inventory.Source{Kind: attestationKind, Namespace: ns, Object: &unstructured.Unstructured{},
			Read: compactAttestation, Put: ms.putAttestation, Drop: ms.dropAttestation})
	}
	return append(all, &inventory.Source{Kind: nodeKind, Object: &corev1.Node{}, Read: compactNode, Put: ms.putNode, Drop: ms.dropNode})
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

// latch is what is known of a Machine's record.
func (ms *Machines) latch(uid string) (latch, bool) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	l, ok := ms.latches[uid]
	return l, ok
}
