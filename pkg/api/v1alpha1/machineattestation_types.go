package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MachineAttestation is one machine: what the administrator says of it, and
// what the verifier recorded. In a cluster it is one of three: an enrolment that
// an administrator wrote (machineRef, or pool for a stand-in), the record that
// the verifier keeps of a Machine (named by its UID, owned by it), or a machine
// that waits for approval (neither machineRef nor pool, in the verifier's own
// namespace).
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=machineattestations,scope=Namespaced,shortName=mcsa
// +kubebuilder:printcolumn:name="Machine",type=string,JSONPath=`.spec.machineRef.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.status.pool`
// +kubebuilder:printcolumn:name="Endorsement",type=string,JSONPath=`.status.endorsement`
// +kubebuilder:printcolumn:name="Attested",type=date,JSONPath=`.status.lastAttested`
// +kubebuilder:printcolumn:name="Quarantined",type=boolean,JSONPath=`.spec.quarantined`,priority=1
// +kubebuilder:printcolumn:name="Why not",type=string,JSONPath=`.status.conditions[?(@.status=="False")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MachineAttestation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty,omitzero"`

	Spec   MachineAttestationSpec   `json:"spec,omitempty,omitzero"`
	Status MachineAttestationStatus `json:"status,omitempty,omitzero"`
}

// MachineAttestationList is a list of MachineAttestations.
//
// +kubebuilder:object:root=true
type MachineAttestationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty,omitzero"`

	Items []MachineAttestation `json:"items"`
}

// MachineAttestationSpec is the administrator's. It either belongs to a Machine
// (machineRef) or stands in for one (pool), never both. With neither it is a
// machine that waits for approval.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.machineRef) && has(self.pool))",message="machineRef and pool exclude each other: the Machine has its own pool"
// +kubebuilder:validation:XValidation:rule="!has(self.pool) || has(self.ekSHA256) || has(self.expectedProviderID)",message="an object that stands in for a Machine needs ekSHA256 or expectedProviderID"
type MachineAttestationSpec struct {
	// machineRef names the Machine that this object belongs to.
	MachineRef *MachineReference `json:"machineRef,omitempty"`

	// pool makes this object stand in for a Machine where there are none: the
	// machine with this identity receives this pool's config.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool,omitempty"`

	// ekSHA256 enrols the machine's TPM: the SHA-256 of the SubjectPublicKeyInfo
	// of an EK, 64 hexadecimal digits. Several where a TPM has several EKs.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F]{64}$`
	// +listType=set
	EKSHA256 []string `json:"ekSHA256,omitempty"`

	// expectedProviderID is the cloud instance that the machine must be, in the
	// form of the Machine's spec.providerID.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	ExpectedProviderID string `json:"expectedProviderID,omitempty"`

	// quarantined stops attestation and redemption for this machine until it is lifted.
	Quarantined bool `json:"quarantined,omitempty"`

	// reattest lets a machine that has joined attest once more.
	Reattest *ReattestGrant `json:"reattest,omitempty"`

	// notAfter ends the enrolment of ekSHA256. Default: it does not end.
	NotAfter *metav1.Time `json:"notAfter,omitempty"`
}

// MachineReference names a Machine. Empty apiVersion and kind mean a Machine of
// either API (machine.openshift.io or cluster.x-k8s.io).
type MachineReference struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	// namespace defaults to the namespace of the MachineAttestation.
	Namespace string `json:"namespace,omitempty"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ReattestGrant is one more attestation for a machine that has joined.
type ReattestGrant struct {
	// until is when the grant ends. A grant is honoured only while its end is at
	// most 24 hours away.
	Until metav1.Time `json:"until"`
}

// Phase is where a machine stands.
// +kubebuilder:validation:Enum=Pending;Attested;Fetched;Joined;Denied
type Phase string

// The phases.
const (
	PhasePending  Phase = "Pending"
	PhaseAttested Phase = "Attested"
	PhaseFetched  Phase = "Fetched"
	PhaseJoined   Phase = "Joined"
	PhaseDenied   Phase = "Denied"
)

// MaxHistory bounds status.history; the oldest entries go first.
const MaxHistory = 20

// MachineAttestationStatus is the verifier's record.
type MachineAttestationStatus struct {
	Phase Phase `json:"phase,omitempty"`
	// machineUID is the UID of the Machine that the identity belongs to.
	MachineUID string `json:"machineUID,omitempty"`
	// identity as recorded at the first attestation. Components are added, never changed.
	Identity RecordedIdentity `json:"identity,omitempty,omitzero"`
	// endorsement that vouched for the EK.
	Endorsement Endorsement `json:"endorsement,omitempty"`
	// pending is what is known of a machine that waits for approval.
	Pending *PendingMachine `json:"pending,omitempty"`
	// evidence of the last accepted attestation.
	Evidence []EvidenceSummary `json:"evidence,omitempty"`
	// token last issued.
	Token *TokenStatus `json:"token,omitempty"`
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// history, oldest first, at most 20 entries.
	History []HistoryEntry `json:"history,omitempty"`
	// report is the last failure that the machine itself told of. Untrusted.
	Report *FailureReport `json:"report,omitempty"`
	// challenges are the answered challenges that have not expired yet (binding
	// Terminated), so that none is answered twice.
	Challenges []AnsweredChallenge `json:"challenges,omitempty"`
	// lastAttested is when the last attestation was accepted.
	LastAttested *metav1.Time `json:"lastAttested,omitempty"`
	// pool of the last accepted attestation.
	Pool string `json:"pool,omitempty"`
	// ticket is about the report ticket last issued, never the ticket itself.
	Ticket *TicketStatus `json:"ticket,omitempty"`
	// quarantined latches spec.quarantined, so that it outlives a spec that cannot be read.
	Quarantined bool `json:"quarantined,omitempty"`
	// grantUsed is the end of the re-attestation grant that was last consumed.
	GrantUsed *metav1.Time `json:"grantUsed,omitempty"`
	// grantAttestations counts the attestations under that grant.
	GrantAttestations int32 `json:"grantAttestations,omitempty"`
	// credentials are the machine's own bootstrap credentials that were served and
	// have not ended, never the credentials themselves.
	//
	// +kubebuilder:validation:MaxItems=8
	Credentials []CredentialStatus `json:"credentials,omitempty"`
	// csrKeySHA256 is the SHA-256 (hexadecimal) of the SubjectPublicKeyInfo that
	// the machine attested as the key of its kubelet; empty if it named none.
	CSRKeySHA256 string `json:"csrKeySHA256,omitempty"`
	// certificate is the first client certificate that was approved for the machine.
	Certificate *CertificateStatus `json:"certificate,omitempty"`
}

// MaxCredentials bounds status.credentials.
const MaxCredentials = 8

// CredentialStatus is a bootstrap credential that was made for this machine alone.
type CredentialStatus struct {
	// id is how certificate signing requests name it: "JTI=" and the id of a service
	// account's token, or the user of a bootstrap token, "system:bootstrap:ID".
	ID     string      `json:"id"`
	Issued metav1.Time `json:"issued"`
	Expiry metav1.Time `json:"expiry"`
	// secret is the "namespace/name" of the Secret whose deletion revokes it.
	Secret string `json:"secret,omitempty"`
	// secretUID is that Secret's.
	SecretUID string `json:"secretUID,omitempty"`
	// revoked: the Secret was deleted, after a quarantine.
	Revoked bool `json:"revoked,omitempty"`
}

// CertificateStatus is a client certificate that was approved.
type CertificateStatus struct {
	// node is the name that it is for.
	Node string `json:"node"`
	// publicKeySHA256 of its SubjectPublicKeyInfo, hexadecimal.
	PublicKeySHA256 string `json:"publicKeySHA256"`
	// request is the CertificateSigningRequest's name.
	Request string `json:"request,omitempty"`
	// credentialID is the credential that the request was made with.
	CredentialID string      `json:"credentialID,omitempty"`
	Approved     metav1.Time `json:"approved"`
}

// RecordedIdentity is what "the same machine" means.
type RecordedIdentity struct {
	EKSHA256 string `json:"ekSHA256,omitempty"`
	// akSHA256 is recorded where the AK is certified.
	AKSHA256   string `json:"akSHA256,omitempty"`
	ProviderID string `json:"providerID,omitempty"`
	// instanceID is the cloud's own name of the instance, which is never used again:
	// "aws:", "gcp:", "azure:" or "vsphere:", and the id.
	InstanceID string `json:"instanceID,omitempty"`
}

// EvidenceSummary is what one piece of evidence said.
type EvidenceSummary struct {
	Kind string `json:"kind"`
	// sha256 of the evidence's bytes, hexadecimal.
	SHA256 string `json:"sha256,omitempty"`
	// summary holds verified claims, for a person.
	Summary map[string]string `json:"summary,omitempty"`
}

// PendingMachine is a machine with a genuine TPM that no enrolment names.
type PendingMachine struct {
	// ekSHA256 is the SHA-256 of its EK's SubjectPublicKeyInfo, hexadecimal.
	EKSHA256 string `json:"ekSHA256"`
	// pool that it asked for.
	Pool      string      `json:"pool,omitempty"`
	FirstSeen metav1.Time `json:"firstSeen"`
	LastSeen  metav1.Time `json:"lastSeen"`
	// source is the address that it came from, for orientation only.
	Source string `json:"source,omitempty"`
	// certificate is what its EK certificate says.
	Certificate map[string]string `json:"certificate,omitempty"`
	// claims are its own words (JSON), for orientation only. Untrusted.
	Claims string `json:"claims,omitempty"`
}

// TokenStatus is about the token last issued, never the token itself.
type TokenStatus struct {
	ID      string      `json:"id"`
	Pool    string      `json:"pool"`
	Expiry  metav1.Time `json:"expiry"`
	Uses    int32       `json:"uses"`
	MaxUses int32       `json:"maxUses"`
	// useIDs has a random id for each use. A verifier whose write was not answered
	// finds out by it whether it took a use, and returns a use that served no one.
	//
	// +kubebuilder:validation:MaxItems=10
	UseIDs []string `json:"useIDs,omitempty"`
}

// TicketStatus is about the report ticket last issued.
type TicketStatus struct {
	ID   string `json:"id"`
	Uses int32  `json:"uses,omitempty"`
}

// AnsweredChallenge is a challenge that may not be answered again.
type AnsweredChallenge struct {
	ID     string      `json:"id"`
	Expiry metav1.Time `json:"expiry"`
}

// The types of a record's conditions.
const (
	// ConditionAttested is true once the machine's evidence was accepted.
	ConditionAttested = "Attested"
	// ConditionConflict is true when another identity claimed this Machine.
	ConditionConflict = "Conflict"
	// ConditionFirstBootFailed is true when the machine reported a failed stage.
	ConditionFirstBootFailed = "FirstBootFailed"
	// ConditionCertificateRefused is true while a certificate signing request that
	// was made with this machine's credential is refused.
	ConditionCertificateRefused = "CertificateRefused"
	// ConditionRoleMismatch is true while the machine's Node has a control-plane role that
	// its pool does not have.
	ConditionRoleMismatch = "RoleMismatch"
	// ConditionAccepted, on an enrolment or a policy, is false while the verifier
	// cannot use the object as it stands; the last good state is in force then.
	ConditionAccepted = "Accepted"
)

// HistoryEntry is one thing that happened.
type HistoryEntry struct {
	Time          metav1.Time `json:"time"`
	Event         string      `json:"event"`
	Reason        string      `json:"reason,omitempty"`
	CorrelationID string      `json:"correlationID,omitempty"`
	Message       string      `json:"message,omitempty"`
}

// FailureReport is what a machine told of a later step of its first boot. All
// of it is untrusted text.
type FailureReport struct {
	Time       metav1.Time `json:"time"`
	Unit       string      `json:"unit,omitempty"`
	Result     string      `json:"result,omitempty"`
	ExitStatus int32       `json:"exitStatus,omitempty"`
	Message    string      `json:"message,omitempty"`
}
