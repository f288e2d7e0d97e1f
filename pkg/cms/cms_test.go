// SPDX-License-Identifier: Apache-2.0

package cms_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"embed"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/smallstep/pkcs7"

	"github.com/mcs-attest/mcs-attest/pkg/cms"
	"github.com/mcs-attest/mcs-attest/pkg/cms/cmstest"
)

//go:embed testdata
var testdata embed.FS

// aws and azure are the options for these clouds' messages.
var (
	aws   = cms.Options{BER: true}
	azure = cms.Options{SHA256WithRSAAsDigest: true, AttributesOptional: true}
)

// region is a key with a certificate like those of AWS's regions.
var region = sync.OnceValue(func() (r struct {
	key         *rsa.PrivateKey
	certificate *x509.Certificate
}) {
	var err error
	if r.key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		panic(err)
	}
	if r.certificate, err = cmstest.Certificate(template(), r.key); err != nil {
		panic(err)
	}
	return r
})

func template() *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes([]byte{0xb6, 0x4b, 0xde, 0x5a, 0xd0, 0x09, 0x24, 0xcc}),
		Subject:      pkix.Name{Country: []string{"US"}, Organization: []string{"Test"}},
		NotBefore:    time.Unix(1_600_000_000, 0), NotAfter: time.Unix(4_000_000_000, 0),
	}
}

var content = []byte(`{"instanceId":"i-078517ca8a70a1dde","region":"us-west-2"}`)

// asAWS and asAzure return valid messages.
func asAWS(tb testing.TB) []byte {
	tb.Helper()
	raw, err := cmstest.AWS(content, region().certificate, region().key, time.Unix(1_700_000_000, 0))
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

func asAzure(tb testing.TB) []byte {
	tb.Helper()
	raw, err := cmstest.Azure(content, region().certificate, region().key)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// read parses and verifies with the certificate of the test region.
func read(raw []byte, o cms.Options) ([]byte, error) {
	m, err := cms.Parse(raw, o)
	if err != nil {
		return nil, err
	}
	return m.Verify(region().certificate)
}

// capture returns a real document of an AWS region with the certificate of that region.
func capture(tb testing.TB, name string) ([]byte, *x509.Certificate) {
	tb.Helper()
	text, err := testdata.ReadFile("testdata/" + name + ".b64")
	if err != nil {
		tb.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(string(bytes.ReplaceAll(text, []byte("\n"), nil)))
	if err != nil {
		tb.Fatal(err)
	}
	text, err = testdata.ReadFile("testdata/" + name + ".pem")
	if err != nil {
		tb.Fatal(err)
	}
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		tb.Fatal(err)
	}
	return raw, cert
}

var captures = []string{"aws-us-west-1", "aws-us-west-2"}

func TestRealDocumentsOfAWS(t *testing.T) {
	for i, name := range captures {
		raw, cert := capture(t, name)
		m, err := cms.Parse(raw, aws)
		if err != nil {
			t.Fatal(name, err)
		}
		got, err := m.Verify(cert)
		if err != nil {
			t.Fatal(name, err)
		}
		oracle, err := pkcs7.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		oracle.Certificates = []*x509.Certificate{cert}
		if err := oracle.Verify(); err != nil || !bytes.Equal(oracle.Content, got) {
			t.Errorf("%s: the oracle returned %v, and content\n%s\nnot\n%s", name, err, oracle.Content, got)
		}
		_, other := capture(t, captures[1-i])
		if _, err := m.Verify(other); err == nil {
			t.Errorf("%s: another region's certificate verifies it", name)
		}
		if _, err := cms.Parse(raw, cms.Options{}); err == nil {
			t.Errorf("%s: indefinite lengths without Options.BER", name)
		}
	}
}

func TestParse_AcceptsValidMessages(t *testing.T) {
	for name, c := range map[string]struct {
		raw     []byte
		options cms.Options
	}{
		"as AWS": {asAWS(t), aws}, "as Azure": {asAzure(t), azure},
	} {
		if got, err := read(c.raw, c.options); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
