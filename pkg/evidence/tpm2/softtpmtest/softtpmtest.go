// SPDX-License-Identifier: Apache-2.0

// Package softtpmtest has the keys of a TPM in software, for tests with many machines or with any values of PCRs. They
// answer a challenge as a TPM does, in some hundred microseconds.
package softtpmtest

import (
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
	PCRs               map[int][]byte // of the bank SHA-256; a new TPM has PCR 11, which is zero

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
	k := &TPM{ak: ak, PCRs: map[int][]byte{11: make([]byte, sha256.Size)}}
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
	secret, err := k.activate(ch)
	if err != nil {
		return nil, err
	}
	pcrs := make([]int, 0, len(ch.GetPcrs()))
	for _, pcr := range ch.GetPcrs() {
		pcrs = append(pcrs, int(pcr))
	}
	quote, signature, values, err := k.Quote(h, pcrs)
	return &mcsattestv1.Tpm2Evidence{Quote: quote, Signature: signature, Activation: transcript.Activation(secret, h),
		PcrValues: values}, err
}

// Quote returns a quote of the PCRs over a transcript (TPMS_ATTEST), its signature (TPMT_SIGNATURE), and the values.
func (k *TPM) Quote(h transcript.Hash, pcrs []int) (quote, signature []byte, values [][]byte, err error) {
	digest, selected := sha256.New(), make([]uint, 0, len(pcrs))
	for _, pcr := range pcrs {
		value, ok := k.PCRs[pcr]
		if !ok {
			return nil, nil, nil, fmt.Errorf("the TPM in software has no PCR %d", pcr)
		}
		digest.Write(value)
		selected, values = append(selected, uint(pcr)), append(values, value)
	}
	endorsement := []byte{0x40, 0, 0, 0x0B} // TPM_RH_ENDORSEMENT
	signer := sha256.Sum256(append(endorsement, k.AKName...))
	quote = tpm.Marshal(tpm.TPMSAttest{
		Magic: tpm.TPMGeneratedValue, Type: tpm.TPMSTAttestQuote,
		QualifiedSigner: tpm.TPM2BName{Buffer: append([]byte{0x00, 0x0B}, signer[:]...)},
		ExtraData:       tpm.TPM2BData{Buffer: h[:]},
		ClockInfo:       tpm.TPMSClockInfo{Clock: 1000, ResetCount: 5, RestartCount: 2, Safe: true},
		FirmwareVersion: 7,
		Attested: tpm.NewTPMUAttest(tpm.TPMSTAttestQuote, &tpm.TPMSQuoteInfo{
			PCRSelect: tpm.TPMLPCRSelection{PCRSelections: []tpm.TPMSPCRSelection{
				{Hash: tpm.TPMAlgSHA256, PCRSelect: tpm.PCClientCompatible.PCRs(selected...)}}},
			PCRDigest: tpm.TPM2BDigest{Buffer: digest.Sum(nil)},
		}),
	})
	sum := sha256.Sum256(quote)
	r, s, err := ecdsa.Sign(rand.Reader, k.ak, sum[:])
	if err != nil {
		return nil, nil, nil, err
	}
	return quote, tpm.Marshal(tpm.TPMTSignature{SigAlg: tpm.TPMAlgECDSA,
			Signature: tpm.NewTPMUSignature(tpm.TPMAlgECDSA, &tpm.TPMSSignatureECC{Hash: tpm.TPMAlgSHA256,
				SignatureR: tpm.TPM2BECCParameter{Buffer: r.Bytes()}, SignatureS: tpm.TPM2BECCParameter{Buffer: s.Bytes()}})}),
		values, nil
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
