package tpm2

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// MaxProviderKeys bounds what a [Directory] may answer.
const MaxProviderKeys = 8

// Directory is a cloud's or a hypervisor's API, as far as it knows the TPMs of its
// instances.
type Directory interface {
	// EndorsementKeys are the EKs that the provider holds for an instance, named as
	// in a Machine's spec.providerID. Ek is the one that answered, so that a
	// provider who is asked by key type is asked once. The error is [ErrNotMine]
	// where the instance is of another provider, InstanceNotFound where the
	// provider does not know it, EKUntrusted where it has no TPM, EKNotEnrolled
	// where the provider names no EKs of ek's kind, MachineAmbiguous where it has
	// several such instances, and ProviderUnavailable where that cannot be found out.
	EndorsementKeys(ctx context.Context, providerID string, ek *EK) (ProviderKeys, error)
}

// ProviderKeys is a provider's answer.
type ProviderKeys struct {
	// InstanceID is as in evidence.Statement; empty where the answer has none.
	InstanceID string
	// SPKI are SubjectPublicKeyInfos (DER).
	SPKI [][]byte
}

// ProviderEndorser endorses an EK that a provider's API names for one instance.
type ProviderEndorser struct {
	Directory  Directory
	ProviderID string // the instance that is asked for; empty: there is none to ask for
}

// Endorse asks the directory, once. An EK that is none of the instance's is
// EKUntrusted: it is some other machine's TPM.
func (p ProviderEndorser) Endorse(ctx context.Context, id Identity, _ time.Time) (*Endorsement, error) {
	if p.Directory == nil || p.ProviderID == "" {
		return nil, ErrNotMine
	}
	keys, err := p.Directory.EndorsementKeys(ctx, p.ProviderID, id.EK)
	if err != nil {
		return nil, err
	}
	want := id.EK.SPKIHash()
	for _, spki := range keys.SPKI[:min(len(keys.SPKI), MaxProviderKeys)] {
		if sha256.Sum256(spki) == want {
			return &Endorsement{Kind: Provider, ProviderID: p.ProviderID, InstanceID: keys.InstanceID, EKSHA256: want}, nil
		}
	}
	return nil, reason.Deny(reason.EKUntrusted, "EK %x is none of the %d that the provider names for %.128q", want,
		len(keys.SPKI), p.ProviderID)
}
