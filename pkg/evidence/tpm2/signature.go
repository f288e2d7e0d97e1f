// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"errors"
	"fmt"

	"golang.org/x/crypto/cryptobyte"
	"golang.org/x/crypto/cryptobyte/asn1"
)

// MaxSignatureSize limits a TPMT_SIGNATURE in bytes; RSA-4096 needs 518.
const MaxSignatureSize = 1024

// signature is a TPMT_SIGNATURE (Part 2, 11.3.4) of a type that an AK creates. Its slices refer to
// the input.
type signature struct {
	scheme, hash uint16
	rsa          []byte
	r, s         []byte
}

// parseSignature parses exactly one TPMT_SIGNATURE.
func parseSignature(b []byte) (*signature, error) {
	if len(b) > MaxSignatureSize {
		return nil, fmt.Errorf("%d bytes; at most %d", len(b), MaxSignatureSize)
	}
	var sig signature
	s := cryptobyte.String(b)
	if !s.ReadUint16(&sig.scheme) || !s.ReadUint16(&sig.hash) {
		return nil, errShort
	}
	switch sig.scheme {
	case algRSASSA, algRSAPSS:
		if !readSized(&s, &sig.rsa) {
			return nil, errShort
		}
	case algECDSA:
		if !readSized(&s, &sig.r) || !readSized(&s, &sig.s) {
			return nil, errShort
		}
	default:
		return nil, fmt.Errorf("signature scheme 0x%04x is not accepted", sig.scheme)
	}
	if !s.Empty() {
		return nil, errTrailing
	}
	return &sig, nil
}

// verify checks that sig is the AK's signature over message, under the AK's own scheme and hash.
func (ak *AK) verify(message []byte, sig *signature) error {
	if sig.scheme != ak.scheme || sig.hash != ak.schemeHash {
		return fmt.Errorf("scheme 0x%04x with hash 0x%04x; the AK's are 0x%04x and 0x%04x", sig.scheme, sig.hash, ak.scheme,
			ak.schemeHash)
	}
	hash, err := hashByAlg(sig.hash)
	if err != nil {
		return err
	}
	h := hash.New()
	h.Write(message)
	digest := h.Sum(nil)

	switch key := ak.key.(type) {
	case *ecdsa.PublicKey:
		der, err := derSignature(sig.r, sig.s, (key.Params().BitSize+7)/8)
		if err != nil {
			return err
		}
		if ecdsa.VerifyASN1(key, digest, der) {
			return nil
		}
	case *rsa.PublicKey:
		if verifyRSA(key, sig.scheme, hash, digest, sig.rsa) == nil {
			return nil
		}
	}
	return errors.New("the signature is not the AK's")
}

func verifyRSA(key *rsa.PublicKey, scheme uint16, hash crypto.Hash, digest, sig []byte) error {
	if scheme == algRSAPSS {
		// The length of the salt depends on the TPM's FIPS setting (Part 1, B.7).
		return rsa.VerifyPSS(key, hash, digest, sig, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthAuto})
	}
	return rsa.VerifyPKCS1v15(key, hash, digest, sig)
}

// derSignature returns the ECDSA-Sig-Value (RFC 3279, 2.2.3) of two numbers of at most size bytes.
func derSignature(r, s []byte, size int) ([]byte, error) {
	if len(r) == 0 || len(r) > size || len(s) == 0 || len(s) > size {
		return nil, errors.New("ECDSA numbers of the wrong size")
	}
	var b cryptobyte.Builder
	b.AddASN1(asn1.SEQUENCE, func(b *cryptobyte.Builder) {
		for _, n := range [][]byte{r, s} {
			b.AddASN1(asn1.INTEGER, func(b *cryptobyte.Builder) {
				for len(n) > 1 && n[0] == 0 {
					n = n[1:]
				}
				if n[0]&0x80 != 0 {
					b.AddUint8(0)
				}
				b.AddBytes(n)
			})
		}
	})
	return b.Bytes()
}
