// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// MaxProviderKeys limits the answer of a [Directory].
const MaxProviderKeys = 8

// Directory is the API of a cloud or a hypervisor that has the TPM keys of its instances.
type Directory interface {
	// EndorsementKeys returns the provider's EKs of an instance, named as in a Machine's
	// spec.providerID. Ek is the EK that answered, so that a provider with one request per key type
	// needs only one. The error is [ErrNotMine] if the instance belongs to another provider,
	// InstanceNotFound if the provider does not have it, EKUntrusted if it has no TPM,
	// EKNotEnrolled if the provider has no EK of ek's type, MachineAmbiguous if the provider has
	// several such instances, and ProviderUnavailable if the request fails.
	EndorsementKeys(ctx context.Context, providerID string, ek *EK) (ProviderKeys, error)
}

// ProviderKeys is the answer of a provider.
type ProviderKeys struct {
	// InstanceID is as in evidence.Statement; empty if the answer has none.
	InstanceID string
	// SPKI are SubjectPublicKeyInfos (DER).
	SPKI [][]byte
}

// ProviderEndorser endorses an EK that a provider's API lists for one instance.
type ProviderEndorser struct {
	Directory  Directory
	ProviderID string // the instance to look up; empty: none
}

// Endorse asks the directory once. If the EK is not one of the instance's, it belongs to another
// machine's TPM: EKUntrusted.
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
	return nil, reason.Deny(reason.EKUntrusted, "EK %x is not one of the %d that the provider names for %.128q", want,
		len(keys.SPKI), p.ProviderID)
}
