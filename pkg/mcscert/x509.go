// SPDX-License-Identifier: Apache-2.0

package mcscert

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// NewServing creates a serving certificate with a new P-256 key. A handshake with RSA-2048
// would cost the server twenty times as much.
func NewServing(ca *x509.Certificate, caKey any, hosts []string,
	now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	hosts = CanonicalHosts(hosts)
	if len(hosts) == 0 {
		return nil, nil, errors.New("no host names: set certificates.hostnames or origins")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("create key: %w", err)
	}
	template := &x509.Certificate{ // with a random serial number
		Subject: pkix.Name{CommonName: hosts[0]}, NotBefore: now.Add(-Backdate), NotAfter: now.Add(Validity),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	if template.NotAfter.After(ca.NotAfter) {
		template.NotAfter = ca.NotAfter
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, key.Public(), caKey)
	if err != nil {
		return nil, nil, fmt.Errorf("sign: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	return leaf, key, err
}

// IssuerOf returns the CA that signed a certificate, or nil.
func IssuerOf(leaf *x509.Certificate, cas []*x509.Certificate) *x509.Certificate {
	for _, ca := range cas {
		if bytes.Equal(ca.RawSubject, leaf.RawIssuer) && leaf.CheckSignatureFrom(ca) == nil {
			return ca
		}
	}
	return nil
}

// Contains reports whether a certificate is among others.
func Contains(all []*x509.Certificate, one *x509.Certificate) bool {
	return slices.ContainsFunc(all, one.Equal)
}

// Newest returns the certificate with the latest NotBefore. all must not be empty.
func Newest(all []*x509.Certificate) *x509.Certificate {
	return slices.MaxFunc(all, func(a, b *x509.Certificate) int { return a.NotBefore.Compare(b.NotBefore) })
}

// Hosts returns the names and addresses that a certificate is valid for, sorted.
func Hosts(c *x509.Certificate) []string {
	hosts := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return CanonicalHosts(hosts)
}

// CanonicalHosts returns names and addresses in canonical form, sorted, without duplicates.
func CanonicalHosts(hosts []string) []string {
	var all []string
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			h = ip.String()
		}
		all = append(all, strings.ToLower(h))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Parse parses PEM certificates. It is an error if there are none.
func Parse(raw []byte) ([]*x509.Certificate, error) {
	all, err := pointer.ParseCertificates(raw)
	if err == nil && len(all) == 0 {
		err = errors.New("the PEM data has no certificate")
	}
	return all, err
}

// Encode returns certificates in PEM.
func Encode(all ...*x509.Certificate) []byte { return pointer.Encode(all...) }
