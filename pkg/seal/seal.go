// SPDX-License-Identifier: Apache-2.0

// Package seal lets the verifier work without state between Challenge and Attest.
//
// The verifier stores what Attest needs in a [Challenge], encrypts it with an AEAD under a key that
// all replicas share, and sends it to the node, which returns it unmodified. Only a verifier of the
// same cluster can create or read one.
//
// A sealed challenge is
//
//	kind and algorithm (1 byte) || key id (8 bytes) || nonce (24 bytes) || ciphertext
//
// under XChaCha20-Poly1305 (1, draft-irtf-cfrg-xchacha-03). In strict FIPS 140 mode it is AES-256-GCM (2),
// with a key that is derived from the nonce. The 24-byte nonces may be random for any number of challenges.
// The kind is 0, or that of a [Rehearsal]. The header is additional data. The plaintext is a sequence of
// fields in the order of the Challenge's fields. Each field is prefixed by its length as an unsigned 32-bit
// big-endian integer.
package seal

import (
	"crypto/cipher"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/crypto/cryptobyte"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

const (
	keyIDSize = 8
	header    = 1 + keyIDSize

	// MaxSize is the largest sealed challenge in bytes: both public areas, two certificate chains
	// of eight, and small fields.
	MaxSize = 64 << 10
)

// Challenge is what the verifier needs in Attest (rule 7 of docs/security-rules.md).
type Challenge struct {
	Issued         time.Time    // to the millisecond
	Nonce          []byte       // 32 bytes
	Secret         secret.Bytes // the activation secret K, 32 bytes; stored only here
	Origin         string
	Pool           string
	PolicyHash     []byte
	Required       []evidence.Kind
	Bank           uint16 // TPM_ALG_ID
	PCRs           []int
	EKPublic       []byte // TPMT_PUBLIC
	AKPublic       []byte // TPMT_PUBLIC
	EKCertificates [][]byte
	AKCertificates [][]byte
	Binding        string
	Exporter       []byte
}

// Seal encrypts c with the ring's current key.
func (r Ring) Seal(rand io.Reader, now time.Time, c Challenge) ([]byte, error) {
	plain, err := c.marshal()
	if err != nil {
		return nil, fmt.Errorf("encode challenge: %w", err)
	}
	return r.seal(rand, now, 0, plain)
}

// seal encrypts a challenge of one kind.
func (r Ring) seal(rand io.Reader, now time.Time, kind byte, plain []byte) ([]byte, error) {
	key, err := r.current(now)
	if err != nil {
		return nil, err
	}
	alg := algorithm()
	aead, err := key.aead(alg)
	if err != nil {
		return nil, err
	}
	out := make([]byte, header+aead.NonceSize(), header+aead.NonceSize()+len(plain)+aead.Overhead())
	out[0] = kind + alg
	copy(out[1:header], key.ID[:])
	nonce := out[header:]
	if _, err := io.ReadFull(rand, nonce); err != nil {
		return nil, fmt.Errorf("seal challenge: %w", err)
	}
	out = aead.Seal(out, nonce, plain, out[:header])
	if len(out) > MaxSize {
		return nil, reason.Deny(reason.TooLarge, "sealed challenge of %d bytes", len(out))
	}
	return out, nil
}

// Open decrypts a sealed challenge from the network. It rejects a challenge
//
//   - that is larger than [MaxSize]: TooLarge
//   - that is too short: Malformed
//   - with a key that is not in the ring, an algorithm of another version, or one that strict FIPS 140
//     mode forbids: ChallengeKeyUnknown, which is temporary
//   - that does not authenticate: ChallengeInvalid
//
// The challenge of a rehearsal has an unknown algorithm here. Open does not check the challenge's age;
// see [Challenge.Fresh].
func (r Ring) Open(sealed []byte) (Challenge, error) {
	plain, err := r.open(sealed, 0)
	if err != nil {
		return Challenge{}, err
	}
	var c Challenge
	if err := c.unmarshal(plain); err != nil {
		return Challenge{}, reason.Wrap(reason.ChallengeInvalid, err, "sealed challenge")
	}
	return c, nil
}

// open decrypts a challenge of one kind.
func (r Ring) open(sealed []byte, kind byte) ([]byte, error) {
	if len(sealed) > MaxSize {
		return nil, reason.Deny(reason.TooLarge, "sealed challenge of %d bytes", len(sealed))
	}
	if len(sealed) < header+nonceSize+chacha20poly1305.Overhead {
		return nil, reason.Deny(reason.Malformed, "sealed challenge of %d bytes", len(sealed))
	}
	if sealed[0] != kind+xchacha && sealed[0] != kind+aesGCM {
		return nil, reason.Deny(reason.ChallengeKeyUnknown, "sealed challenge with algorithm %d", sealed[0])
	}
	aead, err := r.byID(sealed[0]-kind, sealed[1:header])
	if err != nil {
		return nil, err
	}
	nonce, box := sealed[header:header+nonceSize], sealed[header+nonceSize:]
	plain, err := aead.Open(nil, nonce, box, sealed[:header])
	if err != nil {
		return nil, reason.Deny(reason.ChallengeInvalid, "sealed challenge does not authenticate")
	}
	return plain, nil
}

func (r Ring) byID(algorithm byte, id []byte) (cipher.AEAD, error) {
	for _, k := range r.Keys {
		if string(k.ID[:]) == string(id) {
			return k.aead(algorithm)
		}
	}
	return nil, reason.Deny(reason.ChallengeKeyUnknown, "seal key %x", id)
}

// skew is how far the clocks of two replicas may differ (rule 12 of docs/security-rules.md).
const skew = 5 * time.Minute

// Fresh rejects a challenge that is older than lifetime, or that is from the future by more than
// the replicas' clock skew: ChallengeExpired.
func (c Challenge) Fresh(now time.Time, lifetime time.Duration) error {
	age := now.Sub(c.Issued)
	if age > lifetime || age < -skew {
		return reason.Deny(reason.ChallengeExpired, "challenge is %v old, lifetime %v", age.Round(time.Second), lifetime)
	}
	return nil
}

func (c Challenge) marshal() ([]byte, error) {
	// Without certificates the fields need less than 1 KiB.
	b := cryptobyte.NewBuilder(make([]byte, 0, 1<<10))
	field := func(v []byte) {
		b.AddUint32(uint32(len(v)))
		b.AddBytes(v)
	}
	b.AddUint64(uint64(c.Issued.UnixMilli()))
	field(c.Nonce)
	field(c.Secret.Expose())
	field([]byte(c.Origin))
	field([]byte(c.Pool))
	field(c.PolicyHash)
	kinds := make([]byte, len(c.Required))
	for i, k := range c.Required {
		kinds[i] = byte(k)
	}
	field(kinds)
	b.AddUint16(c.Bank)
	pcrs := make([]byte, len(c.PCRs))
	for i, p := range c.PCRs {
		pcrs[i] = byte(p)
	}
	field(pcrs)
	field(c.EKPublic)
	field(c.AKPublic)
	for _, chain := range [][][]byte{c.EKCertificates, c.AKCertificates} {
		b.AddUint8(uint8(len(chain)))
		for _, der := range chain {
			field(der)
		}
	}
	field([]byte(c.Binding))
	field(c.Exporter)
	return b.Bytes()
}

var errEncoding = errors.New("broken encoding")

func (c *Challenge) unmarshal(plain []byte) error {
	s := cryptobyte.String(plain)
	ok := true
	field := func() []byte {
		var n uint32
		var v []byte
		ok = ok && s.ReadUint32(&n) && uint64(n) <= uint64(len(s)) && s.ReadBytes(&v, int(n))
		return v
	}
	var issued uint64
	ok = s.ReadUint64(&issued)
	c.Issued = time.UnixMilli(int64(issued))
	c.Nonce = field()
	c.Secret = secret.New(field())
	c.Origin = string(field())
	c.Pool = string(field())
	c.PolicyHash = field()
	for _, k := range field() {
		c.Required = append(c.Required, evidence.Kind(k))
	}
	ok = ok && s.ReadUint16(&c.Bank)
	for _, p := range field() {
		c.PCRs = append(c.PCRs, int(p))
	}
	c.EKPublic = field()
	c.AKPublic = field()
	for _, chain := range []*[][]byte{&c.EKCertificates, &c.AKCertificates} {
		var n uint8
		ok = ok && s.ReadUint8(&n)
		for i := 0; ok && i < int(n); i++ {
			*chain = append(*chain, field())
		}
	}
	c.Binding = string(field())
	c.Exporter = field()
	if !ok || !s.Empty() {
		return errEncoding
	}
	return nil
}
