// SPDX-License-Identifier: Apache-2.0

// Package pki creates the certificates of the Machine Config Server and of a standalone verifier: a CA and
// a serving certificate, each with its key. A serving certificate has a P-256 key.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// Validity is the validity of the Machine Config Server's own certificates.
const Validity = mcscert.Validity

// Pair is a certificate with its key, both in PEM.
type Pair struct {
	Certificate []byte
	Key         secret.Bytes
}

// NewCA creates a CA on a P-256 key. It can sign immediately, also for machines whose clocks are behind.
func NewCA(name string, now time.Time) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generate key: %w", err)
	}
	return SelfSign(name, key, now.Add(-mcscert.Backdate), now.Add(Validity))
}

// SelfSign creates a CA on a key, of any type that crypto/x509 can sign with.
func SelfSign(name string, key crypto.Signer, notBefore, notAfter time.Time) (Pair, error) {
	template := &x509.Certificate{ // with a random serial number
		Subject: pkix.Name{CommonName: name}, NotBefore: notBefore, NotAfter: notAfter,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return Pair{}, fmt.Errorf("create CA: %w", err)
	}
	return encode(der, key)
}

// Serve creates a serving certificate for hosts, signed by ca.
func (ca Pair) Serve(hosts []string, now time.Time) (Pair, error) {
	issuer, err := tls.X509KeyPair(ca.Certificate, ca.Key.Expose())
	if err != nil {
		return Pair{}, fmt.Errorf("read CA: %w", err)
	}
	leaf, key, err := mcscert.NewServing(issuer.Leaf, issuer.PrivateKey, hosts, now)
	if err != nil {
		return Pair{}, fmt.Errorf("create serving certificate: %w", err)
	}
	return encode(leaf.Raw, key)
}

func encode(der []byte, key crypto.Signer) (Pair, error) {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode key: %w", err)
	}
	return Pair{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:         secret.New(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})),
	}, nil
}

// ParseServing parses a serving certificate and its key.
func ParseServing(contents [][]byte) (*tls.Certificate, error) {
	if len(contents) != 2 {
		return nil, errors.New("a serving certificate is two files, tls.crt and tls.key")
	}
	c, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	return &c, nil
}
