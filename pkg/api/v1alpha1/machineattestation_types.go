// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MachineAttestation is one machine: the administrator's settings in spec, and the
// verifier's record in status. In a cluster it has one of three roles. An enrollment is
// written by an administrator, with machineRef, or with pool for a stand-in. A record is
// written by the verifier for a Machine, which owns it and whose UID is its name. A
// machine that waits for approval has neither machineRef nor pool, and is in the
// verifier's own namespace.
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
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Attested")].reason`,priority=1
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

// MachineAttestationSpec is written by administrators. The object belongs to a Machine
// (machineRef) or stands in for one (pool), never both. With neither it is a machine
// that waits for approval.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.machineRef) && has(self.pool))",message="machineRef and pool are mutually exclusive: the Machine has its own pool"
// +kubebuilder:validation:XValidation:rule="!has(self.pool) || has(self.ekSHA256) || has(self.expectedProviderID)",message="an object with pool requires ekSHA256 or expectedProviderID"
type MachineAttestationSpec struct {
	// machineRef names the Machine that this object belongs to.
	MachineRef *MachineReference `json:"machineRef,omitempty"`

	// pool makes this object stand in for a Machine, where Machines do not exist. The
	// machine with this identity receives this pool's config.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool,omitempty"`

	// ekSHA256 enrolls the machine's TPM. Each entry is the SHA-256 of the
	// SubjectPublicKeyInfo of one of its EKs, 64 hexadecimal digits.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F]{64}$`
	// +listType=set
	EKSHA256 []string `json:"ekSHA256,omitempty"`

	// expectedProviderID is the required cloud instance of the machine, in the form of the
	// Machine's spec.providerID.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	ExpectedProviderID string `json:"expectedProviderID,omitempty"`

	// quarantined denies attestation, config and certificates to this machine while true.
	Quarantined bool `json:"quarantined,omitempty"`

	// reattest lets a machine that has joined attest again.
	Reattest *ReattestGrant `json:"reattest,omitempty"`

	// rehearsal lets the holder of a ticket rehearse the attestation of this machine, once.
	Rehearsal *RehearsalTicket `json:"rehearsal,omitempty"`

	// notAfter is when the enrollment of ekSHA256 expires. Default: it does not expire.
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

// ReattestGrant permits another attestation of a machine that has joined.
type ReattestGrant struct {
	// until is when the grant expires. The verifier ignores a grant that expires more than
	// 24 hours from now.
	Until metav1.Time `json:"until"`
}

// RehearsalTicket permits one rehearsal: an attestation that is appraised and yields nothing.
type RehearsalTicket struct {
	// ticketSHA256 is the SHA-256 of the ticket, 64 lowercase hexadecimal digits. Only the administrator
	// and the machine have the ticket itself.
	//
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	TicketSHA256 string `json:"ticketSHA256"`
	// until is when the ticket expires. The verifier ignores a ticket that expires more than 1 hour
	// from now.
	Until metav1.Time `json:"until"`
}

// Phase is the progress of a machine.
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

// MaxHistory is the limit of status.history. The oldest entries are deleted first.
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
	// pending describes a machine that waits for approval.
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
	// report is the last failure that the machine reported. Untrusted.
	Report *FailureReport `json:"report,omitempty"`
	// challenges are the answered challenges that have not expired (binding Terminated). They
	// prevent a second answer.
	Challenges []AnsweredChallenge `json:"challenges,omitempty"`
	// lastAttested is when the last attestation was accepted.
	LastAttested *metav1.Time `json:"lastAttested,omitempty"`
	// pool of the last accepted attestation.
	Pool string `json:"pool,omitempty"`
	// ticket describes the last report ticket, without the ticket itself.
	Ticket *TicketStatus `json:"ticket,omitempty"`
	// quarantined is the recorded spec.quarantined. It stays in force if the spec becomes unreadable.
	Quarantined bool `json:"quarantined,omitempty"`
	// grantUsed is the end of the re-attestation grant that was used last.
	GrantUsed *metav1.Time `json:"grantUsed,omitempty"`
	// grantAttestations is the number of attestations with that grant.
	GrantAttestations int32 `json:"grantAttestations,omitempty"`
	// credentials are the machine's own bootstrap credentials that have not expired, without
	// their secrets.
	//
	// +kubebuilder:validation:MaxItems=8
	Credentials []CredentialStatus `json:"credentials,omitempty"`
	// csrKeySHA256 is the SHA-256 (hexadecimal) of the SubjectPublicKeyInfo that the machine
	// attested as its kubelet's key. It is empty if the machine named none.
	CSRKeySHA256 string `json:"csrKeySHA256,omitempty"`
	// certificate is the first client certificate that was approved for the machine.
	Certificate *CertificateStatus `json:"certificate,omitempty"`
	// certificateRequest is the machine's own request for its node's certificate.
	CertificateRequest *CertificateRequestStatus `json:"certificateRequest,omitempty"`
	// tpm has the TPM's counters at the last accepted attestation. They never decrease without
	// a grant to attest again.
	TPM *TPMCounters `json:"tpm,omitempty"`
	// rehearsal is the result of the last rehearsal. It changes nothing that the machine may do.
	Rehearsal *RehearsalStatus `json:"rehearsal,omitempty"`
}

// MaxRehearsalWarnings is the limit of status.rehearsal.warnings.
const MaxRehearsalWarnings = 8

// RehearsalStatus is the result of a rehearsal.
type RehearsalStatus struct {
	Time metav1.Time `json:"time"`
	// ticketSHA256 is the SHA-256 (hexadecimal) of the ticket that was used. It cannot be used again.
	TicketSHA256 string `json:"ticketSHA256"`
	// pool that the machine asked for.
	Pool string `json:"pool"`
	// passed reports that the evidence satisfied the pool's policy.
	Passed bool `json:"passed"`
	// reason of the denial. It is empty if the rehearsal passed.
	Reason string `json:"reason,omitempty"`
	// warnings about what the rehearsal found, or could not show.
	//
	// +kubebuilder:validation:MaxItems=8
	Warnings []string `json:"warnings,omitempty"`
	// agentVersion is the version of the agent on the machine. Untrusted.
	AgentVersion string `json:"agentVersion,omitempty"`
}

// TPMCounters are what a quote has about the TPM's clock (TPM 2.0 Library, Part 2, 10.11.1).
type TPMCounters struct {
	// resetCount counts the resets of the TPM: each boot of the machine, and each reset of the
	// TPM under a running system.
	ResetCount int64 `json:"resetCount"`
	// restartCount counts the restarts and resumes since the last reset.
	RestartCount int64 `json:"restartCount"`
	// clock is the time for which the TPM was powered, in milliseconds.
	Clock int64 `json:"clock"`
}

// MaxCredentials is the limit of status.credentials.
const MaxCredentials = 8

// CredentialStatus is a bootstrap credential that was made only for this machine.
type CredentialStatus struct {
	// id identifies the credential in certificate signing requests: "JTI=" and the ID of a
	// service account's token, or the user of a bootstrap token, "system:bootstrap:ID".
	ID     string      `json:"id"`
	Issued metav1.Time `json:"issued"`
	Expiry metav1.Time `json:"expiry"`
	// secret is the "namespace/name" of the Secret whose deletion revokes it.
	Secret string `json:"secret,omitempty"`
	// secretUID is the UID of that Secret.
	SecretUID string `json:"secretUID,omitempty"`
	// revoked reports that the Secret was deleted after a quarantine.
	Revoked bool `json:"revoked,omitempty"`
}

// CertificateStatus is an approved client certificate.
type CertificateStatus struct {
	// node is the Node name in the certificate.
	Node string `json:"node"`
	// publicKeySHA256 is the SHA-256 (hexadecimal) of its SubjectPublicKeyInfo.
	PublicKeySHA256 string `json:"publicKeySHA256"`
	// request is the name of the CertificateSigningRequest.
	Request string `json:"request,omitempty"`
	// credentialID is the credential that made the request.
	CredentialID string      `json:"credentialID,omitempty"`
	Approved     metav1.Time `json:"approved"`
	// used reports that this Node existed after the approval. Until the machine attests again, no other key can
	// replace this one.
	Used bool `json:"used,omitempty"`
	// issued is the certificate chain (PEM), if the machine requested it through the verifier.
	//
	// +kubebuilder:validation:MaxLength=32768
	Issued []byte `json:"issued,omitempty"`
}

// CertificateRequestStatus is a request for a node's certificate that a machine signed with the
// key that it attested. Its content is untrusted.
type CertificateRequestStatus struct {
	// request is the PKCS #10 request (DER).
	//
	// +kubebuilder:validation:MaxLength=4096
	Request []byte `json:"request"`
	// token is the ID of the attestation token with which it was made.
	Token string `json:"token"`
}

// RecordedIdentity identifies a machine across attestations.
type RecordedIdentity struct {
	EKSHA256 string `json:"ekSHA256,omitempty"`
	// akSHA256 is recorded if the AK is certified.
	AKSHA256   string `json:"akSHA256,omitempty"`
	ProviderID string `json:"providerID,omitempty"`
	// instanceID is the cloud's unique ID of the instance, with the prefix "aws:", "gcp:",
	// "azure:" or "vsphere:". The cloud never reuses it.
	InstanceID string `json:"instanceID,omitempty"`
}

// EvidenceSummary describes one piece of evidence.
type EvidenceSummary struct {
	Kind string `json:"kind"`
	// sha256 of the evidence's bytes, hexadecimal.
	SHA256 string `json:"sha256,omitempty"`
	// summary has verified claims, for administrators.
	Summary map[string]string `json:"summary,omitempty"`
}

// SummaryChallenged is the key of a summary that has when the machine received the challenge that it answered.
const SummaryChallenged = "challenged"

// SummaryStage is the key of a summary that has the stage in which the machine attested, by its own word. It is absent
// for the initramfs.
const SummaryStage = "stage"

// PendingMachine is a machine with a genuine TPM that is not enrolled.
type PendingMachine struct {
	// ekSHA256 is the SHA-256 (hexadecimal) of its EK's SubjectPublicKeyInfo.
	EKSHA256 string `json:"ekSHA256"`
	// pool is the requested pool.
	Pool      string      `json:"pool,omitempty"`
	FirstSeen metav1.Time `json:"firstSeen"`
	LastSeen  metav1.Time `json:"lastSeen"`
	// source is the address of the request, as a hint only.
	Source string `json:"source,omitempty"`
	// certificate has the contents of its EK certificate.
	Certificate map[string]string `json:"certificate,omitempty"`
	// claims are the machine's own claims (JSON), as a hint only. Untrusted.
	Claims string `json:"claims,omitempty"`
}

// TokenStatus describes the last token, without the token itself.
type TokenStatus struct {
	ID      string      `json:"id"`
	Pool    string      `json:"pool"`
	Expiry  metav1.Time `json:"expiry"`
	Uses    int32       `json:"uses"`
	MaxUses int32       `json:"maxUses"`
	// useIDs has a random ID for each use. After a write without a response, a verifier
	// detects with it whether the use was counted. It also identifies a use to return.
	//
	// +kubebuilder:validation:MaxItems=10
	UseIDs []string `json:"useIDs,omitempty"`
}

// TicketStatus describes the last report ticket.
type TicketStatus struct {
	ID   string `json:"id"`
	Uses int32  `json:"uses,omitempty"`
}

// AnsweredChallenge is a challenge that must not be answered again.
type AnsweredChallenge struct {
	ID     string      `json:"id"`
	Expiry metav1.Time `json:"expiry"`
}

// The types of a record's conditions.
const (
	// ConditionAttested is true after the machine's evidence was accepted.
	ConditionAttested = "Attested"
	// ConditionConflict is true after another identity was proven for this Machine.
	ConditionConflict = "Conflict"
	// ConditionFirstBootFailed is true after the machine reported a failed stage.
	ConditionFirstBootFailed = "FirstBootFailed"
	// ConditionCertificateRefused is true while a certificate signing request from this
	// machine's credential is refused.
	ConditionCertificateRefused = "CertificateRefused"
	// ConditionRoleMismatch is true while the machine's Node has a control-plane role that
	// its pool does not have.
	ConditionRoleMismatch = "RoleMismatch"
	// ConditionRehearsed is true after a rehearsal that passed, and false after one that did not.
	ConditionRehearsed = "Rehearsed"
	// ConditionAccepted, on an enrollment or a policy, is false while the verifier cannot
	// use the object. The last valid state then stays in force.
	ConditionAccepted = "Accepted"
)

// HistoryEntry is one event.
type HistoryEntry struct {
	Time          metav1.Time `json:"time"`
	Event         string      `json:"event"`
	Reason        string      `json:"reason,omitempty"`
	CorrelationID string      `json:"correlationID,omitempty"`
	Message       string      `json:"message,omitempty"`
}

// FailureReport is a machine's report of a failure later in its first boot. All of it is
// untrusted text.
type FailureReport struct {
	Time       metav1.Time `json:"time"`
	Unit       string      `json:"unit,omitempty"`
	Result     string      `json:"result,omitempty"`
	ExitStatus int32       `json:"exitStatus,omitempty"`
	Message    string      `json:"message,omitempty"`
}
