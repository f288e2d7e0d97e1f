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

// BenchmarkAppraisal is all that this package does for one node, on a document that
// AWS made: the message read, its signature verified, the content read.
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

// BenchmarkUnavoidableCrypto is one RSA-2048 verification and the two hashes that
// any implementation does. BenchmarkAppraisal divided by it is the overhead.
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

// BenchmarkLibrary is the signature alone with a library for CMS in general: no
// content read, nothing refused that this package refuses.
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
