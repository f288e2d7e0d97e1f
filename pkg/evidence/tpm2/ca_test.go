// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"testing"
	"time"

	"github.com/google/go-attestation/oid"
	x509ext "github.com/google/go-attestation/x509"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
)

// today is the time at which the tests verify.
var today = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// authority is a manufacturer's CA.
type authority struct {
	key  crypto.Signer
	cert *x509.Certificate
}

// newAuthority creates a root, or an intermediate below a parent.
func newAuthority(t testing.TB, name string, parent *authority, change func(*x509.Certificate)) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return authorityWithKey(t, name, key, key.Public(), parent, change)
}

func authorityWithKey(t testing.TB, name string, key crypto.Signer, public crypto.PublicKey, parent *authority,
	change func(*x509.Certificate)) *authority {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             today.AddDate(-10, 0, 0),
		NotAfter:              today.AddDate(10, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
		SubjectKeyId:          []byte(name),
	}
	if change != nil {
		change(template)
	}
	signer := parent
	if signer == nil {
		signer = &authority{key, template}
	}
	return &authority{key, sign(t, template, signer, public)}
}

func sign(t testing.TB, template *x509.Certificate, by *authority, public crypto.PublicKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, public, by.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// ekTemplate returns an EK certificate like those of hardware TPMs: no subject, and a critical
// subjectAltName with only a directoryName.
func ekTemplate(t testing.TB, ek *tpm2.EK) *x509.Certificate {
	t.Helper()
	usage := x509.KeyUsageKeyAgreement
	if ek.Describe()[:3] == "rsa" {
		usage = x509.KeyUsageKeyEncipherment
	}
	return &x509.Certificate{
		SerialNumber:          big.NewInt(0x1234),
		NotBefore:             today.AddDate(-2, 0, 0),
		NotAfter:              today.AddDate(18, 0, 0),
		BasicConstraintsValid: true,
		KeyUsage:              usage,
		UnknownExtKeyUsage:    []asn1.ObjectIdentifier{oid.EKCertificate},
		ExtraExtensions:       []pkix.Extension{tpmName(t)},
	}
}

func tpmName(t testing.TB) pkix.Extension {
	t.Helper()
	ext, err := x509ext.MarshalSubjectAltName(&x509ext.SubjectAltName{DirectoryNames: []pkix.Name{{
		ExtraNames: []pkix.AttributeTypeAndValue{
			{Type: oid.TPMManufacturer, Value: "id:494E5443"},
			{Type: oid.TPMModel, Value: "Model"},
			{Type: oid.TPMVersion, Value: "id:00010002"},
		},
	}}}, true)
	if err != nil {
		t.Fatal(err)
	}
	return ext
}

// pki is a root, an intermediate and an EK.
type pki struct {
	root, intermediate *authority
	ek                 *tpm2.EK
}

func newPKI(t testing.TB) *pki {
	t.Helper()
	root := newAuthority(t, "root", nil, nil)
	return &pki{root, newAuthority(t, "intermediate", root, nil), mustEK(t, capture(t, "ek-p256.pub"))}
}

// issue returns the chain for the pki's EK, with one change.
func (p *pki) issue(t testing.TB, change func(*x509.Certificate)) [][]byte {
	t.Helper()
	template := ekTemplate(t, p.ek)
	if change != nil {
		change(template)
	}
	return [][]byte{sign(t, template, p.intermediate, p.ek.PublicKey()).Raw, p.intermediate.cert.Raw}
}

func anchors(certs ...*x509.Certificate) tpm2.Roots {
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return tpm2.Roots{Anchors: pool}
}

func (p *pki) verify(chain [][]byte) (*tpm2.EKCertificate, error) {
	return tpm2.VerifyEKCertificate(chain, p.ek, anchors(p.root.cert), today)
}
