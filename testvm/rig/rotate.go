// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"time"
)

// RotateCertificate installs a new serving certificate of the folder's CA in the order of an
// administrator's tool: first the key, then the certificate.
func (v *Verifier) RotateCertificate() {
	v.r.t.Helper()
	caCert, err := x509.ParseCertificate(v.pem("tls/ca.crt"))
	v.r.fatal(err, "CA")
	caKey, err := x509.ParsePKCS8PrivateKey(v.pem("tls/ca.key"))
	v.r.fatal(err, "CA")
	signer, ok := caKey.(crypto.Signer)
	if !ok {
		v.r.t.Fatalf("the CA's key cannot sign")
	}
	der, key := v.r.sign(caCert, signer)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	v.r.fatal(err, "certificate")
	v.Write("tls/tls.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
	v.Write("tls/tls.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
}

func (v *Verifier) pem(name string) []byte {
	v.r.t.Helper()
	block, _ := pem.Decode(v.Read(name))
	if block == nil {
		v.r.t.Fatalf("%s is not PEM", name)
	}
	return block.Bytes
}

// Leaf returns the SHA-256 of the certificate that it currently serves.
func (v *Verifier) Leaf() string {
	v.r.t.Helper()
	transport := v.transport()
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", v.Port), transport.TLSClientConfig)
	v.r.fatal(err, "verifier's certificate")
	defer conn.Close()
	sum := sha256.Sum256(conn.ConnectionState().PeerCertificates[0].Raw)
	return hex.EncodeToString(sum[:])
}

// WaitLeaf waits until it serves a certificate other than before.
func (v *Verifier) WaitLeaf(before string) string {
	v.r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if leaf := v.Leaf(); leaf != before || time.Now().After(deadline) {
			return leaf
		}
	}
}
