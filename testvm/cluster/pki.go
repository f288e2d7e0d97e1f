// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority is the cluster's certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

// newAuthority creates a CA whose files, including ca.crt, are in dir.
func newAuthority(dir string) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cluster CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(7 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	a := &authority{cert: cert, key: key, dir: dir}
	if err := a.write("ca.crt", "CERTIFICATE", der); err != nil {
		return nil, err
	}
	return a, a.writeKey("ca.key", key)
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// issue writes name.crt and name.key: a serving certificate if there are addresses, otherwise a
// client certificate.
func (a *authority) issue(name string, subject pkix.Name, names []string, addresses []net.IP) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	usage := x509.ExtKeyUsageClientAuth
	if len(addresses) > 0 {
		usage = x509.ExtKeyUsageServerAuth
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject, DNSNames: names, IPAddresses: addresses,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: a.cert.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	if err := a.write(name+".crt", "CERTIFICATE", der); err != nil {
		return err
	}
	return a.writeKey(name+".key", key)
}

// signingKey writes the private key name.key and name.pub.
func (a *authority) signingKey(name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := a.write(name+".pub", "PUBLIC KEY", der); err != nil {
		return err
	}
	return a.writeKey(name+".key", key)
}

func (a *authority) writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return a.write(name, "EC PRIVATE KEY", der)
}

func (a *authority) write(name, kind string, der []byte) error {
	return os.WriteFile(a.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
