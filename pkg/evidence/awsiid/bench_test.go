// SPDX-License-Identifier: Apache-2.0

package awsiid_test

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"testing"

	"github.com/smallstep/pkcs7"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awsiid"
)

// BenchmarkAppraisal measures everything that this package does for one node, with a document that
// AWS created: it parses the message, verifies its signature and parses the content.
func BenchmarkAppraisal(b *testing.B) {
	raw := capture(b, "../../cms/testdata/aws-us-west-2.b64")
	v := &awsiid.Verifier{Accounts: []string{"278576220453"}, Regions: []string{"us-west-2"}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Verify(context.Background(), document(raw), evidence.Binding{}, now); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkUnavoidableCrypto measures one RSA-2048 verification and two hashes, which every
// implementation needs. BenchmarkAppraisal divided by it is the overhead.
func BenchmarkUnavoidableCrypto(b *testing.B) {
	s := cloud()["us-west-2"]
	content, attributes := make([]byte, 475), make([]byte, 155)
	digest := sha256.Sum256(attributes)
	signature, err := rsa.SignPKCS1v15(nil, s.key, crypto.SHA256, digest[:])
	if err != nil {
		b.Fatal(err)
	}
	public := s.certificate.PublicKey.(*rsa.PublicKey)
	b.ReportAllocs()
	for b.Loop() {
		sha256.Sum256(content)
		digest := sha256.Sum256(attributes)
		if err := rsa.VerifyPKCS1v15(public, crypto.SHA256, digest[:], signature); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLibrary measures only the signature, with a general CMS library that does not parse the
// content and has fewer checks.
func BenchmarkLibrary(b *testing.B) {
	raw := capture(b, "../../cms/testdata/aws-us-west-2.b64")
	c, _ := awsiid.Defaults().Region("us-west-2")
	b.ReportAllocs()
	for b.Loop() {
		p, err := pkcs7.Parse(raw)
		if err != nil {
			b.Fatal(err)
		}
		if p.Certificates = []*x509.Certificate{c}; p.Verify() != nil {
			b.Fatal("not verified")
		}
	}
}
