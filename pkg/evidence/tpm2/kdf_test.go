// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"bytes"
	"crypto"
	"math/big"
	"testing"

	tpm "github.com/google/go-tpm/tpm2"
)

func TestKeyDerivationAgreesWithGoTPM(t *testing.T) {
	key, context := bytes.Repeat([]byte{7}, 32), []byte("context")
	for _, hash := range []crypto.Hash{crypto.SHA256, crypto.SHA384, crypto.SHA512} {
		// One byte more than a digest has needs a second round.
		for _, bits := range []int{128, 256, 264, 384, 392, 512, 520, 1024} {
			if got, want := kdfa(hash, key, "STORAGE", context, bits),
				tpm.KDFa(hash, key, "STORAGE", context, nil, bits); !bytes.Equal(got, want) {
				t.Errorf("KDFa, %v, %d bits: %x, want %x", hash, bits, got, want)
			}
		}
		if got, want := kdfe(hash, key, "IDENTITY", context, key),
			tpm.KDFe(hash, key, "IDENTITY", context, key, hash.Size()*8); !bytes.Equal(got, want) {
			t.Errorf("KDFe, %v: %x, want %x", hash, got, want)
		}
	}
}

func TestROCAPrimesAreComplete(t *testing.T) {
	var want []uint32
	for p := uint32(3); p <= 167; p += 2 {
		if !big.NewInt(int64(p)).ProbablyPrime(0) {
			continue
		}
		order := uint32(1)
		for x := 65537 % p; x != 1; x = x * (65537 % p) % p {
			order++
		}
		if order != p-1 {
			want = append(want, p)
		}
	}
	if len(want) != len(rocaPrimes) {
		t.Fatalf("primes %v, want %v", rocaPrimes, want)
	}
	for i := range want {
		if rocaPrimes[i] != want[i] {
			t.Errorf("prime %d, want %d", rocaPrimes[i], want[i])
		}
	}
}

func TestROCAFingerprint(t *testing.T) {
	// Powers of 65537 have the fingerprint by construction.
	weak := new(big.Int).Exp(big.NewInt(65537), big.NewInt(127), nil)
	modulus := func(n *big.Int) []byte { return n.FillBytes(make([]byte, 256)) }
	if !rocaWeak(modulus(weak)) {
		t.Error("a power of 65537 is not recognized")
	}
	for i := int64(2); i < 1000; i += 2 {
		if rocaWeak(modulus(new(big.Int).Add(weak, big.NewInt(i)))) {
			t.Errorf("65537^127 + %d counts as weak", i)
		}
	}
}
