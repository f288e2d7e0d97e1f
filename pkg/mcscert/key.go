// SPDX-License-Identifier: Apache-2.0

package mcscert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"strings"
)

// KeyType is the type of a CA's key, as the configuration names it.
type KeyType string

// The types that a CA of the verifier can have. They are those of OpenShift's configurable PKI that Ignition, the
// Machine Config Server and the machine-config-operator verify in every version.
const (
	RSA2048   KeyType = "RSA-2048"
	RSA3072   KeyType = "RSA-3072"
	RSA4096   KeyType = "RSA-4096"
	ECDSAP256 KeyType = "ECDSA-P256"
	ECDSAP384 KeyType = "ECDSA-P384"
)

// KeyTypes has all of them.
var KeyTypes = []KeyType{RSA2048, RSA3072, RSA4096, ECDSAP256, ECDSAP384}

// New creates a key.
func (k KeyType) New() (crypto.Signer, error) {
	switch k {
	case RSA2048:
		return rsa.GenerateKey(rand.Reader, 2048)
	case RSA3072:
		return rsa.GenerateKey(rand.Reader, 3072)
	case RSA4096:
		return rsa.GenerateKey(rand.Reader, 4096)
	case ECDSAP256:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case ECDSAP384:
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	}
	return nil, fmt.Errorf("%q is not a type of key", k)
}

// KeyTypeOf returns the type of a public key. It can be none of [KeyTypes].
func KeyTypeOf(public crypto.PublicKey) KeyType {
	switch key := public.(type) {
	case *rsa.PublicKey:
		return KeyType(fmt.Sprintf("RSA-%d", key.N.BitLen()))
	case *ecdsa.PublicKey:
		return KeyType("ECDSA-" + strings.ReplaceAll(key.Curve.Params().Name, "-", ""))
	}
	return KeyType(fmt.Sprintf("%T", public))
}
