// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IdentityClaim assigns an identity component (an EK, a certified AK, a cloud instance) to
// one Machine. Its name is the hexadecimal SHA-256 of the component, so only one claim can
// be created for it. Only the verifier creates and deletes claims. Do not edit them.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=identityclaims,scope=Cluster
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.machineRef.namespace`
// +kubebuilder:printcolumn:name="Machine",type=string,JSONPath=`.spec.machineRef.name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IdentityClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	Spec IdentityClaimSpec `json:"spec"`
}

// IdentityClaimSpec is immutable.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a claim is immutable; it is deleted with its Machine"
type IdentityClaimSpec struct {
	// component is the kind of the component, a colon, and its hash.
	Component string `json:"component"`
	// machineUID is the UID of the Machine that has it.
	//
	// +kubebuilder:validation:MinLength=1
	MachineUID string `json:"machineUID"`
	// machineRef is the location of that Machine, for administrators and for cleanup.
	MachineRef MachineReference `json:"machineRef"`
}

// IdentityClaimList is a list of IdentityClaims.
//
// +kubebuilder:object:root=true
type IdentityClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty,omitzero"`

	Items []IdentityClaim `json:"items"`
}
