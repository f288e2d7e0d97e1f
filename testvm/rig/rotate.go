// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// RotateCertificate installs a new serving certificate of the folder's CA in the order of an
// administrator's tool: first the key, then the certificate.
func (v *Verifier) RotateCertificate() {
	v.r.t.Helper()
	pair := v.r.sign(pki.Pair{Certificate: v.Read("tls/ca.crt"), Key: secret.New(v.Read("tls/ca.key"))})
	v.Write("tls/tls.key", string(pair.Key.Expose()))
	v.Write("tls/tls.crt", string(pair.Certificate))
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
