// Package v1alpha1 is the API group mcs-attest.dev/v1alpha1.
//
//   - [AttestationPolicy]: the administrator says, per pool, what a machine must
//     prove before it receives its full config. docs/policy.md describes each field.
//   - [MachineAttestation]: one machine. Its spec is the administrator's (enrolled
//     EK, quarantine, a grant to attest again); its status is the verifier's record.
//
// In a cluster these are objects of the Kubernetes API; a standalone verifier
// reads the same manifests from a folder and keeps the status in its own store.
// The zero value of every field of a spec has a documented meaning.
//
// +kubebuilder:object:generate=true
// +groupName=mcs-attest.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of this package.
var GroupVersion = schema.GroupVersion{Group: "mcs-attest.dev", Version: "v1alpha1"}

// AddToScheme adds the types of this group to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&AttestationPolicy{}, &AttestationPolicyList{}, &MachineAttestation{}, &MachineAttestationList{},
		&IdentityClaim{}, &IdentityClaimList{}, &AttestationVerifier{}, &AttestationVerifierList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// Names as they stand in manifests.
const (
	APIVersion              = "mcs-attest.dev/v1alpha1"
	KindAttestationPolicy   = "AttestationPolicy"
	KindMachineAttestation  = "MachineAttestation"
	KindIdentityClaim       = "IdentityClaim"
	KindAttestationVerifier = "AttestationVerifier"

	// PendingPrefix begins the name of a MachineAttestation that is a machine which
	// waits for approval.
	PendingPrefix = "pending-"

	// AnnotationEKSHA256, on a Machine or its BareMetalHost, enrols its TPM: the SHA-256 of the EK's
	// SubjectPublicKeyInfo in hexadecimal, several separated by commas.
	AnnotationEKSHA256 = "mcs-attest.dev/ek-sha256"
	// AnnotationPool, on a Machine, names a pool that it may have besides those of its labels.
	AnnotationPool = "mcs-attest.dev/pool"
)
