// SPDX-License-Identifier: Apache-2.0

package attester

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
)

// akSlot is where a platform stores an AK that it certified: the certificate, and the key as a
// template or at a persistent handle.
type akSlot struct {
	platform    string
	certificate uint32 // NV index
	template    uint32 // NV index, or 0
	persistent  uint32 // handle, or 0
}

// akSlots are in the order of preference: a P-256 key is made in no time.
//
// Compute Engine: cloud.google.com/confidential-computing/confidential-vm/docs/vtpm-nv-storage,
// the keys being primaries of the endorsement hierarchy. Azure: Microsoft's list
// of reserved NV indexes for Trusted Launch, and the handle that its guest
// attestation uses.
var akSlots = []akSlot{
	{"Compute Engine", 0x01C10002, 0x01C10003, 0},
	{"Compute Engine", 0x01C10000, 0x01C10001, 0},
	{"Azure", 0x01C101D0, 0, 0x81000003},
}

// akLast is the highest of these indexes.
const akLast = 0x01C101D0

func ofAKSlot(index uint32) bool {
	return slices.ContainsFunc(akSlots, func(s akSlot) bool { return index == s.certificate || index == s.template })
}

// chooseAK returns the AK that the platform certified, with its certificate, or else the attester's
// own AK. If there is a certified AK that cannot be used, note is the reason. That is not an error,
// because the policy may not require the certificate.
func chooseAK(t transport.TPM, indexes []uint32) (ak key, certificates [][]byte, note string, err error) {
	var notes []error
	for _, s := range akSlots {
		if !slices.Contains(indexes, s.certificate) {
			continue
		}
		ak, certificate, err := certifiedAK(t, s, indexes)
		if err == nil {
			return ak, [][]byte{certificate}, "", nil
		}
		err = fmt.Errorf("the AK that %s certified (NV index 0x%08x): %w", s.platform, s.certificate, err)
		if !Permanent(err) {
			return key{}, nil, "", err
		}
		notes = append(notes, err)
	}
	if ak, err = createAK(t); err != nil {
		return key{}, nil, "", err
	}
	return ak, nil, joined(notes), nil
}

func certifiedAK(t transport.TPM, s akSlot, indexes []uint32) (key, []byte, error) {
	certificate, want, err := readCertificate(t, s.certificate)
	if err != nil {
		return key{}, nil, err
	}
	var ak key
	if s.template != 0 {
		ak, err = templateAK(t, s, indexes)
	} else {
		ak, err = persistentAK(t, s)
	}
	if err != nil {
		return key{}, nil, err
	}
	err = usableAK(ak.public)
	if err == nil && !sameKey(ak.public, want) {
		err = unfit{errors.New("the TPM's key does not match the certificate")}
	}
	if err != nil {
		return key{}, nil, errors.Join(err, ak.flush(t))
	}
	return ak, certificate, nil
}

func templateAK(t transport.TPM, s akSlot, indexes []uint32) (key, error) {
	if !slices.Contains(indexes, s.template) {
		return key{}, unfit{fmt.Errorf("NV index 0x%08x has no template", s.template)}
	}
	data, err := nvRead(t, s.template)
	if err != nil {
		return key{}, err
	}
	template, err := tpm2.Unmarshal[tpm2.TPMTPublic](data)
	if err != nil {
		return key{}, unfit{fmt.Errorf("template in NV index 0x%08x: %w", s.template, err)}
	}
	// Checked before the key is created, because creating an RSA key takes long.
	if err := usableAK(*template); err != nil {
		return key{}, err
	}
	return createPrimary(t, *template)
}

func persistentAK(t transport.TPM, s akSlot) (key, error) {
	ak, ok, err := readKey(t, s.persistent)
	if err != nil {
		return key{}, err
	}
	if !ok {
		return key{}, unfit{fmt.Errorf("no key at 0x%08x", s.persistent)}
	}
	// A quote by a key of another hierarchy, or below another key, obfuscates the counters, and the
	// verifier rejects it.
	if !bytes.Equal(ak.qualified, primaryName(ak.name.Buffer)) {
		return key{}, unfit{fmt.Errorf("the key at 0x%08x is not a primary key of the endorsement hierarchy", s.persistent)}
	}
	return ak, nil
}

// primaryName returns the qualified name (Part 1, 16) of a primary key of the endorsement
// hierarchy. It returns nil for a hash that no AK has.
func primaryName(name []byte) []byte {
	if len(name) < 2 {
		return nil
	}
	of := binary.BigEndian.AppendUint32(nil, uint32(tpm2.TPMRHEndorsement))
	switch of = append(of, name...); tpm2.TPMAlgID(binary.BigEndian.Uint16(name)) {
	case tpm2.TPMAlgSHA256:
		sum := sha256.Sum256(of)
		return append(slices.Clone(name[:2]), sum[:]...)
	case tpm2.TPMAlgSHA384:
		sum := sha512.Sum384(of)
		return append(slices.Clone(name[:2]), sum[:]...)
	}
	return nil
}

// usableAK rejects keys that the verifier would reject, or that this package cannot use with an
// empty password.
func usableAK(p tpm2.TPMTPublic) error {
	a := p.ObjectAttributes
	switch {
	case !a.FixedTPM || !a.FixedParent || !a.SensitiveDataOrigin || !a.Restricted || !a.SignEncrypt,
		a.Decrypt || a.EncryptedDuplication || a.STClear || a.X509Sign:
		return unfit{errors.New("its attributes are not those of an attestation key")}
	case !a.UserWithAuth || a.AdminWithPolicy:
		return unfit{errors.New("it requires a policy")}
	}
	var (
		scheme  tpm2.TPMAlgID
		details *tpm2.TPMUAsymScheme
	)
	switch p.Type {
	case tpm2.TPMAlgRSA:
		parms, err := p.Parameters.RSADetail()
		if err != nil {
			return unfit{err}
		}
		scheme, details = parms.Scheme.Scheme, &parms.Scheme.Details
	case tpm2.TPMAlgECC:
		parms, err := p.Parameters.ECCDetail()
		if err != nil {
			return unfit{err}
		}
		scheme, details = parms.Scheme.Scheme, &parms.Scheme.Details
	default:
		return unfit{fmt.Errorf("it is neither an RSA nor an ECC key (0x%04x)", uint16(p.Type))}
	}
	hash := schemeHash(scheme, details)
	if hash != tpm2.TPMAlgSHA256 || p.NameAlg != tpm2.TPMAlgSHA256 && p.NameAlg != tpm2.TPMAlgSHA384 {
		return unfit{fmt.Errorf("it signs with scheme 0x%04x and hash 0x%04x", uint16(scheme), uint16(hash))}
	}
	return nil
}

// schemeHash returns the hash of a scheme that signs quotes; 0 means none.
func schemeHash(scheme tpm2.TPMAlgID, details *tpm2.TPMUAsymScheme) tpm2.TPMAlgID {
	switch scheme {
	case tpm2.TPMAlgRSASSA:
		if s, err := details.RSASSA(); err == nil {
			return s.HashAlg
		}
	case tpm2.TPMAlgRSAPSS:
		if s, err := details.RSAPSS(); err == nil {
			return s.HashAlg
		}
	case tpm2.TPMAlgECDSA:
		if s, err := details.ECDSA(); err == nil {
			return s.HashAlg
		}
	}
	return 0
}
