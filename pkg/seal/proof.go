// SPDX-License-Identifier: Apache-2.0

package seal

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// proofInfo separates the keys of proofs from the sealing keys (RFC 5869, section 3.2).
const proofInfo = "mcs-attest proof v1"

// ProofSize is the size of a proof in bytes.
const ProofSize = keyIDSize + sha256.Size

// Prove returns a proof that the caller has the ring. A proof is
//
//	key id (8 bytes) || HMAC-SHA-256 of message
//
// with a key that HKDF derives from the current sealing key. An untrusted caller may choose the
// message, because no other use of the ring accepts a proof.
func (r Ring) Prove(now time.Time, message []byte) ([]byte, error) {
	key, err := r.current(now)
	if err != nil {
		return nil, err
	}
	mac, err := key.prove(message)
	if err != nil {
		return nil, err
	}
	return append(key.ID[:], mac...), nil
}

// CheckProof checks a proof from the network. It rejects a proof
//
//   - with the wrong size: Malformed
//   - with a key that is not in the ring: ChallengeKeyUnknown, which is temporary
//   - for another message: ChallengeInvalid
func (r Ring) CheckProof(proof, message []byte) error {
	if len(proof) != ProofSize {
		return reason.Deny(reason.Malformed, "proof of %d bytes", len(proof))
	}
	for _, k := range r.Keys {
		if [keyIDSize]byte(proof) != k.ID {
			continue
		}
		mac, err := k.prove(message)
		if err != nil {
			return err
		}
		if !hmac.Equal(mac, proof[keyIDSize:]) {
			return reason.Deny(reason.ChallengeInvalid, "proof does not authenticate")
		}
		return nil
	}
	return reason.Deny(reason.ChallengeKeyUnknown, "seal key %x", proof[:keyIDSize])
}

func (k Key) prove(message []byte) ([]byte, error) {
	derived, err := hkdf.Key(sha256.New, k.Secret.Expose(), nil, proofInfo, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("derive the key for proofs: %w", err)
	}
	mac := hmac.New(sha256.New, derived)
	mac.Write(message)
	return mac.Sum(nil), nil
}
