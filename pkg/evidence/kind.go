// SPDX-License-Identifier: Apache-2.0

// Package evidence defines the kinds of evidence (RFC 9334, 8.1).
//
// Each kind is a folder below this one. Its verifier side is pure: it turns bytes, trust anchors
// and a lookup into a claim. If the machine must compute something for a kind, the attester side is
// in a folder below it. docs/architecture.md has the checklist for a new kind.
package evidence

import (
	"fmt"

	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// Kind is one kind of evidence. The values are those of the contract.
type Kind int32

// The kinds, in their order in the transcript.
const (
	TPM2              = Kind(mcsattestv1.EvidenceKind_EVIDENCE_KIND_TPM2)
	AWSIID            = Kind(mcsattestv1.EvidenceKind_EVIDENCE_KIND_AWS_IID)
	AWSSTS            = Kind(mcsattestv1.EvidenceKind_EVIDENCE_KIND_AWS_STS)
	GCPIdentity       = Kind(mcsattestv1.EvidenceKind_EVIDENCE_KIND_GCP_IDENTITY)
	AzureAttested     = Kind(mcsattestv1.EvidenceKind_EVIDENCE_KIND_AZURE_ATTESTED)
	ProvisioningToken = Kind(mcsattestv1.EvidenceKind_EVIDENCE_KIND_PROVISIONING_TOKEN)
)

var names = [...]string{
	TPM2:              "tpm2",
	AWSIID:            "aws-iid",
	AWSSTS:            "aws-sts",
	GCPIdentity:       "gcp-identity",
	AzureAttested:     "azure-attested",
	ProvisioningToken: "provisioning-token",
}

// String returns the text form of the kind, as in policies, metrics and the transcript.
func (k Kind) String() string {
	if k < TPM2 || int(k) >= len(names) {
		return fmt.Sprintf("kind-%d", int32(k))
	}
	return names[k]
}

// Valid reports whether this version supports k.
func (k Kind) Valid() bool { return k >= TPM2 && int(k) < len(names) }

// ParseKind parses the text form.
func ParseKind(s string) (Kind, error) {
	for k := TPM2; int(k) < len(names); k++ {
		if names[k] == s {
			return k, nil
		}
	}
	return 0, fmt.Errorf("evidence kind %q is not one of %v", s, names[TPM2:])
}
