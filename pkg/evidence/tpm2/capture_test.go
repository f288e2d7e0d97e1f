// SPDX-License-Identifier: Apache-2.0

package tpm2_test

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

// capture reads a file of testdata; the README.md there describes its origin.
func capture(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "swtpm-0.7.1", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func captureRoots(t testing.TB) tpm2.Roots {
	t.Helper()
	root, err := x509.ParseCertificate(capture(t, "root.der"))
	if err != nil {
		t.Fatal(err)
	}
	roots := tpm2.Roots{Anchors: x509.NewCertPool()}
	roots.Anchors.AddCert(root)
	return roots
}

var captureTime = time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)

func TestCapturedSwtpmCertificatesVouchForTheirEKs(t *testing.T) {
	roots := captureRoots(t)
	for kind, file := range map[string]string{"rsa-2048": "ek-rsa2048", "ecc-p384": "ek-p384"} {
		t.Run(kind, func(t *testing.T) {
			ek := mustEK(t, capture(t, file+".pub"))
			if ek.Describe() != kind {
				t.Errorf("EK is %s", ek.Describe())
			}
			chain := [][]byte{capture(t, file+".der"), capture(t, "issuer.der")}
			cert, err := tpm2.VerifyEKCertificate(chain, ek, roots, captureTime)
			if err != nil {
				t.Fatal(err)
			}
			if cert.Manufacturer != "id:00001014" || cert.Model != "swtpm" || cert.Version != "id:20191023" ||
				cert.Issuer != "CN=swtpm-localca" || cert.Subject != "CN=testvm" {
				t.Errorf("%+v", cert)
			}
			_, err = tpm2.VerifyEKCertificate(chain[:1], ek, roots, captureTime)
			denied(t, err, reason.EKUntrusted)
		})
	}
}

func TestCapturedQuoteOfTPM2Tools(t *testing.T) {
	hash := transcript.Hash([]byte("tttttttttttttttttttttttttttttttt"))
	k := make([]byte, 32)
	values := capture(t, "quote.pcrs")
	q, err := tpm2.VerifyQuote(
		tpm2.Challenge{
			EK: mustEK(t, capture(t, "ek-p256.pub")), AK: mustAK(t, capture(t, "ak-p256.pub")),
			Secret: secret.New(k), Bank: tpm2.BankSHA256, PCRs: []int{0, 11}, Transcript: hash,
		},
		tpm2.Evidence{
			Quote: capture(t, "quote.attest"), Signature: capture(t, "quote.sig"),
			Activation: transcript.Activation(k, hash), PCRValues: [][]byte{values[:32], values[32:]},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	if q.ResetCount != 2 || q.RestartCount != 0 || !q.Safe || q.Clock != 0x53c || q.FirmwareVersion != 0x2019102300163636 {
		t.Errorf("%+v", q)
	}
}
