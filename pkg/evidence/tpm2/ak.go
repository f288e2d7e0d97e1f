// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"crypto"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// AK is the public part of an attestation key with acceptable properties. [VerifyQuote] proves that
// such an object exists in a TPM.
type AK struct {
	public
	name []byte
}

const (
	akMust = fixedTPM | fixedParent | sensitiveDataOrigin | restricted | sign
	// How the AK is authorized on its own machine does not matter to the verifier.
	akMay = userWithAuth | adminWithPolicy | noDA
)

// ParseAK parses an AK's TPMT_PUBLIC, which is untrusted. It checks that
//
//   - the structure is complete, has at most [MaxPublicSize] bytes, and no trailing bytes;
//   - the key is a point on P-256 or P-384, or RSA-2048, -3072 or -4096 with exponent 65537 and
//     without the ROCA weakness;
//   - the key was created in its TPM and cannot leave it (fixedTPM, fixedParent,
//     sensitiveDataOrigin);
//   - it signs only statements of the TPM itself (restricted, sign, not decrypt);
//   - its scheme is fixed: ECDSA, RSASSA or RSAPSS with SHA-256 or SHA-384;
//   - its name algorithm is SHA-256 or SHA-384.
//
// The Name is computed from the same bytes, so the credential is bound to exactly what was checked.
// Every error is a denial with [reason.AKUnacceptable].
func ParseAK(tpmtPublic []byte) (*AK, error) {
	p, err := parsePublic(tpmtPublic)
	if err != nil {
		return nil, reason.Wrap(reason.AKUnacceptable, err, "AK public area")
	}
	if err := checkAK(p); err != nil {
		return nil, reason.Wrap(reason.AKUnacceptable, err, "AK (%s)", p.kind)
	}
	return &AK{public: *p, name: name(p.nameAlg, tpmtPublic)}, nil
}

func checkAK(p *public) error {
	for _, m := range [...]struct {
		bit  attributes
		name string
	}{
		{fixedTPM, "fixedTPM"}, {fixedParent, "fixedParent"}, {sensitiveDataOrigin, "sensitiveDataOrigin"},
		{restricted, "restricted"}, {sign, "sign"},
	} {
		if p.attributes&m.bit == 0 {
			return fmt.Errorf("attribute %s is not set (0x%08x)", m.name, uint32(p.attributes))
		}
	}
	if extra := p.attributes &^ (akMust | akMay); extra != 0 {
		return fmt.Errorf("attributes 0x%08x must not be set (0x%08x)", uint32(extra), uint32(p.attributes))
	}
	if p.symmetric != 0 {
		return fmt.Errorf("a signing key with AES of %d bits", p.symmetric)
	}
	if !akHash(p.schemeHash) { // without a fixed scheme it is zero
		return fmt.Errorf("signature hash 0x%04x; SHA-256 and SHA-384 are accepted", p.schemeHash)
	}
	if !akHash(p.nameAlg) {
		return fmt.Errorf("name algorithm 0x%04x; SHA-256 and SHA-384 are accepted", p.nameAlg)
	}
	return nil
}

func akHash(alg uint16) bool { return alg == algSHA256 || alg == algSHA384 }

// Name returns the AK's Name (Part 1, 16): its name algorithm and the hash of its public area.
func (ak *AK) Name() []byte { return ak.name }

// SPKIHash returns SHA-256 over the AK's SubjectPublicKeyInfo in DER.
func (ak *AK) SPKIHash() [sha256.Size]byte { return ak.spki }

// PublicKey returns an *rsa.PublicKey or an *ecdsa.PublicKey.
func (ak *AK) PublicKey() crypto.PublicKey { return ak.key }

// Describe returns the key's type and size, for example "ecc-p256" or "rsa-2048".
func (ak *AK) Describe() string { return ak.kind.String() }

// name returns alg and the hash of the parts (Part 1, 16). The algorithm has been checked.
func name(alg uint16, parts ...[]byte) []byte {
	hash, err := hashByAlg(alg)
	if err != nil {
		return nil // no Name is equal to it
	}
	h := hash.New()
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(binary.BigEndian.AppendUint16(nil, alg))
}

// endorsementHierarchy is TPM_RH_ENDORSEMENT (Part 2, 7.4), the qualified name of that hierarchy.
var endorsementHierarchy = []byte{0x40, 0x00, 0x00, 0x0B}

// qualifiedName returns the Qualified Name (Part 1, 16) of the AK as a primary key of the
// endorsement hierarchy.
func (ak *AK) qualifiedName() []byte { return name(ak.nameAlg, endorsementHierarchy, ak.name) }
