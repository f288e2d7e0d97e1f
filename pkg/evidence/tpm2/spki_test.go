// SPDX-License-Identifier: Apache-2.0

package tpm2

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"math/big"
	"testing"
)

func TestSPKIHashAgreesWithX509(t *testing.T) {
	check := func(kind keyKind, number []byte, key crypto.PublicKey) {
		t.Helper()
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if spkiHash(kind, number) != sha256.Sum256(der) {
			t.Errorf("%s: not the hash of %x", kind, der)
		}
	}
	for kind, bits := range map[keyKind]int{rsa2048: 2048, rsa3072: 3072, rsa4096: 4096} {
		modulus := bytes.Repeat([]byte{0xA5}, bits/8)
		check(kind, modulus, &rsa.PublicKey{N: new(big.Int).SetBytes(modulus), E: 65537})
	}
	for kind, curve := range map[keyKind]elliptic.Curve{eccP256: elliptic.P256(), eccP384: elliptic.P384()} {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		point, err := key.PublicKey.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		check(kind, point, &key.PublicKey)
	}
	for kind := range keyKindNames {
		if kind > 0 && spkiHeads[kind] == "" {
			t.Errorf("%s has no head", keyKind(kind))
		}
	}
}
