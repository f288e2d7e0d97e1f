// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/fips140"
	"crypto/hmac"
	cryptorand "crypto/rand"
	"crypto/rsa"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MakeCredential encrypts secret so that only the TPM with ek can decrypt it, and only while it has
// an object with Name akName loaded (Part 1, 24: credential protection). The steps:
//
//   - It encrypts a seed to the EK: with RSA-OAEP, or with ECDH with a fresh key and KDFe (Part 1,
//     B.10.3 and C.7.3), label "IDENTITY".
//   - KDFa(seed, "STORAGE", akName) encrypts the secret with AES-CFB.
//   - KDFa(seed, "INTEGRITY") authenticates ciphertext and akName with HMAC.
//
// It returns a TPM2B_ID_OBJECT and a TPM2B_ENCRYPTED_SECRET with their sizes, the parameters of
// TPM2_ActivateCredential. The secret is at most as long as the digest of the EK's name algorithm.
//
// rand provides the seed and the ephemeral key; nil means the system's generator. Go's cryptography
// may use the system's generator even if rand is set.
func MakeCredential(rand io.Reader, ek *EK, akName, secret []byte) (credentialBlob, encryptedSecret []byte, err error) {
	hash, err := hashByAlg(ek.nameAlg)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a credential: %w", err)
	}
	if len(secret) == 0 || len(secret) > hash.Size() {
		return nil, nil, fmt.Errorf("creating a credential: secret of %d bytes; 1 to %d are allowed", len(secret),
			hash.Size())
	}
	seed, encryptedSeed, err := shareSeed(rand, ek, hash)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a credential: %w", err)
	}

	block, err := aes.NewCipher(kdfa(hash, seed, "STORAGE", akName, int(ek.symmetric)))
	if err != nil {
		return nil, nil, fmt.Errorf("creating a credential: %w", err)
	}
	identity := sized(secret)
	// The TPM's storage encryption is CFB with a zero IV and a key that is used once. The HMAC
	// below provides integrity. NIST SP 800-38A approves CFB, but Go's cryptographic module does not have it.
	fips140.WithoutEnforcement(func() {
		//nolint:staticcheck // SA1019: the format (Part 1, 11.4.8) is CFB
		cipher.NewCFBEncrypter(block, make([]byte, block.BlockSize())).XORKeyStream(identity, identity)
	})

	mac := hmac.New(hash.New, kdfa(hash, seed, "INTEGRITY", nil, hash.Size()*8))
	mac.Write(identity)
	mac.Write(akName)
	return sized(sized(mac.Sum(nil)), identity), sized(encryptedSeed), nil
}

// shareSeed returns a seed, and the seed encrypted to the EK.
func shareSeed(rand io.Reader, ek *EK, hash crypto.Hash) (seed, encrypted []byte, err error) {
	const label = "IDENTITY"
	switch key := ek.key.(type) {
	case *rsa.PublicKey:
		if rand == nil {
			rand = cryptorand.Reader
		}
		seed = make([]byte, hash.Size())
		if _, err := io.ReadFull(rand, seed); err != nil {
			return nil, nil, err
		}
		// The label includes its terminating zero (Part 1, B.4).
		encrypted, err = rsa.EncryptOAEP(hash.New(), rand, key, seed, []byte(label+"\x00"))
		return seed, encrypted, err
	case *ecdsa.PublicKey:
		peer, err := key.ECDH()
		if err != nil {
			return nil, nil, err
		}
		if rand == nil {
			rand = cryptorand.Reader
		}
		ephemeral, err := peer.Curve().GenerateKey(rand)
		if err != nil {
			return nil, nil, err
		}
		z, err := ephemeral.ECDH(peer)
		if err != nil {
			return nil, nil, err
		}
		x, y := coordinates(ephemeral.PublicKey())
		ekX, _ := coordinates(peer)
		return kdfe(hash, z, label, x, ekX), append(sized(x), sized(y)...), nil
	}
	return nil, nil, errors.New("unknown type of EK")
}

// coordinates splits an uncompressed point (SEC 1, 2.3.3).
func coordinates(key *ecdh.PublicKey) (x, y []byte) {
	b := key.Bytes()[1:]
	return b[:len(b)/2], b[len(b)/2:]
}

// kdfa is the counter-mode KDF of Part 1, 11.4.10.2, with an empty contextV. bits is a multiple of
// 8.
func kdfa(hash crypto.Hash, key []byte, label string, contextU []byte, bits int) []byte {
	mac := hmac.New(hash.New, key)
	var out, number []byte
	for i := 1; len(out) < bits/8; i++ {
		mac.Reset()
		mac.Write(binary.BigEndian.AppendUint32(number[:0], uint32(i)))
		mac.Write([]byte(label))
		mac.Write([]byte{0})
		mac.Write(contextU)
		mac.Write(binary.BigEndian.AppendUint32(number[:0], uint32(bits)))
		out = mac.Sum(out)
	}
	return out[:bits/8]
}

// kdfe derives a seed of one digest's length from an ECDH secret (Part 1, 11.4.10.3).
func kdfe(hash crypto.Hash, z []byte, label string, partyU, partyV []byte) []byte {
	h := hash.New()
	h.Write([]byte{0, 0, 0, 1})
	h.Write(z)
	h.Write([]byte(label))
	h.Write([]byte{0})
	h.Write(partyU)
	h.Write(partyV)
	return h.Sum(nil)
}
