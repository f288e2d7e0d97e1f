// SPDX-License-Identifier: Apache-2.0

package attester

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/google/go-tpm/tpm2"
)

// Key is the type of an EK, with the names that the verifier uses.
type Key string

// The types of EK that this package supports.
const (
	ECCP256 Key = "ecc-p256"
	ECCP384 Key = "ecc-p384"
	RSA2048 Key = "rsa-2048"
)

// slot is where a TPM stores one EK (EK Credential Profile, 2.2.1.4 and 2.2.1.5).
type slot struct {
	key         Key
	certificate uint32 // NV index
	nonce       uint32 // NV index; 0 in the high range
	template    uint32 // NV index; 0 in the high range
	persistent  uint32 // the conventional handle
	public      func() tpm2.TPMTPublic
}

// slots are in the order of preference; see the package comment.
var slots = []slot{
	{ECCP256, 0x01C0000A, 0x01C0000B, 0x01C0000C, 0x81010002, func() tpm2.TPMTPublic { return tpm2.ECCEKTemplate }},
	{ECCP384, 0x01C00016, 0, 0, 0x81010016,
		func() tpm2.TPMTPublic { return highRangeECC(tpm2.TPMECCNistP384, tpm2.TPMAlgSHA384, 256) }},
	{ECCP256, 0x01C00014, 0, 0, 0x81010014,
		func() tpm2.TPMTPublic { return highRangeECC(tpm2.TPMECCNistP256, tpm2.TPMAlgSHA256, 128) }},
	{RSA2048, 0x01C00002, 0x01C00003, 0x01C00004, 0x81010001, func() tpm2.TPMTPublic { return tpm2.RSAEKTemplate }},
	{RSA2048, 0x01C00012, 0, 0, 0x81010012, highRangeRSA},
}

const (
	nvFirst      = 0x01C00000
	nvChainFirst = 0x01C00100
	nvChainLast  = 0x01C001FF
)

// policies are the EK authorization policies of the profile, B.6.2 to B.6.5. A is
// PolicySecret(TPM_RH_ENDORSEMENT), C is PolicyAuthorizeNV with an index that the profile reserves,
// and B is PolicyOR{A, C}.
type policies struct{ a, b, c []byte }

var ekPolicies = map[tpm2.TPMIAlgHash]policies{
	tpm2.TPMAlgSHA256: {
		a: unhex("837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa"),
		b: unhex("ca3d0a99a2b93906f7a3342414efcfb3a385d44cd1fd459089d19b5071c0b7a0"),
		c: unhex("3767e2edd43ff45a3a7e1eaefcef78643dca964632e7aad82c673a30d8633fde"),
	},
	tpm2.TPMAlgSHA384: {
		a: unhex("8bbf2266537c171cb56e403c4dc1d4b64f432611dc386e6f532050c3278c930e143e8bb1133824ccb431053871c6db53"),
		b: unhex("b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419cacb47ba09699646150f9fc000f3f80e12"),
		c: unhex("d6032ce61f2fb3c240eb3cf6a33237ef2b6a16f4293c22b455e261cffd217ad5b4947c2d73e63005eed2dc2b3593d165"),
	},
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err) // a constant of this file
	}
	return b
}

func ekSymmetric(bits uint16) tpm2.TPMTSymDefObject {
	return tpm2.TPMTSymDefObject{
		Algorithm: tpm2.TPMAlgAES,
		KeyBits:   tpm2.NewTPMUSymKeyBits(tpm2.TPMAlgAES, tpm2.TPMKeyBits(bits)),
		Mode:      tpm2.NewTPMUSymMode(tpm2.TPMAlgAES, tpm2.TPMAlgCFB),
	}
}

// highRange returns the common part of templates H-1 to H-3.
func highRange(alg tpm2.TPMAlgID, nameAlg tpm2.TPMIAlgHash) tpm2.TPMTPublic {
	return tpm2.TPMTPublic{
		Type:    alg,
		NameAlg: nameAlg,
		ObjectAttributes: tpm2.TPMAObject{
			FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true,
			UserWithAuth: true, AdminWithPolicy: true, Restricted: true, Decrypt: true,
		},
		AuthPolicy: tpm2.TPM2BDigest{Buffer: ekPolicies[nameAlg].b},
	}
}

func highRangeECC(curve tpm2.TPMECCCurve, nameAlg tpm2.TPMIAlgHash, aes uint16) tpm2.TPMTPublic {
	p := highRange(tpm2.TPMAlgECC, nameAlg)
	p.Parameters = tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{
		Symmetric: ekSymmetric(aes),
		CurveID:   curve,
	})
	p.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{})
	return p
}

func highRangeRSA() tpm2.TPMTPublic {
	p := highRange(tpm2.TPMAlgRSA, tpm2.TPMAlgSHA256)
	p.Parameters = tpm2.NewTPMUPublicParms(tpm2.TPMAlgRSA, &tpm2.TPMSRSAParms{
		Symmetric: ekSymmetric(128),
		KeyBits:   2048,
	})
	p.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{})
	return p
}

// akAttributes: noDA prevents a lockout of a machine that often loses power; userWithAuth allows a
// quote with the empty password.
var akAttributes = tpm2.TPMAObject{
	FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true,
	UserWithAuth: true, NoDA: true, Restricted: true, SignEncrypt: true,
}

// akECC returns the AK's fixed template. It gives the same primary key on every boot.
func akECC() tpm2.TPMTPublic {
	return tpm2.TPMTPublic{
		Type:             tpm2.TPMAlgECC,
		NameAlg:          tpm2.TPMAlgSHA256,
		ObjectAttributes: akAttributes,
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{
			Scheme: tpm2.TPMTECCScheme{
				Scheme:  tpm2.TPMAlgECDSA,
				Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSigSchemeECDSA{HashAlg: tpm2.TPMAlgSHA256}),
			},
			CurveID: tpm2.TPMECCNistP256,
		}),
		Unique: tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{}),
	}
}

// akRSA is the template for a TPM without P-256.
func akRSA() tpm2.TPMTPublic {
	return tpm2.TPMTPublic{
		Type:             tpm2.TPMAlgRSA,
		NameAlg:          tpm2.TPMAlgSHA256,
		ObjectAttributes: akAttributes,
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgRSA, &tpm2.TPMSRSAParms{
			Scheme: tpm2.TPMTRSAScheme{
				Scheme:  tpm2.TPMAlgRSASSA,
				Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgRSASSA, &tpm2.TPMSSigSchemeRSASSA{HashAlg: tpm2.TPMAlgSHA256}),
			},
			KeyBits: 2048,
		}),
		Unique: tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{}),
	}
}

// withNonce copies the manufacturer's EK nonce into the template's unique field: left-aligned,
// padded with zeros to the size of the key (profile, B.2).
func withNonce(p tpm2.TPMTPublic, nonce []byte) (tpm2.TPMTPublic, error) {
	size := 32
	if p.Type == tpm2.TPMAlgRSA {
		size = 256
	}
	if len(nonce) > size {
		return p, unfit{fmt.Errorf("the EK nonce in NV has %d bytes; the key has %d", len(nonce), size)}
	}
	padded := append(slices.Clone(nonce), make([]byte, size-len(nonce))...)
	if p.Type == tpm2.TPMAlgRSA {
		p.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: padded})
	} else {
		p.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
			X: tpm2.TPM2BECCParameter{Buffer: padded},
			Y: tpm2.TPM2BECCParameter{Buffer: make([]byte, size)},
		})
	}
	return p, nil
}

// needsOr reports whether the EK's policy is that of the high range.
func needsOr(p tpm2.TPMTPublic) (or bool, set policies, err error) {
	set, ok := ekPolicies[p.NameAlg]
	switch {
	case ok && bytes.Equal(p.AuthPolicy.Buffer, set.a):
		return false, set, nil
	case ok && bytes.Equal(p.AuthPolicy.Buffer, set.b):
		return true, set, nil
	}
	return false, set, fmt.Errorf("the EK's policy %x is not in the TCG profile", p.AuthPolicy.Buffer)
}
