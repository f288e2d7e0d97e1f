// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
)

// AttestationPolicy defines what the machines of some pools must prove.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=attestationpolicies,scope=Cluster,shortName=mcsap
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=`.spec.pools`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AttestationPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	Spec   AttestationPolicySpec   `json:"spec,omitempty,omitzero"`
	Status AttestationPolicyStatus `json:"status,omitempty,omitzero"`
}

// AttestationPolicyStatus is the verifier's evaluation of a policy.
type AttestationPolicyStatus struct {
	// observedGeneration is the generation that the conditions describe.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AttestationPolicyList is a list of AttestationPolicies.
//
// +kubebuilder:object:root=true
type AttestationPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty,omitzero"`

	Items []AttestationPolicy `json:"items"`
}

// AttestationPolicySpec is the content of a policy. An empty spec requires an enrolled
// TPM for every pool.
//
// +kubebuilder:validation:XValidation:rule="(has(self.binding) && self.binding == 'Terminated') == has(self.frontEndKeys)",message="binding Terminated requires frontEndKeys; other bindings do not allow them"
// +kubebuilder:validation:XValidation:rule="!has(self.evidence) || (has(self.provisioningTokenAlone) && self.provisioningTokenAlone) || !self.evidence.exists(e, e.all == ['provisioning-token'])",message="an alternative with only [provisioning-token] requires provisioningTokenAlone: true"
type AttestationPolicySpec struct {
	// pools are the MachineConfigPools that the policy applies to. "*" means every pool
	// that no other policy names. Default: "*".
	//
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	Pools []string `json:"pools,omitempty"`

	// mode defines what the gate does. "Off": every caller receives the full config.
	// "Audit": every caller receives it, and the verifier counts the callers that Enforce
	// would deny. "Enforce": only a valid token receives the full config. Default: Enforce.
	Mode Mode `json:"mode,omitempty"`

	// unattested defines what a caller without a token receives in mode Enforce.
	// "Deny": nothing. "PreApproved": the pre-approved config. Default: Deny.
	Unattested Unattested `json:"unattested,omitempty"`

	// evidence lists alternatives, in order of preference. A machine must prove all kinds
	// of one alternative. Default: one alternative, tpm2.
	//
	// +kubebuilder:validation:MaxItems=16
	Evidence []EvidenceAlternative `json:"evidence,omitempty"`

	// binding defines what ties the evidence to the TLS connection. "Exporter": the
	// connection itself. "Terminated": the key of a front end that terminates TLS in front
	// of the verifier. Default: Exporter.
	Binding Binding `json:"binding,omitempty"`

	// frontEndKeys are the SHA-256 (hexadecimal) of the SubjectPublicKeyInfo of
	// the front ends' certificates. Only binding Terminated requires and allows them.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F]{64}$`
	FrontEndKeys []string `json:"frontEndKeys,omitempty"`

	// tpm2 defines how the verifier appraises a TPM's evidence.
	TPM2 TPM2Policy `json:"tpm2,omitempty,omitzero"`

	// token configures the attestation result.
	Token TokenPolicy `json:"token,omitempty,omitzero"`

	// challengeLifetime is the time from Challenge to Attest, 30s to 10m. Only slow TPMs
	// need a longer one. Default: 2m.
	ChallengeLifetime metav1.Duration `json:"challengeLifetime,omitempty,omitzero"`

	// maxMachineAge is how long after its creation a Machine may attest for the first
	// time, at least 1m. Default: 2h.
	MaxMachineAge metav1.Duration `json:"maxMachineAge,omitempty,omitzero"`

	// stage is the latest stage of its first boot in which a machine may attest.
	// "Initramfs": the initramfs. "RealRoot": also the real root, for boot images whose
	// initramfs does not have the agent. Default: Initramfs.
	Stage Stage `json:"stage,omitempty"`

	// provisioningTokenAlone must be true if evidence has an alternative with only
	// [provisioning-token]: any caller with that shared secret then receives the pool's
	// config. Default: false.
	ProvisioningTokenAlone bool `json:"provisioningTokenAlone,omitempty"`

	// provisioningToken configures the shared secret.
	ProvisioningToken ProvisioningTokenPolicy `json:"provisioningToken,omitempty,omitzero"`
}

// Mode defines what the gate does for a pool.
// +kubebuilder:validation:Enum=Off;Audit;Enforce
type Mode string

// The modes.
const (
	ModeOff     Mode = "Off"
	ModeAudit   Mode = "Audit"
	ModeEnforce Mode = "Enforce"
)

// Unattested defines what a caller without a token receives in mode Enforce.
// +kubebuilder:validation:Enum=Deny;PreApproved
type Unattested string

// The values of Unattested.
const (
	UnattestedDeny        Unattested = "Deny"
	UnattestedPreApproved Unattested = "PreApproved"
)

// Stage is a stage of a machine's first boot.
// +kubebuilder:validation:Enum=Initramfs;RealRoot
type Stage string

// The stages.
const (
	StageInitramfs Stage = "Initramfs"
	StageRealRoot  Stage = firstboot.RealRoot
)

// Binding ties evidence to a connection.
// +kubebuilder:validation:Enum=Exporter;Terminated
type Binding string

// The bindings.
const (
	BindingExporter   Binding = "Exporter"
	BindingTerminated Binding = "Terminated"
)

// EvidenceAlternative is a set of evidence that suffices.
type EvidenceAlternative struct {
	// all are the kinds that are required together: tpm2, aws-iid, aws-sts,
	// gcp-identity, azure-attested, provisioning-token.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:items:Enum=tpm2;aws-iid;aws-sts;gcp-identity;azure-attested;provisioning-token
	All []string `json:"all"`
}

// TPM2Policy defines how the verifier appraises a TPM's evidence.
type TPM2Policy struct {
	// endorsements are the accepted ways to vouch for an EK: "provider",
	// "ak-certificate", "enrolled", "manufacturer". Default: enrolled.
	Endorsements []Endorsement `json:"endorsements,omitempty"`

	// profile defines which part of the boot is appraised: "identity-only",
	// "secure-boot", "release", "strict". Default: identity-only.
	Profile string `json:"profile,omitempty"`

	// profileAction defines what a boot outside the profile leads to. "Enforce": a
	// denial. "Warn": a warning in the token and the record. Default: Enforce.
	ProfileAction ProfileAction `json:"profileAction,omitempty"`

	// banks are the accepted PCR banks, in order of preference: "sha256", "sha384".
	// Default: sha256, then sha384.
	Banks []string `json:"banks,omitempty"`

	// referenceValues names the sets of reference values that apply. Default: all sets
	// that the verifier has.
	ReferenceValues []string `json:"referenceValues,omitempty"`

	// approval defines how a genuine TPM without enrollment is bound to a Machine.
	// "Manual": an administrator approves it. "FirstUse": also automatically, if other
	// evidence of the same attestation names the Machine. Default: Manual.
	Approval Approval `json:"approval,omitempty"`
}

// Endorsement is a way to vouch for an EK.
// +kubebuilder:validation:Enum=provider;ak-certificate;enrolled;manufacturer
type Endorsement string

// The endorsements, in the order of evaluation.
const (
	EndorsementProvider      Endorsement = "provider"
	EndorsementAKCertificate Endorsement = "ak-certificate"
	EndorsementEnrolled      Endorsement = "enrolled"
	EndorsementManufacturer  Endorsement = "manufacturer"
)

// ProfileAction defines what a boot outside the profile leads to.
// +kubebuilder:validation:Enum=Enforce;Warn
type ProfileAction string

// The actions.
const (
	ProfileEnforce ProfileAction = "Enforce"
	ProfileWarn    ProfileAction = "Warn"
)

// Approval defines how a genuine TPM without enrollment is bound to a Machine.
// +kubebuilder:validation:Enum=Manual;FirstUse
type Approval string

// The approvals.
const (
	ApprovalManual   Approval = "Manual"
	ApprovalFirstUse Approval = "FirstUse"
)

// ProvisioningTokenPolicy defines how the gate accepts the provisioning token.
type ProvisioningTokenPolicy struct {
	// urlParameter also accepts the token as the URL parameter "token", for nodes whose
	// Ignition sends no headers (specification 2.x and 3.0). Ignition and every proxy on
	// the path log such a URL. Default: false.
	URLParameter bool `json:"urlParameter,omitempty"`

	// whenAbsent defines what callers receive while no provisioning token exists. "Wait":
	// machines wait for the token. "Open": a caller without a token receives the full
	// config, as without mcs-attest. Use Open only until the first token exists. It is
	// allowed only if the policy lists no other evidence. Default: Wait.
	WhenAbsent WhenAbsent `json:"whenAbsent,omitempty"`
}

// WhenAbsent defines what callers receive while no provisioning token exists.
// +kubebuilder:validation:Enum=Wait;Open
type WhenAbsent string

// The values of WhenAbsent.
const (
	WhenAbsentWait WhenAbsent = "Wait"
	WhenAbsentOpen WhenAbsent = "Open"
)

// TokenPolicy configures the attestation result.
type TokenPolicy struct {
	// lifetime of a token, 1m to 1h. Default: 10m.
	Lifetime metav1.Duration `json:"lifetime,omitempty,omitzero"`
	// uses is how often the gate accepts a token, 1 to 10. More than one is needed because
	// Ignition tries again after a dropped connection. Default: 3.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	Uses int32 `json:"uses,omitempty"`
}
