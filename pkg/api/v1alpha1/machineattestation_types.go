package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MachineAttestation is one machine: what the administrator says of it, and
// what the verifier recorded.
type MachineAttestation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`

	Spec   MachineAttestationSpec   `json:"spec,omitzero"`
	Status MachineAttestationStatus `json:"status,omitzero"`
}

// MachineAttestationSpec is the administrator's. It either belongs to a Machine
// (machineRef) or stands in for one (pool), never both.
type MachineAttestationSpec struct {
	// machineRef names the Machine that this object belongs to.
	MachineRef *MachineReference `json:"machineRef,omitempty"`

	// pool makes this object stand in for a Machine where there are none: the
	// machine with this identity receives this pool's config.
	Pool string `json:"pool,omitempty"`

	// ekSHA256 enrols the machine's TPM: the SHA-256 of the SubjectPublicKeyInfo
	// of an EK, 64 hexadecimal digits. Several where a TPM has several EKs.
	EKSHA256 []string `json:"ekSHA256,omitempty"`

	// expectedProviderID is the cloud instance that the machine must be, in the
	// form of the Machine's spec.providerID.
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
	Name      string `json:"name"`
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
	Identity RecordedIdentity `json:"identity,omitzero"`
	// endorsement that vouched for the EK.
	Endorsement Endorsement `json:"endorsement,omitempty"`
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
}

// RecordedIdentity is what "the same machine" means.
type RecordedIdentity struct {
	EKSHA256 string `json:"ekSHA256,omitempty"`
	// akSHA256 is recorded where the AK is certified.
	AKSHA256   string `json:"akSHA256,omitempty"`
	ProviderID string `json:"providerID,omitempty"`
}

// EvidenceSummary is what one piece of evidence said.
type EvidenceSummary struct {
	Kind string `json:"kind"`
	// sha256 of the evidence's bytes, hexadecimal.
	SHA256 string `json:"sha256,omitempty"`
	// summary holds verified claims, for a person.
	Summary map[string]string `json:"summary,omitempty"`
}

// TokenStatus is about the token last issued, never the token itself.
type TokenStatus struct {
	ID      string      `json:"id"`
	Pool    string      `json:"pool"`
	Expiry  metav1.Time `json:"expiry"`
	Uses    int32       `json:"uses"`
	MaxUses int32       `json:"maxUses"`
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
