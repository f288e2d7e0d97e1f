package tpm2

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"
)

// Identity is what a node says of its TPM's keys: parsed, but not yet believed.
type Identity struct {
	EK             *EK
	EKCertificates [][]byte // DER, the EK's first; may be empty
	AK             *AK
	AKCertificates [][]byte // DER, the AK's first; may be empty
}

// EndorsementKind says what an endorsement rests on. Its text is the one in
// policies and records.
type EndorsementKind string

// The endorsements, in the order in which they are tried.
const (
	Provider      EndorsementKind = "provider"       // the cloud's API names the EK
	AKCertificate EndorsementKind = "ak-certificate" // the platform certifies the AK
	Enrolled      EndorsementKind = "enrolled"       // an administrator named the EK's hash
	Manufacturer  EndorsementKind = "manufacturer"   // an EK certificate: some genuine TPM
)

// Endorsement says that a TPM's key is genuine, and, except for
// [Manufacturer], whose.
type Endorsement struct {
	Kind EndorsementKind

	// ProviderID is the machine's, as in a Machine's spec.providerID, where the
	// endorsement names a machine. Empty otherwise.
	ProviderID string

	// InstanceID is the provider's own name of that machine, as in
	// evidence.Statement. Empty where the endorsement has none.
	InstanceID string

	// EKSHA256 is the hash of the endorsed EK. It is zero under AKCertificate,
	// where the EK stays unproven and the AK is the identity.
	EKSHA256 [sha256.Size]byte

	// AKSHA256 is the hash of the endorsed AK under AKCertificate, else zero.
	AKSHA256 [sha256.Size]byte

	// Certificate is what a manufacturer's endorsement rests on, else nil.
	Certificate *EKCertificate
}

// ErrNotMine is returned by an [Endorser] that has nothing to say of an
// identity: the next one is asked.
var ErrNotMine = errors.New("not an identity that this endorser knows")

// Endorser vouches for a TPM's keys. It is the seam for the kinds that need
// something from outside: a cloud's API, configured roots, an enrolment.
//
// Endorse returns an error that is [ErrNotMine] where it knows nothing of id, a
// denial of package reason where it knows that id is bad or cannot find out,
// and otherwise an endorsement. It believes nothing in id but what it verified
// itself, never fetches a URL that id contains, and honours ctx. An endorsement
// is worth something only together with a [Quote] for the same EK and AK.
type Endorser interface {
	Endorse(ctx context.Context, id Identity, now time.Time) (*Endorsement, error)
}

// ManufacturerEndorser endorses an EK by its certificate.
type ManufacturerEndorser struct{ Roots Roots }

// Endorse verifies the EK certificate. Without one the identity is not its own.
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
