// SPDX-License-Identifier: Apache-2.0

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
	NodeNameUnknown          = Code(mcsattestv1.Reason_REASON_NODE_NAME_UNKNOWN)
	CertifyTicketInvalid     = Code(mcsattestv1.Reason_REASON_CERTIFY_TICKET_INVALID)
	CertificateRefused       = Code(mcsattestv1.Reason_REASON_CERTIFICATE_REFUSED)
)

// The classes, in short.
const (
	malformed   = mcsattestv1.DenialClass_DENIAL_CLASS_MALFORMED
	challenge   = mcsattestv1.DenialClass_DENIAL_CLASS_CHALLENGE
	evidence    = mcsattestv1.DenialClass_DENIAL_CLASS_EVIDENCE
	machine     = mcsattestv1.DenialClass_DENIAL_CLASS_MACHINE
	token       = mcsattestv1.DenialClass_DENIAL_CLASS_TOKEN
	notYet      = mcsattestv1.DenialClass_DENIAL_CLASS_NOT_YET
	unavailable = mcsattestv1.DenialClass_DENIAL_CLASS_UNAVAILABLE
)

// table is read-only.
var table = map[Code]Info{
	Malformed: status(http.StatusBadRequest, malformed, "Malformed", "The request breaks the contract.",
		"Compare the versions of the agent and the verifier. proto/README.md is the contract."),
	TooLarge: final(malformed, "TooLarge", "The request is larger than the contract allows.",
		"See the limits in proto/README.md. An event log above its limit is a sign of faulty firmware."),
	TLSRequired: final(malformed, "TLSRequired", "The request did not arrive over TLS 1.3.",
		"Attestation requires TLS 1.3. Check for a proxy that negotiates an older version."),
	OriginUnknown: final(malformed, "OriginUnknown",
		"The pointer config names an origin that this verifier does not serve.",
		"Add the pointer config's https://host:port to 'origins' in the verifier's configuration."),
	PoolUnknown: temporary(notYet, "PoolUnknown", "No policy covers the pool.",
		"Add the pool to an AttestationPolicy, or correct the path in the pointer config."),
	RateLimited: temporary(unavailable, "RateLimited",
		"Too many requests, or the machine attested less than five seconds ago.",
		"Wait. In a burst of new machines each one is admitted in turn."),
	ChallengeInvalid: final(challenge, "ChallengeInvalid", "No verifier of this cluster made the sealed challenge.",
		"Check whether the agent reaches verifiers of two clusters. Otherwise a third party altered or forged the "+
			"challenge."),
	ChallengeKeyUnknown: temporary(challenge, "ChallengeKeyUnknown",
		"This replica does not have the key that sealed the challenge or ticket, or does not have it yet.",
		"If the denials continue, check that all replicas share the same keys."),
	ChallengeExpired: temporary(challenge, "ChallengeExpired", "The challenge is older than its lifetime.",
		"If the TPM is slow, increase challengeLifetime in the policy, to at most 5m."),
	ChallengeUsed: final(challenge, "ChallengeUsed", "The challenge was already answered.",
		"Send one Attest request per challenge. A second one is a faulty retry or a replay."),
	PolicyChanged: temporary(challenge, "PolicyChanged", "The policy changed between Challenge and Attest.",
		"Wait. The agent requests a new challenge."),
	BindingMissing: final(challenge, "BindingMissing",
		"The policy's binding is 'exporter', but the connection has no TLS exporter.",
		"A proxy terminates TLS in front of the verifier. Use TCP pass-through, or the binding 'terminated'."),
	BindingMismatch: final(challenge, "BindingMismatch",
		"The evidence belongs to another connection, or the server key is not one of the verifier's.",
		"Check whether a third party relays the exchange, or the agent reconnected between Challenge and Attest."),
	EvidenceMissing: final(evidence, "EvidenceMissing",
		"The machine did not send a kind of evidence that the policy requires.",
		"Run 'mcs-attest-verifier explain' to see the kind. docs/platforms.md lists the kinds of each platform."),
	EvidenceUnacceptable: final(evidence, "EvidenceUnacceptable",
		"A piece of evidence does not verify, or the policy does not accept the stage of the boot.",
		"Read the audit line. It names the check that failed."),
	EvidenceDisagrees: final(evidence, "EvidenceDisagrees", "Two pieces of evidence name different machines.",
		"Check whether a third party combines one machine's TPM with another machine's document."),
	DocumentInvalid: final(evidence, "DocumentInvalid",
		"The cloud's document does not parse, or its signature does not verify.",
		"Read the audit line. It names the check that failed. A genuine, unaltered document passes."),
	DocumentNotFresh: final(evidence, "DocumentNotFresh",
		"The cloud's document was made for another exchange, or its credentials have expired.",
		"Check for the replay of an old document, and whether the agent and the verifier compute the same "+
			"transcript."),
	// Temporary, because clouds change their authorities without notice: it is rarely the caller's fault.
	DocumentUntrusted: temporary(notYet, "DocumentUntrusted",
		"No configured trust anchor covers the signer of the cloud's document or of the AK's certificate.",
		"If the cloud added a region or changed its authority, append its certificate to the output of "+
			"'mcs-attest-verifier anchors export', and install that file. Pending machines are then admitted."),
	AccountNotAllowed: final(evidence, "AccountNotAllowed",
		"The instance is genuine, but its account, region, project or subscription is not this cluster's.",
		"If the machine is yours, add its account and region to the verifier's configuration."),
	InstanceNotFound: temporary(notYet, "InstanceNotFound",
		"The cloud's API does not return the instance, or does not return it yet.",
		"Wait some seconds if the instance is new. A deleted instance does not come back."),
	InstanceUnacceptable: final(evidence, "InstanceUnacceptable",
		"The cloud's API reports that the instance may not attest.",
		"Read the audit line. It names the state, network, launch time, tag or role that differs."),
	EKUnacceptable: final(evidence, "EKUnacceptable", "The EK's public area is not that of an endorsement key.",
		"Read the audit line. It names the attribute. Only RSA and NIST P EKs of the TCG templates are accepted."),
	EKCertificateInvalid: final(evidence, "EKCertificateInvalid",
		"The certificate of the EK or AK is invalid or does not certify this key.",
		"If the manufacturer's certificate is known to be faulty, enroll the EK by its hash."),
	EKUntrusted: final(evidence, "EKUntrusted",
		"The certificate of the EK does not chain to a configured root, or the provider reports another TPM for the "+
			"instance.",
		"Add the root to ek-roots, or enroll the EK. If the provider reports another TPM, the document is another "+
			"machine's."),
	EKNotEnrolled: temporary(notYet, "EKNotEnrolled", "No Machine and no enrollment has this EK.",
		"Run 'mcs-attest-verifier status' to see the command that enrolls it."),
	AKUnacceptable: final(evidence, "AKUnacceptable",
		"The AK's public area is not that of a TPM's restricted signing key.",
		"Read the audit line. It names the attribute."),
	ActivationInvalid: final(evidence, "ActivationInvalid",
		"The credential was not activated: EK and AK are not in the same TPM.",
		"Check whether a third party combines its own AK with this EK."),
	QuoteInvalid: final(evidence, "QuoteInvalid", "The quote does not parse, or the AK did not sign it.",
		"Read the audit line. It names the check that failed."),
	QuoteNotFresh: final(evidence, "QuoteNotFresh", "The quote was made for another exchange.",
		"Check for the replay of an old quote, and whether the agent and the verifier compute the same "+
			"transcript."),
	PCRSelection: final(evidence, "PCRSelection", "The quote covers other PCRs or another bank than the policy requires.",
		"Make sure that the quote has every PCR that the profile names."),
	PCRDigest: final(evidence, "PCRDigest", "The PCR values in the request differ from the quoted ones.",
		"Boot again. If it repeats, the PCRs change during the quote, or the values are altered."),
	PCRCapped: final(evidence, "PCRCapped", "PCR 11 is capped: the request was made after the initramfs.",
		"Find the process on the running system that tries to attest. A machine attests only during first boot."),
	EventLogMalformed: final(evidence, "EventLogMalformed", "The event log does not parse.",
		"Read the audit line. It names the event. The profile 'identity-only' needs no event log."),
	EventLogReplay: final(evidence, "EventLogReplay", "The event log does not reproduce the quoted PCRs.",
		"Update the firmware if its event log is incomplete. Otherwise the log was altered."),
	MeasuredBoot: final(evidence, "MeasuredBoot", "The profile does not allow what the machine booted.",
		"Run 'mcs-attest-verifier explain' to see the first event that violates the profile."),
	ProvisioningTokenInvalid: bearer(final(evidence, "ProvisioningTokenInvalid",
		"The provisioning token is neither the current one nor the previous one within its grace period.",
		"Put the current token into the pointer config."), http.StatusUnauthorized, "invalid_token"),
	MachineNotFound: temporary(notYet, "MachineNotFound", "No Machine has this identity.",
		"Wait if the Machine is being created. Otherwise create it, or enroll the machine."),
	MachineAmbiguous: temporary(notYet, "MachineAmbiguous", "More than one Machine has this identity.",
		"Delete the duplicate enrollment or Machine."),
	MachineDeleting: final(machine, "MachineDeleting", "The Machine is being deleted.",
		"Power off the host, or wait for its new Machine."),
	MachineJoined: final(machine, "MachineJoined", "The Machine is already a Node.",
		"To provision it again, grant a re-attestation or delete the Machine. A grant does not cover its certificate."),
	MachineTooOld: final(machine, "MachineTooOld", "The Machine was created too long ago.",
		"Delete and recreate the Machine, or raise maxMachineAge. For an attestation it is in the policy, for a "+
			"certificate in the approver's configuration."),
	MachinePool: final(machine, "MachinePool", "The Machine does not belong to the requested pool.",
		"Correct the path in the pointer config, or the Machine's role."),
	IdentityConflict: final(machine, "IdentityConflict", "The Machine is already bound to another identity.",
		"If the TPM was replaced, delete the Machine in the cluster; without a cluster, or for a stand-in, run "+
			"'mcs-attest-verifier enroll --replace'. If it was cleared or restored, run 'mcs-attest-verifier reattest'. "+
			"Otherwise another host claims to be this Machine."),
	Quarantined: temporary(notYet, "Quarantined", "An administrator quarantined the Machine.",
		"Set spec.quarantined of its MachineAttestation to false."),
	PendingApproval: temporary(notYet, "PendingApproval", "The machine is waiting for an administrator's approval.",
		"'mcs-attest-verifier status' lists it; 'mcs-attest-verifier enroll --approve' approves it."),
	TokenMissing: final(token, "TokenMissing", "The request has no token.",
		"Check that the boot image contains the agent. If it does, read the agent's error on the console."),
	TokenInvalid: bearer(final(token, "TokenInvalid", "No verifier of this cluster issued the token.",
		"Check whether the token was truncated or forged."), http.StatusUnauthorized, "invalid_token"),
	TokenKeyUnknown: temporary(token, "TokenKeyUnknown",
		"This replica does not have the key that signed the token, or does not have it yet.",
		"If the denials continue, check that all replicas share the same keys."),
	TokenExpired: bearer(final(token, "TokenExpired", "The token has expired.",
		"Start the machine again: it then attests again."), http.StatusUnauthorized, "invalid_token"),
	TokenPool: bearer(final(token, "TokenPool", "The token is for another pool.",
		"Make sure that the pointer config requests the pool that the machine attested for."),
		http.StatusForbidden, "insufficient_scope"),
	TokenSuperseded: bearer(final(token, "TokenSuperseded", "A later attestation of the same machine replaced the token.",
		"Nothing to do. The node attested again, and its newer token is valid."), http.StatusUnauthorized, "invalid_token"),
	TokenUsedUp: bearer(final(token, "TokenUsedUp", "The token has reached its limit of uses.",
		"Start the machine again: it then attests again."), http.StatusUnauthorized, "invalid_token"),
	Plaintext: final(token, "Plaintext", "The config was requested without TLS.",
		"Use https and port 22623 in the pointer config."),
	ReportTicketInvalid: final(token, "ReportTicketInvalid", "The report has no valid ticket.",
		"Nothing to do. Only a machine that attested may report."),
	ReportLimit: final(token, "ReportLimit", "The machine has reached its limit of reports.",
		"Run 'mcs-attest-verifier explain' to see the earlier reports."),
	StoreUnavailable: temporary(unavailable, "StoreUnavailable", "The verifier cannot read or write its records.",
		"Read the verifier's log. The disk or the API server is unavailable."),
	UpstreamUnavailable: temporary(unavailable, "UpstreamUnavailable", "The Machine Config Server does not answer.",
		"Read the logs of the verifier and of the Machine Config Server."),
	UpstreamInvalid: temporary(unavailable, "UpstreamInvalid",
		"The Machine Config Server's response is not an Ignition config.",
		"Read the audit line. The verifier rejects the response because it would provision an empty node."),
	ShuttingDown: temporary(unavailable, "ShuttingDown", "The verifier is shutting down.",
		"Wait. Another replica answers, or this one after its restart."),
	Internal: temporary(unavailable, "Internal",
		"The verifier failed with an internal error, or one of two clocks is wrong.",
		"Read the audit line. If it is about a time, check the clock of the verifier. Otherwise search the verifier's "+
			"log for the correlation ID."),
	ReferenceValuesMissing: temporary(unavailable, "ReferenceValuesMissing",
		"The verifier does not have, or cannot read, reference values that the policy selects.",
		"Read the problems in status. Correct the document, put it into reference-values/ or its ConfigMap, or "+
			"correct spec.tpm2.referenceValues in the policy."),
	ProviderUnavailable: temporary(unavailable, "ProviderUnavailable",
		"The cloud's API did not answer, rejected the verifier, or reached the verifier's rate limit.",
		"Read the verifier's log. Check its permissions, its network path to the API, and the cloud's status "+
			"page."),
	CredentialUnavailable: temporary(unavailable, "CredentialUnavailable",
		"The machine's own bootstrap credential is not published.",
		"Read the controller's log. Check that it runs, reaches the API server, and may create tokens of the "+
			"service account."),
	ConfigUnavailable: temporary(unavailable, "ConfigUnavailable",
		"The pool has no config that may be served: it does not render, or its pre-approved part would contain a "+
			"secret.", "Run 'mcs-attest-verifier render POOL -f FILES --explain' to find the MachineConfig."),
	CSRMalformed: final(malformed, "CSRMalformed",
		"The certificate signing request does not parse, or is larger than any kubelet's.",
		"Run 'csr explain' to see the error. No kubelet makes such a request."),
	CSRRequester: final(machine, "CSRRequester", "The requester may not make a request of this kind.",
		"Check the requester. The node bootstrapper requests client certificates, the node itself serving "+
			"certificates."),
	CSRContent: final(machine, "CSRContent", "The request asks for something that a kubelet's certificate does not have.",
		"Run 'csr explain' to see the subject, usage or name at fault."),
	CSRNodeExists: final(machine, "CSRNodeExists", "A Node of that name already exists.",
		"If the machine was reinstalled, delete the old Node first."),
	CSRCredential: final(machine, "CSRCredential",
		"No attested machine received the credential that made the request, or the credential has expired.",
		"Check whether the machine fetched its config around the verifier, or uses a shared kubeconfig. Let it "+
			"attest, or approve by hand."),
	CSROtherMachine: final(machine, "CSROtherMachine",
		"The credential that made the request belongs to another machine than the one that the request names.",
		"Investigate and quarantine the machine that owns the credential: it may be stolen."),
	CSRKeyChanged: final(machine, "CSRKeyChanged", "Another key was approved or attested for this machine before.",
		"If the machine was reinstalled, delete the approved request. If it lost its key, approve by hand. "+
			"Otherwise another host has its credential."),
	CSRAddress: temporary(notYet, "CSRAddress",
		"The request has a name or an address that the Machine does not have, or does not have yet.",
		"Compare the request with the Machine's status.addresses. The approver tries again."),
	CSRLimit: temporary(notYet, "CSRLimit", "Too many requests are pending.",
		"Run 'csr explain' to see which machine owns each request, and delete those that are not needed. Only a "+
			"machine's newest request counts."),
	CSRDisabled: temporary(notYet, "CSRDisabled", "An administrator disabled the approval of client certificates.",
		"Approve by hand, or enable it again in the approver's ConfigMap (mcs-attest-approver)."),
	NodeNameUnknown: temporary(notYet, "NodeNameUnknown", "The Machine has no name for its Node yet.",
		"Wait until the Machine's status.addresses has an InternalDNS address. If it never will, set credential.mode "+
			"to CertificateOrToken."),
	CertifyTicketInvalid: final(token, "CertifyTicketInvalid",
		"The request for the node's certificate has no valid ticket, or comes over another connection.",
		"Nothing to do. Only a machine that just attested may request its certificate."),
	CertificateRefused: temporary(notYet, "CertificateRefused", "The approver refused the node's certificate.",
		"Run 'csr explain' to see the cause. Fix it, or approve the request by hand. The machine waits."),
}
