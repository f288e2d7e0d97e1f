// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"testing"

	tpm "github.com/google/go-tpm/tpm2"
	"golang.org/x/crypto/cryptobyte"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// denied fails the test unless err is a denial with this code.
func denied(t testing.TB, err error, want reason.Code) {
	t.Helper()
	var d *reason.Denial
	switch {
	case err == nil:
		t.Errorf("accepted, want %v", want)
	case !errors.As(err, &d):
		t.Errorf("error %q is not a denial, want %v", err, want)
	case d.Code != want:
		t.Errorf("denied with %v, want %v: %v", d.Code, want, err)
	}
}

// forger signs with a key in software, so it can make any statement. Tests that use it treat the
// activation secret as known: they prove that the checks after the activation work independently.
type forger struct {
	key      *ecdsa.PrivateKey
	akPublic []byte
}

func newForger(t testing.TB) *forger {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &forger{key, tpm.Marshal(softwareAK(&key.PublicKey))}
}

// softwareAK returns a public area with a key in software and the properties of a TPM's AK.
func softwareAK(key *ecdsa.PublicKey) tpm.TPMTPublic {
	point, err := key.Bytes()
	if err != nil {
		panic(err)
	}
	pub := eccAK(tpm.TPMECCNistP256, tpm.TPMAlgSHA256)
	pub.Unique = tpm.NewTPMUPublicID(tpm.TPMAlgECC, &tpm.TPMSECCPoint{
		X: tpm.TPM2BECCParameter{Buffer: point[1:33]},
		Y: tpm.TPM2BECCParameter{Buffer: point[33:]},
	})
	return pub
}

// statement is the content of a TPMS_ATTEST, field by field.
type statement struct {
	magic           uint32
	typ             uint16
	qualifiedSigner []byte
	extraData       []byte
	safe            uint8
	banks           uint32
	selections      []byte // the bytes after banks
	pcrDigest       []byte
	tail            []byte
}

func (s statement) bytes() []byte {
	var b cryptobyte.Builder
	lengthPrefixed := func(v []byte) {
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes(v) })
	}
	b.AddUint32(s.magic)
	b.AddUint16(s.typ)
	lengthPrefixed(s.qualifiedSigner)
	lengthPrefixed(s.extraData)
	b.AddUint64(1000) // clock
	b.AddUint32(1)    // resetCount
	b.AddUint32(0)    // restartCount
	b.AddUint8(s.safe)
	b.AddUint64(7) // firmwareVersion
	b.AddUint32(s.banks)
	b.AddBytes(s.selections)
	lengthPrefixed(s.pcrDigest)
	b.AddBytes(s.tail)
	return b.BytesOrPanic()
}

// sign returns a TPMT_SIGNATURE under the AK's scheme.
func (f *forger) sign(t testing.TB, message []byte) []byte {
	t.Helper()
	return f.signWith(t, message, crypto.SHA256, tpm.TPMAlgSHA256)
}

func (f *forger) signWith(t testing.TB, message []byte, hash crypto.Hash, alg tpm.TPMAlgID) []byte {
	t.Helper()
	h := hash.New()
	h.Write(message)
	r, s, err := ecdsa.Sign(rand.Reader, f.key, h.Sum(nil))
	if err != nil {
		t.Fatal(err)
	}
	var b cryptobyte.Builder
	b.AddUint16(uint16(tpm.TPMAlgECDSA))
	b.AddUint16(uint16(alg))
	for _, n := range [][]byte{r.Bytes(), s.Bytes()} {
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes(n) })
	}
	return b.BytesOrPanic()
}

// forgery returns a conversation over PCR 11 whose statement passes all checks. Any EK can be used,
// because it has no effect after the activation.
func (f *forger) forgery(t testing.TB, change func(*statement)) *conversation {
	t.Helper()
	ak, err := tpm2.ParseAK(f.akPublic)
	if err != nil {
		t.Fatal(err)
	}
	ek, err := tpm2.ParseEK(tpm.Marshal(softwareEK(t)))
	if err != nil {
		t.Fatal(err)
	}
	k := make([]byte, 32)
	hash := transcript.Fields{Nonce: []byte("forgery"), AKName: ak.Name()}.Hash()
	zero := make([]byte, 32)
	digest := sha256.Sum256(zero)
	qualified := sha256.Sum256(append([]byte{0x40, 0, 0, 0x0B}, ak.Name()...))
	s := statement{
		magic: 0xFF544347, typ: 0x8018,
		qualifiedSigner: append([]byte{0x00, 0x0B}, qualified[:]...),
		extraData:       hash[:],
		safe:            1,
		banks:           1,
		selections:      []byte{0x00, 0x0B, 3, 0x00, 0x08, 0x00},
		pcrDigest:       digest[:],
	}
	if change != nil {
		change(&s)
	}
	message := s.bytes()
	return &conversation{
		challenge: tpm2.Challenge{EK: ek, AK: ak, Secret: secret.New(k), Bank: tpm2.BankSHA256, PCRs: []int{11},
			Transcript: hash},
		evidence: tpm2.Evidence{
			Quote: message, Signature: f.sign(t, message),
			Activation: transcript.Activation(k, hash), PCRValues: [][]byte{zero},
		},
	}
}

// softwareEK returns an EK public area for a P-256 key in software.
func softwareEK(t testing.TB) tpm.TPMTPublic {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pub := tpm.ECCEKTemplate
	pub.Unique = softwareAK(&key.PublicKey).Unique
	return pub
}
