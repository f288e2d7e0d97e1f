package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AttestationPolicy says what the machines of some pools must prove.
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

// AttestationPolicyStatus says what the verifier made of a policy.
type AttestationPolicyStatus struct {
	// observedGeneration is the generation that the conditions are about.
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

// AttestationPolicySpec is all of a policy. An empty spec enforces an enrolled
// TPM for every pool.
//
// +kubebuilder:validation:XValidation:rule="(has(self.binding) && self.binding == 'Terminated') == has(self.frontEndKeys)",message="frontEndKeys belong to binding Terminated, and it needs them"
// +kubebuilder:validation:XValidation:rule="!has(self.evidence) || (has(self.provisioningTokenAlone) && self.provisioningTokenAlone) || !self.evidence.exists(e, e.all == ['provisioning-token'])",message="evidence [provisioning-token] alone needs provisioningTokenAlone: true"
type AttestationPolicySpec struct {
	// pools are the MachineConfigPools that the policy is for. "*" is every pool
	// that no other policy names. Default: "*".
	//
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	Pools []string `json:"pools,omitempty"`

	// mode says what the gate does: "Off" serves everyone, "Audit" serves
	// everyone and counts whom it would refuse, "Enforce" serves the full config
	// for a token alone. Default: Enforce.
	Mode Mode `json:"mode,omitempty"`

	// unattested says what a caller without a token receives under Enforce:
	// "Deny" nothing, "PreApproved" the pre-approved config. Default: Deny.
	Unattested Unattested `json:"unattested,omitempty"`

	// evidence lists alternatives, best first; a machine needs one of them,
	// whole. Default: one alternative, tpm2.
	//
	// +kubebuilder:validation:MaxItems=16
	Evidence []EvidenceAlternative `json:"evidence,omitempty"`

	// binding ties the evidence to the TLS connection: "Exporter" to the
	// connection itself, "Terminated" to the key of a front end that ends TLS
	// before the verifier. Default: Exporter.
	Binding Binding `json:"binding,omitempty"`

	// frontEndKeys are the SHA-256 (hexadecimal) of the SubjectPublicKeyInfo of
	// the front ends' certificates. Required with Terminated, refused without.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F]{64}$`
	FrontEndKeys []string `json:"frontEndKeys,omitempty"`

	// tpm2 says how a TPM's evidence is appraised.
	TPM2 TPM2Policy `json:"tpm2,omitempty,omitzero"`

	// token is about the attestation result.
	Token TokenPolicy `json:"token,omitempty,omitzero"`

	// challengeLifetime is the time from Challenge to Attest, 30s to 10m.
	// Default: 2m. Longer helps slow TPMs alone.
	ChallengeLifetime metav1.Duration `json:"challengeLifetime,omitempty,omitzero"`

	// maxMachineAge is how long after its creation a Machine may still attest
	// for the first time, at least 1m. Default: 2h.
	MaxMachineAge metav1.Duration `json:"maxMachineAge,omitempty,omitzero"`

	// provisioningTokenAlone must be true for a policy whose evidence has the
	// alternative [provisioning-token]: whoever knows that shared secret receives
	// the pool's config. Default: false.
	ProvisioningTokenAlone bool `json:"provisioningTokenAlone,omitempty"`

	// provisioningToken is about the shared secret that opens pools by itself.
	ProvisioningToken ProvisioningTokenPolicy `json:"provisioningToken,omitempty,omitzero"`
}

// Mode says what the gate does with a pool.
// +kubebuilder:validation:Enum=Off;Audit;Enforce
type Mode string

// The modes.
const (
	ModeOff     Mode = "Off"
	ModeAudit   Mode = "Audit"
	ModeEnforce Mode = "Enforce"
)

// Unattested says what a caller without a token receives under Enforce.
// +kubebuilder:validation:Enum=Deny;PreApproved
type Unattested string

// What the unattested receive.
const (
	UnattestedDeny        Unattested = "Deny"
	UnattestedPreApproved Unattested = "PreApproved"
)

// Binding ties evidence to a connection.
// +kubebuilder:validation:Enum=Exporter;Terminated
type Binding string

// The bindings.
const (
	BindingExporter   Binding = "Exporter"
	BindingTerminated Binding = "Terminated"
)

// EvidenceAlternative is one sufficient set of evidence.
type EvidenceAlternative struct {
	// all are the kinds that must be present together: tpm2, aws-iid, aws-sts,
	// gcp-identity, azure-attested, provisioning-token.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=6
	// +kubebuilder:validation:items:Enum=tpm2;aws-iid;aws-sts;gcp-identity;azure-attested;provisioning-token
	All []string `json:"all"`
}

// TPM2Policy says how a TPM's evidence is appraised.
type TPM2Policy struct {
	// endorsements are the ways in which an EK may be vouched for: "provider",
	// "ak-certificate", "enrolled", "manufacturer". Default: enrolled.
	Endorsements []Endorsement `json:"endorsements,omitempty"`

	// profile says how much of the boot is appraised: "identity-only",
	// "secure-boot". Default: identity-only.
	Profile string `json:"profile,omitempty"`

	// profileAction says what a boot outside the profile leads to: "Enforce" a
	// denial, "Warn" a warning in the token and the record. Default: Enforce.
	ProfileAction ProfileAction `json:"profileAction,omitempty"`

	// banks are the PCR banks that may be quoted, the preferred first: "sha256",
	// "sha384". Default: sha256, then sha384.
	Banks []string `json:"banks,omitempty"`

	// referenceValues name the sets of reference values that apply. Default:
	// every set that the verifier has.
	ReferenceValues []string `json:"referenceValues,omitempty"`

	// approval says when a genuine TPM that nobody enrolled is bound to a
	// Machine: "Manual" when an administrator approves it, "FirstUse" also when
	// other evidence of the same attestation names the Machine. Default: Manual.
	Approval Approval `json:"approval,omitempty"`
}

// Endorsement is a way in which an EK is vouched for.
// +kubebuilder:validation:Enum=provider;ak-certificate;enrolled;manufacturer
type Endorsement string

// The endorsements, in the order in which they are tried.
const (
	EndorsementProvider      Endorsement = "provider"
	EndorsementAKCertificate Endorsement = "ak-certificate"
	EndorsementEnrolled      Endorsement = "enrolled"
	EndorsementManufacturer  Endorsement = "manufacturer"
)

// ProfileAction says what a boot outside the profile leads to.
// +kubebuilder:validation:Enum=Enforce;Warn
type ProfileAction string

// The actions.
const (
	ProfileEnforce ProfileAction = "Enforce"
	ProfileWarn    ProfileAction = "Warn"
)

// Approval says when a genuine TPM that nobody enrolled is bound to a Machine.
// +kubebuilder:validation:Enum=Manual;FirstUse
type Approval string

// The approvals.
const (
	ApprovalManual   Approval = "Manual"
	ApprovalFirstUse Approval = "FirstUse"
)

// ProvisioningTokenPolicy says how the provisioning token may be shown to the gate.
type ProvisioningTokenPolicy struct {
	// urlParameter also takes it as the parameter "token" of the URL, for nodes
	// whose Ignition sends no headers (specification 2.x and 3.0). Ignition and
	// every proxy on the way log it. Default: false.
	URLParameter bool `json:"urlParameter,omitempty"`

	// whenAbsent says what callers receive while there is no provisioning token.
	// Wait: machines wait until there is one. Open: a caller that presents nothing
	// receives the full config, as without mcs-attest. Open is for the time before
	// the first token, and only where the policy lists nothing else. Default: Wait.
	WhenAbsent WhenAbsent `json:"whenAbsent,omitempty"`
}

// WhenAbsent says what callers receive while there is no provisioning token.
// +kubebuilder:validation:Enum=Wait;Open
type WhenAbsent string

// The answers to an absent provisioning token.
const (
	WhenAbsentWait WhenAbsent = "Wait"
	WhenAbsentOpen WhenAbsent = "Open"
)

// TokenPolicy is about the attestation result.
type TokenPolicy struct {
	// lifetime of a token, 1m to 1h. Default: 10m.
	Lifetime metav1.Duration `json:"lifetime,omitempty,omitzero"`
	// uses is how often the gate answers to one token, 1 to 10. Default: 3,
	// since Ignition tries again when a connection drops.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	Uses int32 `json:"uses,omitempty"`
}
