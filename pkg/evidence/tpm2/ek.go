// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"crypto"
	"crypto/sha256"
	"fmt"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// EK is the public part of an endorsement key with acceptable properties. An [Endorser] identifies
// its owner; [VerifyQuote] proves that the caller has it.
type EK struct{ public }

// ekTemplates are the algorithms for each type of key in the TCG EK Credential Profile for TPM
// Family 2.0, 2.6, B.3 and B.4: the low range (L-1, L-2) and the high range (H-1 to H-3, H-6, H-7).
// They determine how a credential is encrypted. So the certified key determines them, not the
// caller.
var ekTemplates = map[keyKind]struct {
	nameAlgs  []uint16
	symmetric uint16
}{
	rsa2048: {[]uint16{algSHA256}, 128},
	eccP256: {[]uint16{algSHA256}, 128},
	eccP384: {[]uint16{algSHA384}, 256},
	rsa3072: {[]uint16{algSHA384}, 256},
	rsa4096: {[]uint16{algSHA384, algSHA512}, 256},
}

const (
	ekMust = fixedTPM | fixedParent | sensitiveDataOrigin | restricted | decrypt
	// The authorization of the EK on its own machine (password, policy) differs between the low and
	// the high range and proves nothing to a verifier.
	ekMay = userWithAuth | adminWithPolicy | noDA
)

// ParseEK parses an EK's TPMT_PUBLIC, which is untrusted. It checks that
//
//   - the structure is complete, has at most [MaxPublicSize] bytes, and no trailing bytes;
//   - the key is RSA-2048, -3072 or -4096 with exponent 65537 and without the ROCA weakness, or a
//     point on P-256 or P-384;
//   - the attributes are those of a restricted decryption key that never leaves its TPM;
//   - name and symmetric algorithm are those of the default template for that key;
//   - there is no scheme.
//
// Every error is a denial with [reason.EKUnacceptable].
func ParseEK(tpmtPublic []byte) (*EK, error) {
	p, err := parsePublic(tpmtPublic)
	if err != nil {
		return nil, reason.Wrap(reason.EKUnacceptable, err, "EK public area")
	}
	if err := checkEK(p); err != nil {
		return nil, reason.Wrap(reason.EKUnacceptable, err, "EK (%s)", p.kind)
	}
	return &EK{*p}, nil
}

func checkEK(p *public) error {
	if p.attributes&ekMust != ekMust || p.attributes&^(ekMust|ekMay) != 0 {
		return fmt.Errorf("attributes 0x%08x are not those of an endorsement key", uint32(p.attributes))
	}
	t := ekTemplates[p.kind]
	if p.symmetric != t.symmetric {
		return fmt.Errorf("AES of %d bits; the default template has %d", p.symmetric, t.symmetric)
	}
	if p.scheme != algNull {
		return fmt.Errorf("scheme 0x%04x; the default template has none", p.scheme)
	}
	for _, alg := range t.nameAlgs {
		if p.nameAlg == alg {
			return nil
		}
	}
	return fmt.Errorf("name algorithm 0x%04x is not the default template's", p.nameAlg)
}

// SPKIHash returns SHA-256 over the EK's SubjectPublicKeyInfo in DER. It is the EK's identity, and
// does not depend on whether the EK came with a certificate.
func (ek *EK) SPKIHash() [sha256.Size]byte { return ek.spki }

// PublicKey returns an *rsa.PublicKey or an *ecdsa.PublicKey.
func (ek *EK) PublicKey() crypto.PublicKey { return ek.key }

// Describe returns the key's type and size, for example "rsa-2048" or "ecc-p384".
func (ek *EK) Describe() string { return ek.kind.String() }
