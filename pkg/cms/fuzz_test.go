// SPDX-License-Identifier: Apache-2.0

package cms_test

import (
	"bytes"
	"testing"

	"github.com/smallstep/pkcs7"

	"github.com/mcs-attest/mcs-attest/pkg/cms"
)

// A general CMS library reads every accepted message in the same way.
func FuzzParse(f *testing.F) {
	for _, name := range captures {
		raw, _ := capture(f, name)
		f.Add(raw, true, false, false)
	}
	f.Add(sign(f, honest()), false, false, false)
	f.Add(asAzure(f), false, true, true)
	f.Add([]byte{0x30, 0x80, 0, 0}, true, true, true)
	f.Fuzz(func(t *testing.T, raw []byte, ber, digest, optional bool) {
		before := bytes.Clone(raw)
		m, err := cms.Parse(raw, cms.Options{BER: ber, SHA256WithRSAAsDigest: digest, AttributesOptional: optional})
		if !bytes.Equal(raw, before) {
			t.Fatal("the message was written to")
		}
		if err != nil {
			if m != nil {
				t.Fatal("a message and an error")
			}
			return
		}
		if got, err := m.Verify(region().certificate); err == nil && !bytes.Equal(got, content) {
			t.Fatalf("a content that was never signed: %q", got)
		}
		if len(m.Certificates) > 0 {
			return // the library requires certificates
		}
		other, err := pkcs7.Parse(raw)
		if err != nil {
			// The library rejects names and times that it decodes and this package does not.
			return
		}
		if !bytes.Equal(other.Content, m.Content) {
			t.Fatalf("content %q, the library's is %q", m.Content, other.Content)
		}
		if len(other.Signers) != 1 {
			t.Fatalf("one signer, the library sees %d", len(other.Signers))
		}
		id := other.Signers[0].IssuerAndSerialNumber
		if id.SerialNumber.Cmp(m.Serial) != 0 {
			t.Fatal("another serial number than the library's")
		}
		// The library rewrites names that are not DER; this package compares them unmodified.
		if name := region().certificate.RawIssuer; bytes.Equal(m.Issuer, name) &&
			!bytes.Equal(id.IssuerName.FullBytes, name) {
			t.Fatal("another issuer than the library's")
		}
	})
}
