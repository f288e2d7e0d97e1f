// Package evidence names the kinds of evidence (RFC 9334, 8.1).
//
// Each kind is a folder below this one, with a verifier side that is pure: bytes, trust anchors and a lookup go
// in, and a claim comes out. A kind for which the machine has something to compute has an attester side below it.
// The checklist for a new kind is in docs/architecture.md.
package evidence

import (
	"fmt"

	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// Kind is one kind of evidence; its values are those of the contract.
type Kind int32

// The kinds, in the order in which they enter the transcript.
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

// String is the kind's text form, as in policies, metrics and the transcript.
func (k Kind) String() string {
	if k < TPM2 || int(k) >= len(names) {
		return fmt.Sprintf("kind-%d", int32(k))
	}
	return names[k]
}

// Valid reports whether k is a kind that this version knows.
func (k Kind) Valid() bool { return k >= TPM2 && int(k) < len(names) }

// ParseKind reads the text form.
func ParseKind(s string) (Kind, error) {
	for k := TPM2; int(k) < len(names); k++ {
		if names[k] == s {
			return k, nil
		}
	}
	return 0, fmt.Errorf("evidence kind %q is not one of %v", s, names[TPM2:])
}
