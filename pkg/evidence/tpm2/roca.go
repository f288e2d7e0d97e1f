// SPDX-License-Identifier: Apache-2.0

package tpm2

import "encoding/binary"

// rocaPrimes are the primes up to 167 modulo which 65537 does not generate the whole multiplicative
// group. Other primes give no information. A test computes them again.
var rocaPrimes = [...]uint32{11, 13, 17, 19, 37, 53, 61, 71, 73, 79, 97, 103, 107, 109, 127, 151, 157}

// rocaWeak reports whether an RSA modulus, of a multiple of 32 bits, has the fingerprint of keys
// from the flawed Infineon library (CVE-2017-15361; Nemec et al., "The Return of Coppersmith's
// Attack", CCS 2017, section 3).
//
// That library created primes p = k*M + (65537^a mod M), with M a product of the first small
// primes. So the modulus is a power of 65537 modulo every small prime, too. A sound modulus has
// this property for all listed primes only once in 2^27 keys; most fail at the first or second
// prime.
func rocaWeak(modulus []byte) bool {
	for _, p := range rocaPrimes {
		var rest uint64
		for i := 0; i < len(modulus); i += 4 {
			rest = (rest<<32 | uint64(binary.BigEndian.Uint32(modulus[i:]))) % uint64(p)
		}
		power := uint32(1)
		for power != uint32(rest) {
			if power = power * (65537 % p) % p; power == 1 {
				return false // the cycle is complete without a match
			}
		}
	}
	return true
}
