// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"crypto"
	_ "crypto/sha256" // linked in for hashes
	_ "crypto/sha512" // linked in for hashes
	"errors"
	"fmt"

	"golang.org/x/crypto/cryptobyte"
)

// Identifiers of algorithms (TCG Algorithm Registry, table 3) and of the NIST
// curves (table 4).
const (
	algRSA    = 0x0001
	algAES    = 0x0006
	algSHA256 = 0x000B
	algSHA384 = 0x000C
	algSHA512 = 0x000D
	algNull   = 0x0010
	algRSASSA = 0x0014
	algRSAPSS = 0x0016
	algECDSA  = 0x0018
	algECC    = 0x0023
	algCFB    = 0x0043

	curveP256 = 0x0003
	curveP384 = 0x0004
)

// PCR banks, by their TPM_ALG_ID.
const (
	BankSHA256 uint16 = algSHA256
	BankSHA384 uint16 = algSHA384
)

var errTrailing = errors.New("bytes after the end of the structure")
var errShort = errors.New("the structure ends too early")

// hashByAlg returns the hash of a TPM_ALG_ID. It does not support SHA-1, because this package never
// accepts it.
func hashByAlg(alg uint16) (crypto.Hash, error) {
	switch alg {
	case algSHA256:
		return crypto.SHA256, nil
	case algSHA384:
		return crypto.SHA384, nil
	case algSHA512:
		return crypto.SHA512, nil
	}
	return 0, fmt.Errorf("hash algorithm 0x%04x is not accepted", alg)
}

// readSized reads a TPM2B: a 16-bit length and that many bytes (Part 2, 10.4.2).
func readSized(s *cryptobyte.String, out *[]byte) bool {
	return s.ReadUint16LengthPrefixed((*cryptobyte.String)(out))
}

// sized returns the concatenated parts as a TPM2B.
func sized(parts ...[]byte) []byte {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	out := make([]byte, 2, 2+n)
	out[0], out[1] = byte(n>>8), byte(n)
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}
