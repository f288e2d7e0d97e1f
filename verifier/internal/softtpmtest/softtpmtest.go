// SPDX-License-Identifier: Apache-2.0

// Package softtpmtest has the keys of a TPM in software, for tests with many machines. They answer a challenge as a TPM
// does whose PCR 11 is zero, in some hundred microseconds.
package softtpmtest

import (
	"bytes"
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"

	tpm "github.com/google/go-tpm/tpm2"

	"github.com/mcs-attest/mcs-attest/pkg/transcript"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// TPM has an EK and an AK, both on P-256.
type TPM struct {
	EKPublic, AKPublic []byte // as TPMT_PUBLIC
	EKSPKI             [sha256.Size]byte
	AKName             []byte

	ek *ecdh.PrivateKey
	ak *ecdsa.PrivateKey
}

// New creates the keys.
func New() (*TPM, error) {
	ekKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ak, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	k := &TPM{ak: ak}
	if k.ek, err = ekKey.ECDH(); err != nil {
		return nil, err
	}
	spki, err := x509.MarshalPKIXPublicKey(&ekKey.PublicKey)
	if err != nil {
		return nil, err
	}
	k.EKSPKI = sha256.Sum256(spki)
	point := func(key *ecdsa.PublicKey) (tpm.TPMUPublicID, error) {
		b, err := key.Bytes()
		if err != nil {
			return tpm.TPMUPublicID{}, err
		}
		return tpm.NewTPMUPublicID(tpm.TPMAlgECC,
			&tpm.TPMSECCPoint{X: tpm.TPM2BECCParameter{Buffer: b[1:33]}, Y: tpm.TPM2BECCParameter{Buffer: b[33:]}}), nil
	}
	pub := tpm.ECCEKTemplate
	if pub.Unique, err = point(&ekKey.PublicKey); err != nil {
		return nil, err
	}
	k.EKPublic = tpm.Marshal(pub)
	pub = tpm.TPMTPublic{
		Type: tpm.TPMAlgECC, NameAlg: tpm.TPMAlgSHA256,
		ObjectAttributes: tpm.TPMAObject{FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true,
			NoDA: true, Restricted: true, SignEncrypt: true},
		Parameters: tpm.NewTPMUPublicParms(tpm.TPMAlgECC, &tpm.TPMSECCParms{
			Symmetric: tpm.TPMTSymDefObject{Algorithm: tpm.TPMAlgNull},
			Scheme: tpm.TPMTECCScheme{Scheme: tpm.TPMAlgECDSA,
				Details: tpm.NewTPMUAsymScheme(tpm.TPMAlgECDSA, &tpm.TPMSSigSchemeECDSA{HashAlg: tpm.TPMAlgSHA256})},
			CurveID: tpm.TPMECCNistP256, KDF: tpm.TPMTKDFScheme{Scheme: tpm.TPMAlgNull},
		}),
	}
	if pub.Unique, err = point(&ak.PublicKey); err != nil {
		return nil, err
	}
	k.AKPublic = tpm.Marshal(pub)
	name := sha256.Sum256(k.AKPublic)
	k.AKName = append([]byte{0x00, 0x0B}, name[:]...)
	return k, nil
}

// Answer returns the evidence for a challenge.
func (k *TPM) Answer(ch *mcsattestv1.TpmChallenge, h transcript.Hash) (*mcsattestv1.Tpm2Evidence, error) {
	if pcrs := ch.GetPcrs(); len(pcrs) != 1 || pcrs[0] != 11 {
		return nil, fmt.Errorf("PCRs %v: keys in software support only PCR 11", pcrs)
	}
	secret, err := k.activate(ch)
	if err != nil {
		return nil, err
	}
	zero := make([]byte, 32)
	digest := sha256.Sum256(zero)
	qualified := sha256.Sum256(append([]byte{0x40, 0, 0, 0x0B}, k.AKName...))
	var q bytes.Buffer
	put := func(v any) { _ = binary.Write(&q, binary.BigEndian, v) } // a buffer's writes never fail
	sized := func(b []byte) { put(uint16(len(b))); q.Write(b) }
	put(uint32(0xFF544347)) // TPM_GENERATED_VALUE
	put(uint16(0x8018))     // TPM_ST_ATTEST_QUOTE
	sized(append([]byte{0x00, 0x0B}, qualified[:]...))
	sized(h[:])
	put(struct {
		Clock         uint64
		Reset, Resume uint32
		Safe          uint8
		Firmware      uint64
		Banks         uint32
	}{1000, 1, 0, 1, 7, 1})
	q.Write([]byte{0x00, 0x0B, 3, 0x00, 0x08, 0x00})
	sized(digest[:])
	sum := sha256.Sum256(q.Bytes())
	r, s, err := ecdsa.Sign(rand.Reader, k.ak, sum[:])
	if err != nil {
		return nil, err
	}
	sig := []byte{0x00, 0x18, 0x00, 0x0B} // TPM_ALG_ECDSA, TPM_ALG_SHA256
	for _, n := range [][]byte{r.Bytes(), s.Bytes()} {
		sig = append(binary.BigEndian.AppendUint16(sig, uint16(len(n))), n...)
	}
	return &mcsattestv1.Tpm2Evidence{Quote: q.Bytes(), Signature: sig, Activation: transcript.Activation(secret, h),
		PcrValues: [][]byte{zero}}, nil
}

// activate is TPM2_ActivateCredential (TPM 2.0 Library, Part 1, 24).
func (k *TPM) activate(ch *mcsattestv1.TpmChallenge) ([]byte, error) {
	take := func(b []byte) (head, rest []byte, err error) {
		if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
			return nil, nil, errors.New("cut off")
		}
		n := 2 + int(binary.BigEndian.Uint16(b))
		return b[2:n], b[n:], nil
	}
	shared, _, err := take(ch.GetEncryptedSecret())
	if err != nil {
		return nil, err
	}
	x, rest, err := take(shared)
	if err != nil {
		return nil, err
	}
	y, _, err := take(rest)
	if err != nil {
		return nil, err
	}
	peer, err := ecdh.P256().NewPublicKey(append(append([]byte{4}, x...), y...))
	if err != nil {
		return nil, err
	}
	z, err := k.ek.ECDH(peer)
	if err != nil {
		return nil, err
	}
	seed := tpm.KDFe(crypto.SHA256, z, "IDENTITY", x, k.ek.PublicKey().Bytes()[1:33], 256)
	blob, _, err := take(ch.GetCredentialBlob())
	if err != nil {
		return nil, err
	}
	mac, identity, err := take(blob)
	if err != nil {
		return nil, err
	}
	want := hmac.New(sha256.New, tpm.KDFa(crypto.SHA256, seed, "INTEGRITY", nil, nil, 256))
	want.Write(identity)
	want.Write(k.AKName)
	if !hmac.Equal(mac, want.Sum(nil)) {
		return nil, errors.New("the credential is not for these keys")
	}
	block, err := aes.NewCipher(tpm.KDFa(crypto.SHA256, seed, "STORAGE", k.AKName, nil, 128))
	if err != nil {
		return nil, err
	}
	//nolint:staticcheck // SA1019: the format (Part 1, 11.4.8) is CFB
	cipher.NewCFBDecrypter(block, make([]byte, block.BlockSize())).XORKeyStream(identity, identity)
	secret, _, err := take(identity)
	return secret, err
}
