// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"
)

// Identity is a node's statement about its TPM's keys: parsed, but not verified.
type Identity struct {
	EK             *EK
	EKCertificates [][]byte // DER, the EK's first; may be empty
	AK             *AK
	AKCertificates [][]byte // DER, the AK's first; may be empty
}

// EndorsementKind is the basis of an endorsement. Policies and records contain its text.
type EndorsementKind string

// The endorsements, in the order in which they are tried.
const (
	Provider      EndorsementKind = "provider"       // the cloud's API names the EK
	AKCertificate EndorsementKind = "ak-certificate" // the platform certifies the AK
	Enrolled      EndorsementKind = "enrolled"       // an administrator named the EK's hash
	Manufacturer  EndorsementKind = "manufacturer"   // an EK certificate: some genuine TPM
)

// Endorsement states that a TPM's key is genuine and, except for [Manufacturer], to which machine
// it belongs.
type Endorsement struct {
	Kind EndorsementKind

	// ProviderID is that of the machine, as in a Machine's spec.providerID. It is empty if the
	// endorsement names no machine.
	ProviderID string

	// InstanceID is the provider's own id of that machine, as in evidence.Statement. It is empty if
	// the endorsement has none.
	InstanceID string

	// EKSHA256 is the hash of the endorsed EK. It is zero for AKCertificate, where the EK is not
	// proven and the AK is the identity.
	EKSHA256 [sha256.Size]byte

	// AKSHA256 is the hash of the endorsed AK for AKCertificate, otherwise zero.
	AKSHA256 [sha256.Size]byte

	// Certificate is the basis of a manufacturer's endorsement, otherwise nil.
	Certificate *EKCertificate
}

// ErrNotMine is returned by an [Endorser] that has no information about an identity. The next
// endorser is then asked.
var ErrNotMine = errors.New("this endorser does not know the identity")

// Endorser vouches for a TPM's keys. It is the interface for kinds that need external information:
// a cloud's API, configured roots, an enrollment.
//
// Endorse returns an error that matches [ErrNotMine] if it has no information about id, a denial of
// package reason if id is bad or if it cannot find out, and otherwise an endorsement. It trusts
// only what it verified itself, never fetches a URL from id, and honors ctx. An endorsement is
// meaningful only together with a [Quote] for the same EK and AK.
type Endorser interface {
	Endorse(ctx context.Context, id Identity, now time.Time) (*Endorsement, error)
}

// ManufacturerEndorser endorses an EK by its certificate.
type ManufacturerEndorser struct{ Roots Roots }

// Endorse verifies the EK certificate. Without a certificate it returns [ErrNotMine].
func (m ManufacturerEndorser) Endorse(_ context.Context, id Identity, now time.Time) (*Endorsement, error) {
	if len(id.EKCertificates) == 0 {
		return nil, ErrNotMine
	}
	cert, err := VerifyEKCertificate(id.EKCertificates, id.EK, m.Roots, now)
	if err != nil {
		return nil, err
	}
	return &Endorsement{Kind: Manufacturer, EKSHA256: id.EK.SPKIHash(), Certificate: cert}, nil
}
