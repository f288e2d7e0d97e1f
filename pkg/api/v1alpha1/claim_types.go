package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IdentityClaim says which Machine has an identity component (an EK, a certified
// AK, a cloud instance). Its name is the hexadecimal SHA-256 of the component, so
// that creating it is the atomic step in which one identity becomes one Machine's
// (rule 4 of docs/security-rules.md). The verifier creates and deletes it; do not edit it.
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

// IdentityClaimSpec never changes.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a claim never changes; it is deleted with its Machine"
type IdentityClaimSpec struct {
	// component is the kind of the component, a colon, and its hash.
	Component string `json:"component"`
	// machineUID is the UID of the Machine that has it.
	//
	// +kubebuilder:validation:MinLength=1
	MachineUID string `json:"machineUID"`
	// machineRef is where that Machine was, for people and for the clean-up.
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
