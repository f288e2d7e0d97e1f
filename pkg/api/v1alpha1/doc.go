// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the API group mcs-attest.dev/v1alpha1.
//
//   - [AttestationPolicy]: what a machine of a pool must prove before it receives its
//     full config. docs/policy.md describes each field.
//   - [MachineAttestation]: one machine. An administrator writes its spec (enrolled EK,
//     quarantine, a grant to attest again). The verifier writes its status, the record.
//   - [IdentityClaim]: which Machine an identity belongs to. Only the verifier writes it.
//   - [AttestationVerifier]: the status of the verifier of a cluster.
//
// In a cluster these are objects of the Kubernetes API. A standalone verifier reads the
// same manifests from a folder and stores the status in its database. The zero value of
// every field of a spec has a documented meaning.
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

// Names in manifests.
const (
	APIVersion              = "mcs-attest.dev/v1alpha1"
	KindAttestationPolicy   = "AttestationPolicy"
	KindMachineAttestation  = "MachineAttestation"
	KindIdentityClaim       = "IdentityClaim"
	KindAttestationVerifier = "AttestationVerifier"

	// PendingPrefix is the name prefix of a MachineAttestation for a machine that waits for
	// approval.
	PendingPrefix = "pending-"

	// AnnotationEKSHA256, on a Machine or its BareMetalHost, enrolls its TPM: the SHA-256 of the EK's
	// SubjectPublicKeyInfo in hexadecimal. Several are separated by commas.
	AnnotationEKSHA256 = "mcs-attest.dev/ek-sha256"
	// AnnotationPool, on a Machine, names a pool that it may have in addition to those of its labels.
	AnnotationPool = "mcs-attest.dev/pool"
)
