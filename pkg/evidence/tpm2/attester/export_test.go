// SPDX-License-Identifier: Apache-2.0

package attester

import (
	"crypto"

	"github.com/google/go-tpm/tpm2"
)

// HighRange returns a template of the high range, for tests.
func HighRange(key string) tpm2.TPMTPublic {
	switch key {
	case "P-256":
		return highRangeECC(tpm2.TPMECCNistP256, tpm2.TPMAlgSHA256, 128)
	case "P-384":
		return highRangeECC(tpm2.TPMECCNistP384, tpm2.TPMAlgSHA384, 256)
	}
	return highRangeRSA()
}

// Policies are the EK policies, for tests.
type Policies struct{ A, B, C []byte }

// EKPolicies returns them by name algorithm.
func EKPolicies() map[tpm2.TPMIAlgHash]Policies {
	out := map[tpm2.TPMIAlgHash]Policies{}
	for alg, p := range ekPolicies {
		out[alg] = Policies{p.a, p.b, p.c}
	}
	return out
}

// CertificateKey calls certificateKey.
func CertificateKey(der []byte) (crypto.PublicKey, error) { return certificateKey(der) }

// SplitDER calls splitDER.
func SplitDER(data []byte, most int) [][]byte { return splitDER(data, most) }
