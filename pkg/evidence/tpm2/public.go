// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"

	"golang.org/x/crypto/cryptobyte"
)

// MaxPublicSize limits a TPMT_PUBLIC in bytes. The largest accepted one, an RSA-4096 key with a
// SHA-512 policy, has 602.
const MaxPublicSize = 1024

// attributes is a TPMA_OBJECT (Part 2, 8.3).
type attributes uint32

const (
	fixedTPM             attributes = 1 << 1
	stClear              attributes = 1 << 2
	fixedParent          attributes = 1 << 4
	sensitiveDataOrigin  attributes = 1 << 5
	userWithAuth         attributes = 1 << 6
	adminWithPolicy      attributes = 1 << 7
	noDA                 attributes = 1 << 10
	encryptedDuplication attributes = 1 << 11
	restricted           attributes = 1 << 16
	decrypt              attributes = 1 << 17
	sign                 attributes = 1 << 18
)

// public is a TPMT_PUBLIC (Part 2, 12.2.4) of an asymmetric key, restricted to the forms of an EK
// or AK. Its slices refer to the input.
type public struct {
	nameAlg    uint16
	attributes attributes
	symmetric  uint16 // key bits of AES-CFB; 0 for TPM_ALG_NULL
	scheme     uint16 // algNull, algRSASSA, algRSAPSS or algECDSA
	schemeHash uint16 // 0 under algNull
	key        crypto.PublicKey
	kind       keyKind
	spki       [sha256.Size]byte // SHA-256 over the SubjectPublicKeyInfo in DER
}

// keyKind is a type of key and its size.
type keyKind uint8

const (
	rsa2048 keyKind = iota + 1
	rsa3072
	rsa4096
	eccP256
	eccP384
)

var keyKindNames = [...]string{rsa2048: "rsa-2048", rsa3072: "rsa-3072", rsa4096: "rsa-4096", eccP256: "ecc-p256",
	eccP384: "ecc-p384"}

func (k keyKind) String() string { return keyKindNames[k] }

// parsePublic parses exactly one TPMT_PUBLIC.
func parsePublic(b []byte) (*public, error) {
	if len(b) > MaxPublicSize {
		return nil, fmt.Errorf("%d bytes; at most %d", len(b), MaxPublicSize)
	}
	var (
		p      public
		s      = cryptobyte.String(b)
		typ    uint16
		attr   uint32
		policy []byte
	)
	if !s.ReadUint16(&typ) || !s.ReadUint16(&p.nameAlg) || !s.ReadUint32(&attr) || !readSized(&s, &policy) {
		return nil, errShort
	}
	p.attributes = attributes(attr)
	nameHash, err := hashByAlg(p.nameAlg)
	if err != nil {
		return nil, fmt.Errorf("name algorithm: %w", err)
	}
	if len(policy) != 0 && len(policy) != nameHash.Size() {
		return nil, fmt.Errorf("policy digest of %d bytes", len(policy))
	}
	if err := p.readSymmetric(&s); err != nil {
		return nil, err
	}
	if err := p.readScheme(&s); err != nil {
		return nil, err
	}
	switch typ {
	case algRSA:
		err = p.readRSA(&s)
	case algECC:
		err = p.readECC(&s)
	default:
		err = fmt.Errorf("object type 0x%04x is neither an RSA nor an ECC key", typ)
	}
	if err != nil {
		return nil, err
	}
	if !s.Empty() {
		return nil, errTrailing
	}
	der, err := x509.MarshalPKIXPublicKey(p.key)
	if err != nil {
		return nil, err
	}
	p.spki = sha256.Sum256(der)
	return &p, nil
}

// readSymmetric reads a TPMT_SYM_DEF_OBJECT (Part 2, 11.1.7).
func (p *public) readSymmetric(s *cryptobyte.String) error {
	var alg, mode uint16
	if !s.ReadUint16(&alg) {
		return errShort
	}
	if alg == algNull {
		return nil
	}
	if !s.ReadUint16(&p.symmetric) || !s.ReadUint16(&mode) {
		return errShort
	}
	if alg != algAES || mode != algCFB || (p.symmetric != 128 && p.symmetric != 256) {
		return fmt.Errorf("symmetric algorithm 0x%04x, %d bits, mode 0x%04x; AES-128-CFB or AES-256-CFB is accepted", alg,
			p.symmetric, mode)
	}
	return nil
}

// readScheme reads a TPMT_RSA_SCHEME or TPMT_ECC_SCHEME (Part 2, 11.2.4.2 and 11.2.5.6).
func (p *public) readScheme(s *cryptobyte.String) error {
	if !s.ReadUint16(&p.scheme) {
		return errShort
	}
	switch p.scheme {
	case algNull:
		return nil
	case algRSASSA, algRSAPSS, algECDSA:
		if !s.ReadUint16(&p.schemeHash) {
			return errShort
		}
		return nil
	}
	return fmt.Errorf("scheme 0x%04x is not accepted", p.scheme)
}

// readRSA reads the rest of TPMS_RSA_PARMS (Part 2, 12.2.3.5) and the modulus.
func (p *public) readRSA(s *cryptobyte.String) error {
	var (
		bits     uint16
		exponent uint32
		modulus  []byte
	)
	if !s.ReadUint16(&bits) || !s.ReadUint32(&exponent) || !readSized(s, &modulus) {
		return errShort
	}
	switch bits {
	case 2048:
		p.kind = rsa2048
	case 3072:
		p.kind = rsa3072
	case 4096:
		p.kind = rsa4096
	default:
		return fmt.Errorf("RSA key of %d bits; 2048, 3072 and 4096 are accepted", bits)
	}
	if p.scheme == algECDSA {
		return errors.New("ECDSA scheme on an RSA key")
	}
	if exponent != 0 && exponent != 65537 { // in a TPM, 0 means 65537
		return fmt.Errorf("RSA exponent %d; 65537 is accepted", exponent)
	}
	if len(modulus) != int(bits)/8 || modulus[0]&0x80 == 0 || modulus[len(modulus)-1]&1 == 0 {
		return fmt.Errorf("RSA modulus is not an odd number of %d bits", bits)
	}
	if rocaWeak(modulus) {
		return errors.New("RSA key has the ROCA weakness (CVE-2017-15361): its private key can be computed")
	}
	p.key = &rsa.PublicKey{N: new(big.Int).SetBytes(modulus), E: 65537}
	return nil
}

// readECC reads the rest of TPMS_ECC_PARMS (Part 2, 12.2.3.6) and the point.
func (p *public) readECC(s *cryptobyte.String) error {
	var (
		curveID, kdf uint16
		x, y         []byte
		curve        elliptic.Curve
	)
	if !s.ReadUint16(&curveID) || !s.ReadUint16(&kdf) {
		return errShort
	}
	switch curveID {
	case curveP256:
		p.kind, curve = eccP256, elliptic.P256()
	case curveP384:
		p.kind, curve = eccP384, elliptic.P384()
	default:
		return fmt.Errorf("curve 0x%04x; P-256 (0x0003) and P-384 (0x0004) are accepted", curveID)
	}
	if kdf != algNull {
		return fmt.Errorf("key derivation scheme 0x%04x is not accepted", kdf)
	}
	if p.scheme != algNull && p.scheme != algECDSA {
		return errors.New("RSA scheme on an ECC key")
	}
	if !readSized(s, &x) || !readSized(s, &y) {
		return errShort
	}
	// Some TPMs omit leading zeros; the point is the same.
	size := (curve.Params().BitSize + 7) / 8
	if len(x) > size || len(y) > size {
		return errors.New("coordinate longer than the curve's field")
	}
	point := make([]byte, 1+2*size)
	point[0] = 4 // uncompressed: SEC 1, 2.3.3
	copy(point[1+size-len(x):], x)
	copy(point[1+2*size-len(y):], y)
	key, err := ecdsa.ParseUncompressedPublicKey(curve, point)
	if err != nil {
		return errors.New("the point is not on its curve")
	}
	p.key = key
	return nil
}
