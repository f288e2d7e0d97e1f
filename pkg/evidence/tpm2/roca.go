package tpm2

import "encoding/binary"

// rocaPrimes are the primes up to 167 modulo which 65537 does not generate the
// whole multiplicative group; the others tell nothing. A test recomputes them.
var rocaPrimes = [...]uint32{11, 13, 17, 19, 37, 53, 61, 71, 73, 79, 97, 103, 107, 109, 127, 151, 157}

// rocaWeak reports whether an RSA modulus, of a multiple of 32 bits, has the fingerprint of keys made by
// the flawed Infineon library (CVE-2017-15361; Nemec et al., "The Return of
// Coppersmith's Attack", CCS 2017, section 3).
//
// That library made primes p = k*M + (65537^a mod M) with M a product of the
// first small primes. So modulo every small prime the modulus is a power of
// 65537 too. A sound modulus passes this for all the primes listed here once in
// 2^27 keys; most fail at the first or second prime.
func rocaWeak(modulus []byte) bool {
	for _, p := range rocaPrimes {
		var rest uint64
		for i := 0; i < len(modulus); i += 4 {
			rest = (rest<<32 | uint64(binary.BigEndian.Uint32(modulus[i:]))) % uint64(p)
		}
		power := uint32(1)
		for power != uint32(rest) {
			if power = power * (65537 % p) % p; power == 1 {
				return false // once round without meeting it
			}
		}
	}
	return true
}
