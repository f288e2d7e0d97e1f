// SPDX-License-Identifier: Apache-2.0

package cms

import (
	"bytes"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"

	"golang.org/x/crypto/cryptobyte/asn1"

	_ "crypto/sha256" // SHA-256
	_ "crypto/sha512" // SHA-384, SHA-512
)

// Limits for the signer's key.
const (
	minRSABits  = 2048
	maxRSABits  = 4096 // a larger key would let an attacker waste the verifier's time
	rsaExponent = 65537
)

// SignedBy reports whether the message names c as its signer's certificate.
func (s *SignedData) SignedBy(c *x509.Certificate) bool {
	return bytes.Equal(s.Issuer, c.RawIssuer) && s.Serial.Cmp(c.SerialNumber) == 0
}

// Verify returns the content after it has verified the signature with the key of c. The caller
// decides whether c itself is trusted. The checks:
//   - c is the certificate that the message names;
//   - its key is RSA of 2048 to 4096 bits, with exponent 65537;
//   - the signed messageDigest, if there are attributes, is that of the content;
//   - the signature has the length of the key, and is over the attributes, or over the content if
//     there are none.
func (s *SignedData) Verify(c *x509.Certificate) ([]byte, error) {
	if !s.SignedBy(c) {
		return nil, errors.New("cms: signed by another certificate")
	}
	key, ok := c.PublicKey.(*rsa.PublicKey)
	if !ok {
		return nil, fmt.Errorf("cms: the signer's key is %v, not RSA", c.PublicKeyAlgorithm)
	}
	if n := key.N.BitLen(); n < minRSABits || n > maxRSABits || key.E != rsaExponent {
		return nil, fmt.Errorf("cms: the signer's key is RSA-%d with exponent %d", n, key.E)
	}
	if len(s.signature) != key.Size() {
		return nil, errors.New("cms: the signature does not have the key's length")
	}
	h := s.hash.New()
	h.Write(s.Content)
	sum := h.Sum(nil)
	if s.attributes != nil {
		if !bytes.Equal(sum, s.messageDigest) {
			return nil, errors.New("cms: the content does not match the signed digest")
		}
		// The attributes are signed as a SET (RFC 5652, 5.4) and sent with another tag.
		h.Reset()
		h.Write([]byte{byte(asn1.SET)})
		h.Write(s.attributes[1:])
		sum = h.Sum(sum[:0])
	}
	if err := rsa.VerifyPKCS1v15(key, s.hash, sum, s.signature); err != nil {
		return nil, errors.New("cms: the signature does not verify")
	}
	return s.Content, nil
}
