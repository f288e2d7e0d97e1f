// SPDX-License-Identifier: Apache-2.0

package approver

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
)

func TestParse_LimitsOfARequest(t *testing.T) {
	names := func(n int) []byte {
		template := honest().template
		template.DNSNames, template.IPAddresses = nil, nil
		for range n {
			template.DNSNames = append(template.DNSNames, "x")
		}
		return requestPEM(&template, ecKey())
	}
	mixed := func(emails int) []byte {
		template := honest().template
		for i := range 25 {
			template.DNSNames = append(template.DNSNames, "x")
			template.IPAddresses = append(template.IPAddresses, net.IPv4(10, 0, 0, byte(i)))
			template.URIs = append(template.URIs, &url.URL{Scheme: "spiffe", Host: "x"})
		}
		for range emails {
			template.EmailAddresses = append(template.EmailAddresses, "a@b")
		}
		return requestPEM(&template, ecKey())
	}
	padded := func(n int) []byte {
		valid := requestPEM(&honest().template, ecKey())
		return append(append(bytes.Repeat([]byte("a"), n-len(valid)-1), '\n'), valid...)
	}
	for name, c := range map[string]struct {
		raw []byte
		ok  bool
	}{
		"100 names":              {names(100), true},
		"101 names":              {names(101), false},
		"100 names of all kinds": {mixed(25), true},
		"101 names of all kinds": {mixed(26), false},
		"a byte after the block": {append(requestPEM(&honest().template, ecKey()), 'x'), false},
		"16384 bytes":            {padded(16384), true},
		"16385 bytes":            {padded(16385), false},
	} {
		if _, err := parse(c.raw); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The type and the size of the key are checked before its signature, which costs more.
func TestParse_LimitsOfAKey(t *testing.T) {
	rsaOf := func(bits uint) any {
		n := new(big.Int).Lsh(big.NewInt(1), bits-1)
		return &rsa.PublicKey{N: n.SetBit(n, 0, 1), E: 65537}
	}
	const signed = "not signed with its own key" // the keys of this test are only public
	for name, c := range map[string]struct {
		key  any
		want string
	}{
		"RSA of 2047 bits": {rsaOf(2047), "the RSA key has 2047 bits"},
		"RSA of 2048 bits": {rsaOf(2048), signed},
		"RSA of 4096 bits": {rsaOf(4096), signed},
		"RSA of 4097 bits": {rsaOf(4097), "the RSA key has 4097 bits; 2048 to 4096 are allowed"},
		"X25519":           {must(ecdh.X25519().GenerateKey(rand.Reader)).PublicKey(), "an unsupported type"},
	} {
		_, err := parse(withKey(t, must(x509.MarshalPKIXPublicKey(c.key))))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, expected %q", name, err, c.want)
		}
	}
}

// withKey returns a request with another public key, so that its signature is wrong.
func withKey(t *testing.T, spki []byte) []byte {
	t.Helper()
	type content struct {
		Version    int
		Subject    asn1.RawValue
		PublicKey  asn1.RawValue
		Attributes asn1.RawValue `asn1:"tag:0,optional"`
	}
	var request struct {
		Content   content
		Algorithm asn1.RawValue
		Signature asn1.BitString
	}
	block, _ := pem.Decode(requestPEM(&honest().template, ecKey()))
	if _, err := asn1.Unmarshal(block.Bytes, &request); err != nil {
		t.Fatal(err)
	}
	request.Content.PublicKey = asn1.RawValue{FullBytes: spki}
	block.Bytes = must(asn1.Marshal(request))
	return pem.EncodeToMemory(block)
}
