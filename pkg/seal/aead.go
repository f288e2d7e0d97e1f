// SPDX-License-Identifier: Apache-2.0

package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/fips140"
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// The algorithms. A box begins with one of them, to which its kind is added. All have a nonce of nonceSize
// bytes, which may be random for any number of boxes.
const (
	xchacha   = 1 // XChaCha20-Poly1305
	aesGCM    = 2 // AES-256-GCM, for strict FIPS 140 mode; see gcm
	nonceSize = chacha20poly1305.NonceSizeX
)

// algorithm returns the algorithm of new boxes. Replicas of a version without aesGCM cannot open it. It is only for
// strict FIPS 140 mode, in which those versions could not seal in any case.
func algorithm() byte {
	if fips140.Enforced() {
		return aesGCM
	}
	return xchacha
}

// aead returns the cipher of an algorithm with a key of the ring.
func (k Key) aead(algorithm byte) (cipher.AEAD, error) {
	if algorithm == aesGCM {
		return gcm(k.Secret.Expose()), nil
	}
	aead, err := chacha20poly1305.NewX(k.Secret.Expose())
	if err != nil { // FIPS 140 mode is strict
		return nil, reason.Wrap(reason.ChallengeKeyUnknown, err, "seal key %x", k.ID)
	}
	return aead, nil
}

// gcm is AES-256-GCM with a key of its own for each nonce: HKDF-SHA256 of the key, with the nonce as salt. Go's
// cryptographic module chooses the nonce of GCM, which it requires in strict FIPS 140 mode.
type gcm []byte

const gcmInfo = "mcs-attest seal AES-256-GCM"

func (gcm) NonceSize() int { return nonceSize }

func (gcm) Overhead() int { return 12 + 16 } // GCM's own nonce, and the tag

func (k gcm) Seal(dst, nonce, plain, data []byte) []byte {
	aead, err := k.derived(nonce)
	if err != nil {
		panic(err) // cannot happen: the key has a valid size
	}
	return aead.Seal(dst, nil, plain, data)
}

func (k gcm) Open(dst, nonce, box, data []byte) ([]byte, error) {
	aead, err := k.derived(nonce)
	if err != nil {
		return nil, err
	}
	return aead.Open(dst, nil, box, data)
}

func (k gcm) derived(nonce []byte) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, k, nonce, gcmInfo, 32)
	if err != nil {
		return nil, fmt.Errorf("derive a key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("derive a key: %w", err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}
