package reason

import (
	"net/http"

	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// The codes.
const (
	Malformed                = Code(mcsattestv1.Reason_REASON_MALFORMED)
	TooLarge                 = Code(mcsattestv1.Reason_REASON_TOO_LARGE)
	TLSRequired              = Code(mcsattestv1.Reason_REASON_TLS_REQUIRED)
	OriginUnknown            = Code(mcsattestv1.Reason_REASON_ORIGIN_UNKNOWN)
	PoolUnknown              = Code(mcsattestv1.Reason_REASON_POOL_UNKNOWN)
	RateLimited              = Code(mcsattestv1.Reason_REASON_RATE_LIMITED)
	ChallengeInvalid         = Code(mcsattestv1.Reason_REASON_CHALLENGE_INVALID)
	ChallengeKeyUnknown      = Code(mcsattestv1.Reason_REASON_CHALLENGE_KEY_UNKNOWN)
	ChallengeExpired         = Code(mcsattestv1.Reason_REASON_CHALLENGE_EXPIRED)
	ChallengeUsed            = Code(mcsattestv1.Reason_REASON_CHALLENGE_USED)
	PolicyChanged            = Code(mcsattestv1.Reason_REASON_POLICY_CHANGED)
	BindingMissing           = Code(mcsattestv1.Reason_REASON_BINDING_MISSING)
	BindingMismatch          = Code(mcsattestv1.Reason_REASON_BINDING_MISMATCH)
	EvidenceMissing          = Code(mcsattestv1.Reason_REASON_EVIDENCE_MISSING)
	EvidenceUnacceptable     = Code(mcsattestv1.Reason_REASON_EVIDENCE_UNACCEPTABLE)
	EvidenceDisagrees        = Code(mcsattestv1.Reason_REASON_EVIDENCE_DISAGREES)
	DocumentInvalid          = Code(mcsattestv1.Reason_REASON_DOCUMENT_INVALID)
	DocumentNotFresh         = Code(mcsattestv1.Reason_REASON_DOCUMENT_NOT_FRESH)
	DocumentUntrusted        = Code(mcsattestv1.Reason_REASON_DOCUMENT_UNTRUSTED)
	AccountNotAllowed        = Code(mcsattestv1.Reason_REASON_ACCOUNT_NOT_ALLOWED)
	InstanceNotFound         = Code(mcsattestv1.Reason_REASON_INSTANCE_NOT_FOUND)
	InstanceUnacceptable     = Code(mcsattestv1.Reason_REASON_INSTANCE_UNACCEPTABLE)
	EKUnacceptable           = Code(mcsattestv1.Reason_REASON_EK_UNACCEPTABLE)
	EKCertificateInvalid     = Code(mcsattestv1.Reason_REASON_EK_CERTIFICATE_INVALID)
	EKUntrusted              = Code(mcsattestv1.Reason_REASON_EK_UNTRUSTED)
	EKNotEnrolled            = Code(mcsattestv1.Reason_REASON_EK_NOT_ENROLLED)
	AKUnacceptable           = Code(mcsattestv1.Reason_REASON_AK_UNACCEPTABLE)
	ActivationInvalid        = Code(mcsattestv1.Reason_REASON_ACTIVATION_INVALID)
	QuoteInvalid             = Code(mcsattestv1.Reason_REASON_QUOTE_INVALID)
	QuoteNotFresh            = Code(mcsattestv1.Reason_REASON_QUOTE_NOT_FRESH)
	PCRSelection             = Code(mcsattestv1.Reason_REASON_PCR_SELECTION)
	PCRDigest                = Code(mcsattestv1.Reason_REASON_PCR_DIGEST)
	PCRCapped                = Code(mcsattestv1.Reason_REASON_PCR_CAPPED)
	EventLogMalformed        = Code(mcsattestv1.Reason_REASON_EVENT_LOG_MALFORMED)
	EventLogReplay           = Code(mcsattestv1.Reason_REASON_EVENT_LOG_REPLAY)
	MeasuredBoot             = Code(mcsattestv1.Reason_REASON_MEASURED_BOOT)
	ProvisioningTokenInvalid = Code(mcsattestv1.Reason_REASON_PROVISIONING_TOKEN_INVALID)
	MachineNotFound          = Code(mcsattestv1.Reason_REASON_MACHINE_NOT_FOUND)
	MachineAmbiguous         = Code(mcsattestv1.Reason_REASON_MACHINE_AMBIGUOUS)
	MachineDeleting          = Code(mcsattestv1.Reason_REASON_MACHINE_DELETING)
	MachineJoined            = Code(mcsattestv1.Reason_REASON_MACHINE_JOINED)
	MachineTooOld            = Code(mcsattestv1.Reason_REASON_MACHINE_TOO_OLD)
	MachinePool              = Code(mcsattestv1.Reason_REASON_MACHINE_POOL)
	IdentityConflict         = Code(mcsattestv1.Reason_REASON_IDENTITY_CONFLICT)
	Quarantined              = Code(mcsattestv1.Reason_REASON_QUARANTINED)
	PendingApproval          = Code(mcsattestv1.Reason_REASON_PENDING_APPROVAL)
	TokenMissing             = Code(mcsattestv1.Reason_REASON_TOKEN_MISSING)
	TokenInvalid             = Code(mcsattestv1.Reason_REASON_TOKEN_INVALID)
	TokenKeyUnknown          = Code(mcsattestv1.Reason_REASON_TOKEN_KEY_UNKNOWN)
	TokenExpired             = Code(mcsattestv1.Reason_REASON_TOKEN_EXPIRED)
	TokenPool                = Code(mcsattestv1.Reason_REASON_TOKEN_POOL)
	TokenSuperseded          = Code(mcsattestv1.Reason_REASON_TOKEN_SUPERSEDED)
	TokenUsedUp              = Code(mcsattestv1.Reason_REASON_TOKEN_USED_UP)
	Plaintext                = Code(mcsattestv1.Reason_REASON_PLAINTEXT)
	ReportTicketInvalid      = Code(mcsattestv1.Reason_REASON_REPORT_TICKET_INVALID)
	ReportLimit              = Code(mcsattestv1.Reason_REASON_REPORT_LIMIT)
	StoreUnavailable         = Code(mcsattestv1.Reason_REASON_STORE_UNAVAILABLE)
	UpstreamUnavailable      = Code(mcsattestv1.Reason_REASON_UPSTREAM_UNAVAILABLE)
	UpstreamInvalid          = Code(mcsattestv1.Reason_REASON_UPSTREAM_INVALID)
	ShuttingDown             = Code(mcsattestv1.Reason_REASON_SHUTTING_DOWN)
	Internal                 = Code(mcsattestv1.Reason_REASON_INTERNAL)
	ReferenceValuesMissing   = Code(mcsattestv1.Reason_REASON_REFERENCE_VALUES_MISSING)
	ProviderUnavailable      = Code(mcsattestv1.Reason_REASON_PROVIDER_UNAVAILABLE)
	CredentialUnavailable    = Code(mcsattestv1.Reason_REASON_CREDENTIAL_UNAVAILABLE)
	ConfigUnavailable        = Code(mcsattestv1.Reason_REASON_CONFIG_UNAVAILABLE)
	CSRMalformed             = Code(mcsattestv1.Reason_REASON_CSR_MALFORMED)
	CSRRequester             = Code(mcsattestv1.Reason_REASON_CSR_REQUESTER)
	CSRContent               = Code(mcsattestv1.Reason_REASON_CSR_CONTENT)
	CSRNodeExists            = Code(mcsattestv1.Reason_REASON_CSR_NODE_EXISTS)
	CSRCredential            = Code(mcsattestv1.Reason_REASON_CSR_CREDENTIAL)
	CSROtherMachine          = Code(mcsattestv1.Reason_REASON_CSR_OTHER_MACHINE)
	CSRKeyChanged            = Code(mcsattestv1.Reason_REASON_CSR_KEY_CHANGED)
	CSRAddress               = Code(mcsattestv1.Reason_REASON_CSR_ADDRESS)
	CSRLimit                 = Code(mcsattestv1.Reason_REASON_CSR_LIMIT)
	CSRDisabled              = Code(mcsattestv1.Reason_REASON_CSR_DISABLED)
)

// all is every code in ascending order.
var all = []Code{
	Malformed,
	TooLarge,
	TLSRequired,
	OriginUnknown,
	PoolUnknown,
	RateLimited,
	ChallengeInvalid,
	ChallengeKeyUnknown,
	ChallengeExpired,
	ChallengeUsed,
	PolicyChanged,
	BindingMissing,
	BindingMismatch,
	EvidenceMissing,
	EvidenceUnacceptable,
	EvidenceDisagrees,
	DocumentInvalid,
	DocumentNotFresh,
	DocumentUntrusted,
	AccountNotAllowed,
	InstanceNotFound,
	InstanceUnacceptable,
	EKUnacceptable,
	EKCertificateInvalid,
	EKUntrusted,
	EKNotEnrolled,
	AKUnacceptable,
	ActivationInvalid,
	QuoteInvalid,
	QuoteNotFresh,
	PCRSelection,
	PCRDigest,
	PCRCapped,
	EventLogMalformed,
	EventLogReplay,
	MeasuredBoot,
	ProvisioningTokenInvalid,
	MachineNotFound,
	MachineAmbiguous,
	MachineDeleting,
	MachineJoined,
	MachineTooOld,
	MachinePool,
	IdentityConflict,
	Quarantined,
	PendingApproval,
	TokenMissing,
	TokenInvalid,
	TokenKeyUnknown,
	TokenExpired,
	TokenPool,
	TokenSuperseded,
	TokenUsedUp,
	Plaintext,
	ReportTicketInvalid,
	ReportLimit,
	StoreUnavailable,
	UpstreamUnavailable,
	UpstreamInvalid,
	ShuttingDown,
	Internal,
	ReferenceValuesMissing,
	ProviderUnavailable,
	CredentialUnavailable,
	ConfigUnavailable,
	CSRMalformed,
	CSRRequester,
	CSRContent,
	CSRNodeExists,
	CSRCredential,
	CSROtherMachine,
	CSRKeyChanged,
	CSRAddress,
	CSRLimit,
	CSRDisabled,
}

// table is read only.
var table = map[Code]Info{
	Malformed: status(http.StatusBadRequest, mcsattestv1.DenialClass_DENIAL_CLASS_MALFORMED, "Malformed",
		"The request breaks the contract.",
		"Compare the agent's version with the verifier's; proto/README.md is the contract."),
	TooLarge: final(mcsattestv1.DenialClass_DENIAL_CLASS_MALFORMED, "TooLarge",
		"The request is larger than the contract allows.",
		"proto/README.md lists the limits. A larger event log points at broken firmware."),
	TLSRequired: final(mcsattestv1.DenialClass_DENIAL_CLASS_MALFORMED, "TLSRequired",
		"The request did not come over TLS 1.3.",
		"Attestation is served over TLS 1.3 alone; look for a proxy that speaks less."),
	OriginUnknown: final(mcsattestv1.DenialClass_DENIAL_CLASS_MALFORMED, "OriginUnknown",
		"The pointer names an origin that this verifier does not answer for.",
		"Add the pointer's https://host:port to 'origins' in the verifier's configuration."),
	PoolUnknown: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET, "PoolUnknown",
		"No policy covers the pool.",
		"Add the pool to an AttestationPolicy, or correct the pointer's path."),
	RateLimited: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE, "RateLimited",
		"Too many requests.",
		"Nothing to do for a burst of new machines; they come in one after another."),
	ChallengeInvalid: final(mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE, "ChallengeInvalid",
		"The sealed challenge is not one that a verifier of this cluster made.",
		"Someone altered or forged it, or the agent talks to two different clusters."),
	ChallengeKeyUnknown: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE, "ChallengeKeyUnknown",
		"The sealed challenge was made under a key that this replica does not have (yet).",
		"If it lasts, the replicas do not share their keys."),
	ChallengeExpired: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE, "ChallengeExpired",
		"The challenge is older than its lifetime.",
		"A slow TPM may need a longer challengeLifetime in the policy."),
	ChallengeUsed: final(mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE, "ChallengeUsed",
		"The challenge was answered before.",
		"One Attest per challenge; a repeat is a retry gone wrong, or a replay."),
	PolicyChanged: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE, "PolicyChanged",
		"The policy changed between Challenge and Attest.",
		"The agent asks again by itself."),
	BindingMissing: final(mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE, "BindingMissing",
		"The connection has no TLS exporter although the policy's binding is 'exporter'.",
		"TLS ends in front of the verifier: use TCP pass-through, or the binding 'terminated'."),
	BindingMismatch: final(mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE, "BindingMismatch",
		"The evidence belongs to another connection, or the server key is not one of ours.",
		"Someone relays the exchange, or the agent reconnected between Challenge and Attest."),
	EvidenceMissing: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "EvidenceMissing",
		"A kind of evidence that the policy requires was not sent.",
		"'mcs-attest-verifier explain' names the kind; the platform table tells which machines have it."),
	EvidenceUnacceptable: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "EvidenceUnacceptable",
		"A piece of evidence does not verify.",
		"The audit line says which check failed."),
	EvidenceDisagrees: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "EvidenceDisagrees",
		"Two pieces of evidence name two machines.",
		"Someone combines one machine's TPM with another's document."),
	DocumentInvalid: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "DocumentInvalid",
		"A cloud's document does not parse, or its signature does not verify.",
		"The audit line says which check failed; a genuine document passes unchanged."),
	DocumentNotFresh: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "DocumentNotFresh",
		"A cloud's document was made for another conversation, or has expired.",
		"An old document is being replayed, or agent and verifier compute different transcripts."),
	// Not the caller's fault, mostly: clouds change their authorities without notice.
	DocumentUntrusted: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET, "DocumentUntrusted",
		"No configured anchor vouches for the signer of a cloud's document.",
		"A new region or a changed authority: add its certificate or key to the anchors. The machines that wait then come "+
			"in."),
	AccountNotAllowed: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "AccountNotAllowed",
		"The instance is genuine and of an account, region, project or subscription that is not this cluster's.",
		"Name the account and the region in the verifier's configuration, if the machine is yours."),
	InstanceNotFound: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET, "InstanceNotFound",
		"The cloud's API does not know the instance (yet).",
		"A new instance shows up in the API within seconds; one that was deleted never does again."),
	InstanceUnacceptable: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "InstanceUnacceptable",
		"The cloud's API says that the instance is not one that may attest.",
		"The audit line says what differs: state, network, launch time, tag, or role."),
	EKUnacceptable: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "EKUnacceptable",
		"The EK's public area is not that of an endorsement key.",
		"The audit line names the attribute; only RSA and NIST P EKs by the TCG templates are taken."),
	EKCertificateInvalid: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "EKCertificateInvalid",
		"The EK's or AK's certificate is broken or is not for this key.",
		"Enrol the EK by its hash if the manufacturer's certificate is known to be faulty."),
	EKUntrusted: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "EKUntrusted",
		"The EK's or AK's certificate does not lead to a configured root, or the provider names another TPM for the "+
			"instance.",
		"Put the root into ek-roots or ak-roots, or enrol the EK. The provider's word means that somebody shows another "+
			"machine's document."),
	EKNotEnrolled: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET, "EKNotEnrolled",
		"No Machine and no enrolment names this EK.",
		"'mcs-attest-verifier status' shows the command that enrolls it."),
	AKUnacceptable: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "AKUnacceptable",
		"The AK's public area is not that of a restricted signing key of a TPM.",
		"The audit line names the attribute."),
	ActivationInvalid: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "ActivationInvalid",
		"The credential was not activated: EK and AK are not in one TPM.",
		"Someone pairs a foreign AK with this EK."),
	QuoteInvalid: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "QuoteInvalid",
		"The quote is not one, or the AK did not sign it.",
		"The audit line says which."),
	QuoteNotFresh: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "QuoteNotFresh",
		"The quote was made for another conversation.",
		"An old quote is being replayed, or agent and verifier compute different transcripts."),
	PCRSelection: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "PCRSelection",
		"The quote covers other PCRs or another bank than the policy asks for.",
		"Every PCR that the profile names must be in the quote."),
	PCRDigest: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "PCRDigest",
		"The PCR values sent are not those that were quoted.",
		"PCRs changed while the quote was made, or the values were altered."),
	PCRCapped: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "PCRCapped",
		"PCR 11 is capped: the request comes from after the initramfs.",
		"Something on a running system tries to attest; a machine attests on first boot alone."),
	EventLogMalformed: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "EventLogMalformed",
		"The event log does not parse.",
		"The audit line names the event; the profile 'identity-only' needs no log."),
	EventLogReplay: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "EventLogReplay",
		"The event log does not reproduce the quoted PCRs.",
		"The log was altered or the firmware's log is incomplete."),
	MeasuredBoot: final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "MeasuredBoot",
		"What was booted is not what the profile allows.",
		"'mcs-attest-verifier explain' names the first offending event."),
	ProvisioningTokenInvalid: bearer(final(mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE, "ProvisioningTokenInvalid",
		"The provisioning token is not the current one nor the previous one in its grace period.",
		"Put the current token into the pointer config."), http.StatusUnauthorized, "invalid_token"),
	MachineNotFound: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET, "MachineNotFound",
		"No Machine has this identity.",
		"The Machine may be on its way; else create it, or enrol the machine."),
	MachineAmbiguous: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET, "MachineAmbiguous",
		"More than one Machine has this identity.",
		"Remove the duplicate enrolment or Machine."),
	MachineDeleting: final(mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE, "MachineDeleting",
		"The Machine is being deleted.",
		"Power the host off, or wait for its new Machine."),
	MachineJoined: final(mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE, "MachineJoined",
		"The Machine is a Node already.",
		"To provision it again, grant a re-attestation or delete the Machine."),
	MachineTooOld: final(mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE, "MachineTooOld",
		"The Machine was created too long ago.",
		"Delete and recreate the Machine, or raise maxMachineAge: in the policy for an attestation, in the approver's "+
			"configuration for a certificate."),
	MachinePool: final(mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE, "MachinePool",
		"The Machine does not belong to the pool that was asked for.",
		"Correct the pointer's path or the Machine's role."),
	IdentityConflict: final(mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE, "IdentityConflict",
		"Another identity has this Machine already.",
		"If the TPM was replaced, 'mcs-attest-verifier enroll --replace' enrolls the new one; otherwise another machine "+
			"claims to be this Machine."),
	Quarantined: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET, "Quarantined",
		"An administrator quarantined the Machine.",
		"Lift spec.quarantined of its MachineAttestation."),
	PendingApproval: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET, "PendingApproval",
		"The machine waits for an administrator's approval.",
		"'mcs-attest-verifier status' lists it; 'mcs-attest-verifier enroll --approve' lets it in."),
	TokenMissing: final(mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN, "TokenMissing",
		"No token was presented.",
		"The boot image has no agent, or the agent could not attest; see its console."),
	TokenInvalid: bearer(final(mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN, "TokenInvalid",
		"The token is not one of ours.",
		"A forged or damaged token."), http.StatusUnauthorized, "invalid_token"),
	TokenKeyUnknown: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN, "TokenKeyUnknown",
		"The token was signed with a key that this replica does not have (yet).",
		"If it lasts, the replicas do not share their keys."),
	TokenExpired: bearer(final(mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN, "TokenExpired",
		"The token has expired.",
		"The node attests again on its next boot."), http.StatusUnauthorized, "invalid_token"),
	TokenPool: bearer(final(mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN, "TokenPool",
		"The token is for another pool.",
		"The pointer asks for one pool and the token was issued for another."), http.StatusForbidden, "insufficient_scope"),
	TokenSuperseded: bearer(final(mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN, "TokenSuperseded",
		"A later attestation of the same machine replaced the token.",
		"The node attested again; its newer token works."), http.StatusUnauthorized, "invalid_token"),
	TokenUsedUp: bearer(final(mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN, "TokenUsedUp",
		"The token has been used as often as it may be.",
		"The node attests again on its next boot."), http.StatusUnauthorized, "invalid_token"),
	Plaintext: final(mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN, "Plaintext",
		"The config was asked for without TLS.",
		"Use https and port 22623 in the pointer."),
	ReportTicketInvalid: final(mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN, "ReportTicketInvalid",
		"The report has no valid ticket.",
		"Only a machine that attested may report."),
	ReportLimit: final(mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN, "ReportLimit",
		"The machine has reported as often as it may.",
		"The earlier reports are in 'explain'."),
	StoreUnavailable: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE, "StoreUnavailable",
		"The records cannot be read or written.",
		"See the verifier's log: the disk or the API server is away."),
	UpstreamUnavailable: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE, "UpstreamUnavailable",
		"The Machine Config Server does not answer.",
		"See the verifier's log and the Machine Config Server."),
	UpstreamInvalid: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE, "UpstreamInvalid",
		"The Machine Config Server's answer is not an Ignition config.",
		"Serving it would provision an empty node; see the audit line."),
	ShuttingDown: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE, "ShuttingDown",
		"The verifier is shutting down.",
		"Another replica, or this one when it is back, answers."),
	Internal: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE, "Internal",
		"An error on the verifier's side.",
		"See the verifier's log under the correlation id."),
	ReferenceValuesMissing: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE, "ReferenceValuesMissing",
		"The policy names reference values that the verifier does not have.",
		"Put the document into reference-values/, or correct spec.tpm2.referenceValues in the policy."),
	ProviderUnavailable: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE, "ProviderUnavailable",
		"A cloud's API did not answer, refused the verifier, or has been asked too often.",
		"Look at the verifier's log for its error; check its permissions, its way out, and the cloud's own status."),
	CredentialUnavailable: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE, "CredentialUnavailable",
		"The machine's own bootstrap credential is not published.",
		"See the log of the controller: it does not run, the API server is away, or it may not make tokens of the "+
			"service account."),
	ConfigUnavailable: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE, "ConfigUnavailable",
		"The pool has no config that may be served: it does not render, or its pre-approved part would hold a secret.",
		"'mcs-attest-verifier render POOL -f FILES --explain' says which MachineConfig it is."),
	CSRMalformed: final(mcsattestv1.DenialClass_DENIAL_CLASS_MALFORMED, "CSRMalformed",
		"The certificate signing request does not parse, or is larger than any kubelet's.",
		"'csr explain' shows what is wrong with it; no kubelet makes such a request."),
	CSRRequester: final(mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE, "CSRRequester",
		"The request was not made by whom such a request must come from.",
		"Client certificates are asked for by the node bootstrapper, serving certificates by the node itself."),
	CSRContent: final(mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE, "CSRContent",
		"The request asks for more, or for other, than a kubelet's certificate.",
		"'csr explain' names the subject, usage or name that does not belong there."),
	CSRNodeExists: final(mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE, "CSRNodeExists",
		"There is a Node of that name already.",
		"If the machine was installed anew, delete the old Node first."),
	CSRCredential: final(mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE, "CSRCredential",
		"No attested machine received the credential that the request was made with, or it has expired.",
		"Was the config fetched around the verifier, or with a shared kubeconfig? Let the machine attest, or approve by "+
			"hand."),
	CSROtherMachine: final(mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE, "CSROtherMachine",
		"The request was made with the credential of another machine than the one it names.",
		"Somebody uses a machine's credential for something else: look at that machine, and quarantine it."),
	CSRKeyChanged: final(mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE, "CSRKeyChanged",
		"A certificate was approved for this machine before, or attested for it, with another key.",
		"If the machine was reinstalled, delete the request that was approved; if it lost its key, approve by hand. "+
			"Otherwise a third party has its credential."),
	CSRAddress: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET, "CSRAddress",
		"The request has a name or an address that the Machine does not have, or not yet.",
		"Compare the request with the Machine's status.addresses; it is tried again."),
	CSRLimit: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET, "CSRLimit",
		"Too many requests wait.",
		"Of one machine's requests the newest counts, older ones wait in vain; 'csr explain' says whose each is. Delete "+
			"those that nobody needs."),
	CSRDisabled: temporary(mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET, "CSRDisabled",
		"An administrator has switched the approval of client certificates off.",
		"Approve by hand, or switch it on again in the approver's ConfigMap (mcs-attest-approver)."),
}
