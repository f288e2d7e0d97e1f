// SPDX-License-Identifier: Apache-2.0

// Package nodecert makes the first key of the machine's kubelet, its request for the node's
// certificate, and the file from which the kubelet reads both. The flow attests the hash of the key.
//
// The key exists only in memory until Ignition writes the file. A machine keeps one key and, for each
// name, one request for the whole boot, because the cluster approves few keys for one machine.
package nodecert

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// Key is the key of a kubelet: P-256, as kubelets make it.
type Key struct {
	private  *ecdsa.PrivateKey
	spki     []byte
	requests map[string][]byte // by node
}

// New makes a key.
func New() (*Key, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the kubelet's key: %w", err)
	}
	spki, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		return nil, fmt.Errorf("make the kubelet's key: %w", err)
	}
	return &Key{private: private, spki: spki, requests: map[string][]byte{}}, nil
}

// SPKISHA256 returns the hash of the SubjectPublicKeyInfo, for the transcript.
func (k *Key) SPKISHA256() []byte {
	sum := sha256.Sum256(k.spki)
	return sum[:]
}

// Request returns a kubelet's PKCS #10 request (DER) for a node. It is the same for the same node.
func (k *Key) Request(node string) ([]byte, error) {
	if der, ok := k.requests[node]; ok {
		return der, nil
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + node},
	}, k.private)
	if err != nil {
		return nil, fmt.Errorf("request for node %s: %w", node, err)
	}
	k.requests[node] = der
	return der, nil
}

// Pair returns the file for the kubelet: the certificates and the key, in PEM. The first certificate
// must have the key and be that of the node.
func (k *Key) Pair(node string, certificates [][]byte) (secret.Bytes, error) {
	if len(certificates) == 0 {
		return secret.Bytes{}, errors.New("the verifier issued no certificate")
	}
	var out bytes.Buffer
	for i, der := range certificates {
		c, err := x509.ParseCertificate(der)
		switch {
		case err != nil:
			return secret.Bytes{}, fmt.Errorf("the node's certificate: %w", err)
		case i == 0 && !bytes.Equal(c.RawSubjectPublicKeyInfo, k.spki):
			return secret.Bytes{}, errors.New("the node's certificate has another key")
		case i == 0 && c.Subject.CommonName != "system:node:"+node:
			return secret.Bytes{}, fmt.Errorf("the node's certificate is for %.80q", c.Subject.CommonName)
		}
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
			return secret.Bytes{}, err
		}
	}
	der, err := x509.MarshalECPrivateKey(k.private)
	if err != nil {
		return secret.Bytes{}, err
	}
	if err := pem.Encode(&out, &pem.Block{Type: "EC PRIVATE KEY", Bytes: der}); err != nil {
		return secret.Bytes{}, err
	}
	return secret.New(out.Bytes()), nil
}

// Choose returns the name of this machine's Node among those that its Machine has, or false. A kubelet
// whose certificate has another name than its own never joins, so nothing is guessed.
func Choose(names []string, hostname string) (string, bool) {
	if len(names) == 1 {
		return names[0], true
	}
	for _, name := range names {
		if strings.EqualFold(name, hostname) {
			return name, true
		}
	}
	return "", false
}
