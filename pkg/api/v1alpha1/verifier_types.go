// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VerifierName is the name of the only AttestationVerifier of a cluster.
const VerifierName = "cluster"

// AttestationVerifier is the status of the verifier of a cluster. The controller replica
// that holds the lease creates and updates it. It has no settings.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=attestationverifiers,scope=Cluster
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'cluster'",message="the only valid name is cluster"
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Progressing",type=string,JSONPath=`.status.conditions[?(@.type=="Progressing")].status`
// +kubebuilder:printcolumn:name="Degraded",type=string,JSONPath=`.status.conditions[?(@.type=="Degraded")].status`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Degraded")].message`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.status.conditions[?(@.type=="Available")].lastTransitionTime`
type AttestationVerifier struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	Status AttestationVerifierStatus `json:"status,omitempty,omitzero"`
}

// AttestationVerifierStatus is written by the replica that holds the lease.
type AttestationVerifierStatus struct {
	// version of the verifier that wrote the status.
	Version string `json:"version,omitempty"`
	// holder is the replica that holds the lease.
	Holder string `json:"holder,omitempty"`
	// controlPlaneNodes are the names of the Nodes that may assign themselves a control-plane
	// role: those that have it, and the expected Nodes of Machines and records in pool
	// master. A ValidatingAdmissionPolicy reads them.
	//
	// +kubebuilder:validation:MaxItems=512
	// +listType=set
	ControlPlaneNodes []string `json:"controlPlaneNodes,omitempty"`
	// conditions: Available, Progressing, Degraded, Upgradeable, DoorOpen.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// The condition types of an AttestationVerifier, like those of a ClusterOperator.
const (
	ConditionAvailable   = "Available"
	ConditionProgressing = "Progressing"
	ConditionDegraded    = "Degraded"
	ConditionUpgradeable = "Upgradeable"
	// ConditionDoorOpen is true while the Machine Config Server of a control-plane node
	// answers requests that bypass the gate. It is unknown while the verifier cannot
	// determine that. A cluster without Machine Config Servers does not have it.
	ConditionDoorOpen = "DoorOpen"
)

// AttestationVerifierList is a list of AttestationVerifiers.
//
// +kubebuilder:object:root=true
type AttestationVerifierList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty,omitzero"`

	Items []AttestationVerifier `json:"items"`
}
