// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"crypto/ecdsa"
	"crypto/fips140"
	cryptorand "crypto/rand"
	"crypto/rsa"
	"fmt"
	"io"

	gotpm "github.com/google/go-tpm/tpm2"
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
// may use the system's generator even if rand is set. A read must not be short.
func MakeCredential(rand io.Reader, ek *EK, akName, secret []byte) (credentialBlob, encryptedSecret []byte, err error) {
	hash, err := hashByAlg(ek.nameAlg)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a credential: %w", err)
	}
	if len(secret) == 0 || len(secret) > hash.Size() {
		return nil, nil, fmt.Errorf("creating a credential: secret of %d bytes; 1 to %d are allowed", len(secret),
			hash.Size())
	}
	key, err := gotpm.ImportEncapsulationKey(ek.tpmt())
	if err != nil {
		return nil, nil, fmt.Errorf("creating a credential: %w", err)
	}
	if rand == nil {
		rand = cryptorand.Reader
	}
	// The TPM's storage encryption is CFB with a zero IV and a key that is used once. An HMAC
	// provides integrity. NIST SP 800-38A approves CFB, but Go's cryptographic module does not have it.
	// go-tpm has one function for all steps, so none of them is enforced. The others are those above,
	// which the module has.
	fips140.WithoutEnforcement(func() {
		credentialBlob, encryptedSecret, err = gotpm.CreateCredential(rand, key, akName, secret)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("creating a credential: %w", err)
	}
	return sized(credentialBlob), sized(encryptedSecret), nil
}

// tpmt returns what CreateCredential needs of the EK.
func (ek *EK) tpmt() *gotpm.TPMTPublic {
	symmetric := gotpm.TPMTSymDefObject{
		Algorithm: gotpm.TPMAlgAES,
		KeyBits:   gotpm.NewTPMUSymKeyBits(gotpm.TPMAlgAES, gotpm.TPMKeyBits(ek.symmetric)),
		Mode:      gotpm.NewTPMUSymMode(gotpm.TPMAlgAES, gotpm.TPMAlgCFB),
	}
	p := &gotpm.TPMTPublic{NameAlg: gotpm.TPMIAlgHash(ek.nameAlg)}
	switch key := ek.key.(type) {
	case *rsa.PublicKey:
		p.Type = gotpm.TPMAlgRSA
		p.Parameters = gotpm.NewTPMUPublicParms(p.Type, &gotpm.TPMSRSAParms{Symmetric: symmetric,
			KeyBits: gotpm.TPMKeyBits(key.N.BitLen())})
		p.Unique = gotpm.NewTPMUPublicID(p.Type, &gotpm.TPM2BPublicKeyRSA{Buffer: key.N.Bytes()})
	case *ecdsa.PublicKey:
		curve := map[keyKind]gotpm.TPMECCCurve{eccP256: gotpm.TPMECCNistP256, eccP384: gotpm.TPMECCNistP384}[ek.kind]
		point, _ := key.Bytes() // 4, x and y
		x, y := point[1:1+len(point)/2], point[1+len(point)/2:]
		p.Type = gotpm.TPMAlgECC
		p.Parameters = gotpm.NewTPMUPublicParms(p.Type, &gotpm.TPMSECCParms{Symmetric: symmetric, CurveID: curve})
		p.Unique = gotpm.NewTPMUPublicID(p.Type, &gotpm.TPMSECCPoint{X: gotpm.TPM2BECCParameter{Buffer: x},
			Y: gotpm.TPM2BECCParameter{Buffer: y}})
	}
	return p
}
