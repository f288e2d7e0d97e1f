package approver

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Machine is a Machine of either API, or a MachineAttestation that stands in for
// one, as far as certificates go.
type Machine struct {
	APIVersion, Kind, Namespace, Name, UID string
	Created                                time.Time
	Deleting                               bool
	// NodeRef is the Node that the Machine became; empty before it joined.
	NodeRef    string
	ProviderID string
	Addresses  []corev1.NodeAddress
	// StandIn marks a MachineAttestation in place of a Machine.
	StandIn bool
	// Authority is which API's object counts while a machine has one of both
	// ("MachineAPI", "ClusterAPI", "Migrating"); empty where nothing says so.
	Authority string
}

// String is "namespace/name".
func (m *Machine) String() string { return m.Namespace + "/" + m.Name }
