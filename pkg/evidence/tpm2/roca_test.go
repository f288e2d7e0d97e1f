// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"math/big"
	"testing"
)

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
