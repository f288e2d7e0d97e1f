// SPDX-License-Identifier: Apache-2.0

package attester_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	tpm "github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// issuer signs EK certificates.
type issuer struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newIssuer(t *testing.T, name string) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	i := &issuer{t: t, key: key}
	i.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0), IsCA: true, BasicConstraintsValid: true,
	}
	i.cert, err = x509.ParseCertificate(i.issue(i.cert, &key.PublicKey))
	ok(t, err)
	return i
}

func (i *issuer) issue(template *x509.Certificate, key crypto.PublicKey) []byte {
	i.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, i.cert, key, i.key)
	ok(i.t, err)
	return der
}

func (i *issuer) ek(key crypto.PublicKey) []byte {
	return i.issue(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "EK"}, NotBefore: time.Unix(0, 0),
		NotAfter: time.Unix(1<<32, 0),
	}, key)
}

// made creates the key of a template and returns its public part; the key is flushed.
func made(t *testing.T, device transport.TPM, template tpm.TPMTPublic) crypto.PublicKey {
	t.Helper()
	rsp, err := tpm.CreatePrimary{PrimaryHandle: tpm.TPMRHEndorsement, InPublic: tpm.New2B(template)}.Execute(device)
	ok(t, err)
	_, err = tpm.FlushContext{FlushHandle: rsp.ObjectHandle}.Execute(device)
	ok(t, err)
	public, err := rsp.OutPublic.Contents()
	ok(t, err)
	key, err := tpm.Pub(*public)
	ok(t, err)
	return key
}

func open(t *testing.T, device transport.TPM) attester.Identity {
	t.Helper()
	a, err := attester.Open(device, attester.Options{})
	ok(t, err)
	id := a.Identity()
	verify(t, a, sha256Bank, []int{11})
	ok(t, a.Close())
	empty(t, device)
	return id
}

func TestCertificatesInNV(t *testing.T) {
	ca := newIssuer(t, "issuer")
	wrapped := func(der []byte) []byte {
		return append(binary.BigEndian.AppendUint16([]byte{0x10, 0x01, 0x00}, uint16(len(der))), der...)
	}
	padded := func(der []byte) []byte { return append(der, bytes.Repeat([]byte{0xff}, 300)...) }
	plain := func(der []byte) []byte { return der }
	for _, c := range []struct {
		name     string
		index    uint32
		template tpm.TPMTPublic
		in       func([]byte) []byte
		want     attester.Key
	}{
		{"P-256 in the low range", 0x01C0000A, tpm.ECCEKTemplate, plain, attester.ECCP256},
		{"RSA-2048 in the low range", 0x01C00002, tpm.RSAEKTemplate, plain, attester.RSA2048},
		{"padding is removed", 0x01C0000A, tpm.ECCEKTemplate, padded, attester.ECCP256},
		{"Intel's header is removed", 0x01C00002, tpm.RSAEKTemplate, wrapped, attester.RSA2048},
		{"P-256 in the high range", 0x01C00014, attester.HighRange("P-256"), plain, attester.ECCP256},
		{"P-384 in the high range", 0x01C00016, attester.HighRange("P-384"), plain, attester.ECCP384},
		{"RSA-2048 in the high range", 0x01C00012, attester.HighRange("RSA-2048"), plain, attester.RSA2048},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, device := simulated(t)
			der := ca.ek(made(t, device, c.template))
			define(t, device, c.index, c.in(der))
			id := open(t, device)
			if id.EKType != c.want || len(id.EKCertificates) != 1 || !bytes.Equal(id.EKCertificates[0], der) {
				t.Errorf("EK %s with %d certificates", id.EKType, len(id.EKCertificates))
			}
		})
	}
}

func TestCertificateOfAnotherTPMIsIgnored(t *testing.T) {
	_, device := simulated(t)
	ca := newIssuer(t, "issuer")
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	define(t, device, 0x01C0000A, ca.ek(&stranger.PublicKey))
	define(t, device, 0x01C00002, ca.ek(made(t, device, tpm.RSAEKTemplate)))
	id := open(t, device)
	if id.EKType != attester.RSA2048 || len(id.EKCertificates) != 1 {
		t.Errorf("EK %s with %d certificates", id.EKType, len(id.EKCertificates))
	}
	if want := "is not the key of the certificate in NV index 0x01c0000a"; !strings.Contains(id.EKNote, want) {
		t.Errorf("note %q, want %q", id.EKNote, want)
	}
}

func TestGarbageInNVIsIgnored(t *testing.T) {
	for name, garbage := range map[string][]byte{
		"a byte":                        {0xff},
		"zeros":                         bytes.Repeat([]byte{0}, 900),
		"a length beyond the end":       {0x30, 0x82, 0xff, 0xff, 0x00},
		"Intel's header beyond the end": {0x10, 0x01, 0x00, 0xff, 0xff, 0x30},
		"an empty sequence":             {0x30, 0x00},
	} {
		t.Run(name, func(t *testing.T) {
			_, device := simulated(t)
			define(t, device, 0x01C0000A, garbage)
			define(t, device, 0x01C00100, garbage)
			id := open(t, device)
			if id.EKType != attester.ECCP256 || len(id.EKCertificates) != 0 {
				t.Errorf("EK %s with %d certificates", id.EKType, len(id.EKCertificates))
			}
			if !strings.Contains(id.EKNote, "NV index 0x01c0000a") {
				t.Errorf("note %q", id.EKNote)
			}
		})
	}
}

// Intel's chain is split into indexes of one size, at any position.
func TestChainInNV(t *testing.T) {
	_, device := simulated(t)
	ca, above := newIssuer(t, "issuer"), newIssuer(t, "above")
	define(t, device, 0x01C0000A, ca.ek(made(t, device, tpm.ECCEKTemplate)))
	all := append(bytes.Clone(ca.cert.Raw), above.cert.Raw...)
	define(t, device, 0x01C00101, append(bytes.Clone(all[200:]), 0, 0, 0))
	define(t, device, 0x01C00100, all[:200])
	id := open(t, device)
	if len(id.EKCertificates) != 3 || id.EKNote != "" || !bytes.Equal(id.EKCertificates[1], ca.cert.Raw) ||
		!bytes.Equal(id.EKCertificates[2], above.cert.Raw) {
		t.Errorf("%d certificates, note %q", len(id.EKCertificates), id.EKNote)
	}
}

func TestPersistentKeys(t *testing.T) {
	_, device := simulated(t)
	ca := newIssuer(t, "issuer")
	persist := func(template tpm.TPMTPublic) {
		rsp, err := tpm.CreatePrimary{PrimaryHandle: tpm.TPMRHEndorsement, InPublic: tpm.New2B(template)}.Execute(device)
		ok(t, err)
		owner := tpm.AuthHandle{Handle: tpm.TPMRHOwner, Auth: tpm.PasswordAuth(nil)}
		_, err = tpm.EvictControl{Auth: owner, ObjectHandle: &tpm.NamedHandle{Handle: rsp.ObjectHandle, Name: rsp.Name},
			PersistentHandle: 0x81010001}.Execute(device)
		ok(t, err)
		_, err = tpm.FlushContext{FlushHandle: rsp.ObjectHandle}.Execute(device)
		ok(t, err)
		t.Cleanup(func() {
			_, err := tpm.EvictControl{Auth: owner, ObjectHandle: &tpm.NamedHandle{Handle: 0x81010001, Name: rsp.Name},
				PersistentHandle: 0x81010001}.Execute(device)
			ok(t, err)
		})
	}
	define(t, device, 0x01C00002, ca.ek(made(t, device, tpm.RSAEKTemplate)))
	t.Run("a key that is not the certificate's is not used", func(t *testing.T) {
		persist(tpm.RSASRKTemplate)
		if id := open(t, device); id.EKType != attester.RSA2048 || len(id.EKCertificates) != 1 {
			t.Errorf("EK %s with %d certificates", id.EKType, len(id.EKCertificates))
		}
	})
}

// Old certificates of ST and Infineon use RSAES-OAEP as the algorithm of the key.
func TestCertificateKeyOAEP(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	ok(t, err)
	der := newIssuer(t, "issuer").ek(&key.PublicKey)
	// rsaEncryption becomes id-RSAES-OAEP, which has the same length. The signature is then
	// invalid, but only the verifier checks it.
	from, err := asn1.Marshal(asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1})
	ok(t, err)
	to, err := asn1.Marshal(asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 7})
	ok(t, err)
	if !bytes.Contains(der, from) {
		t.Fatal("the certificate has no rsaEncryption")
	}
	got, err := attester.CertificateKey(bytes.ReplaceAll(der, from, to))
	ok(t, err)
	if !key.PublicKey.Equal(got) {
		t.Error("another key")
	}
}

// PolicyB is PolicyOR of A and C, so the constants must match.
func TestPolicies(t *testing.T) {
	for alg, p := range attester.EKPolicies() {
		calculator, err := tpm.NewPolicyCalculator(alg)
		ok(t, err)
		or := tpm.PolicyOr{PHashList: tpm.TPMLDigest{Digests: []tpm.TPM2BDigest{{Buffer: p.A}, {Buffer: p.C}}}}
		ok(t, or.Update(calculator))
		if got := calculator.Hash().Digest; !bytes.Equal(got, p.B) {
			t.Errorf("%v: PolicyOR(A, C) is %x, PolicyB is %x", alg, got, p.B)
		}
		calculator.Reset()
		secret := tpm.PolicySecret{AuthHandle: tpm.TPMRHEndorsement}
		ok(t, secret.Update(calculator))
		if got := calculator.Hash().Digest; !bytes.Equal(got, p.A) {
			t.Errorf("%v: PolicySecret(endorsement) is %x, PolicyA is %x", alg, got, p.A)
		}
	}
}

func TestRSAOnlyTPM(t *testing.T) {
	_, device := simulated(t)
	// TPM_RC_CURVE for parameter 2, the response of a TPM without the curve.
	noECC := scripted{device, func(command []byte) []byte {
		if binary.BigEndian.Uint32(command[6:10]) == uint32(tpm.TPMCCCreatePrimary) &&
			!bytes.Contains(command, []byte{0, 1, 0, 0x0b, 0, 3}) {
			for _, ecc := range [][]byte{{0x00, 0x23, 0x00, 0x0b}, {0x00, 0x23, 0x00, 0x0c}} {
				if bytes.Contains(command, ecc) {
					return responseCode(0x0A6 | 0x40 | 0x200)
				}
			}
		}
		return nil
	}}
	a, err := attester.Open(noECC, attester.Options{})
	ok(t, err)
	if id := a.Identity(); id.EKType != attester.RSA2048 || binary.BigEndian.Uint16(id.AKPublic) != uint16(tpm.TPMAlgRSA) {
		t.Errorf("EK %s, AK % x", id.EKType, id.AKPublic[:2])
	}
	verify(t, a, sha256Bank, []int{11})
	ok(t, a.Close())
	empty(t, device)
}

// A device that fails at any command leaves an error and no loaded object.
func TestDeviceThatBreaks(t *testing.T) {
	_, device := simulated(t)
	broken := errors.New("bus error")
	for at := 1; ; at++ {
		n := 0
		wire := failing{device, func() error {
			if n++; n == at {
				return broken
			}
			return nil
		}}
		err := complete(t, wire)
		empty(t, device)
		if n < at {
			ok(t, err)
			return // all commands succeeded before the failure
		}
		if !errors.Is(err, broken) {
			t.Errorf("command %d fails: %v", at, err)
		}
	}
}

// complete opens, attests and closes; after an error of Close it closes again.
func complete(t *testing.T, device transport.TPM) (err error) {
	a, err := attester.Open(device, attester.Options{Banks: []uint16{sha256Bank}})
	if err != nil {
		return err
	}
	defer func() {
		if closing := a.Close(); closing != nil {
			err = errors.Join(err, closing)
			ok(t, a.Close())
		}
	}()
	ek, err := tpm2.ParseEK(a.Identity().EKPublic)
	ok(t, err)
	blob, encrypted, err := tpm2.MakeCredential(rand.Reader, ek, a.Identity().AKName, make([]byte, 32))
	ok(t, err)
	_, err = a.Attest(attester.Challenge{CredentialBlob: blob, EncryptedSecret: encrypted, Bank: sha256Bank,
		PCRs: []int{11}}, transcript.Hash{})
	return err
}

type failing struct {
	transport.TPM
	fail func() error
}

func (f failing) Send(command []byte) ([]byte, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.TPM.Send(command)
}
