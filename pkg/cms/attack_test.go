// SPDX-License-Identifier: Apache-2.0

package cms_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/smallstep/pkcs7"

	"github.com/mcs-attest/mcs-attest/pkg/cms"
	"github.com/mcs-attest/mcs-attest/pkg/cms/cmstest"
)

// Positions in the tree of a message without certificates.
var (
	signedData = []int{1, 0}
	algorithms = []int{1, 0, 1}
	encap      = []int{1, 0, 2}
	signers    = []int{1, 0, 3}
	signer     = []int{1, 0, 3, 0}
)

// honest returns a valid message in DER with signed attributes, which tests change.
func honest() cmstest.Message {
	m := cmstest.Message{Content: content, Certificate: region().certificate, Key: region().key}
	m.Attributes = []cmstest.Attribute{m.TypeAttribute(), m.DigestAttribute()}
	return m
}

func sign(tb testing.TB, m cmstest.Message) []byte {
	tb.Helper()
	raw, err := m.Sign()
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// oracle returns the content that a general CMS library returns, and whether that library verifies
// the message.
func oracle(raw []byte) ([]byte, bool) {
	p, err := pkcs7.Parse(raw)
	if err != nil {
		return nil, false
	}
	if p.Certificates = []*x509.Certificate{region().certificate}; p.Verify() != nil {
		return nil, false
	}
	return p.Content, true
}

func null(oid string) *node {
	return &node{tag: 0x30, nodes: []*node{{tag: 6, value: []byte(oid)}, {tag: 5}}}
}

const (
	sha1     = "\x2b\x0e\x03\x02\x1a"
	md5      = "\x2a\x86\x48\x86\xf7\x0d\x02\x05"
	sha512   = "\x60\x86\x48\x01\x65\x03\x04\x02\x03"
	dsaSHA1  = "\x2a\x86\x48\xce\x38\x04\x03"
	rsaPSS   = "\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0a"
	sha1RSA  = "\x2a\x86\x48\x86\xf7\x0d\x01\x01\x05"
	sha512R  = "\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0d"
	digested = "\x2a\x86\x48\x86\xf7\x0d\x01\x07\x05"
)

// Each case changes one thing in a valid message. Accepted is the library's result; the cases that
// it accepts are the reason for this package.
func TestAttack_T01_MessageWithOneWrongThing(t *testing.T) {
	good := sign(t, honest())
	if got, err := read(good, cms.Options{}); err != nil || !bytes.Equal(got, content) {
		t.Fatalf("the valid case: %q, %v", got, err)
	}
	if got, ok := oracle(good); !ok || !bytes.Equal(got, content) {
		t.Fatalf("the library does not accept the valid case: %q", got)
	}
	drop := func(n *node, i int) { n.nodes = slices.Delete(n.nodes, i, i+1) }
	add := func(n *node, i int, more ...*node) { n.nodes = slices.Insert(n.nodes, i, more...) }
	set := func(oid string) func(*node) {
		return func(m *node) { m.at(algorithms...).nodes = []*node{null(oid)}; m.at(signer...).nodes[2] = null(oid) }
	}
	for name, c := range map[string]struct {
		change   func(*node)
		accepted bool
	}{
		"another content": {func(m *node) { m.at(1, 0, 2, 1, 0).value = []byte(`{"instanceId":"i-other"}`) }, false},
		"no content":      {func(m *node) { drop(m.at(encap...), 1) }, false},
		"two contents": {func(m *node) {
			add(m.at(1, 0, 2, 1), 1, &node{tag: 4, value: []byte("{}")})
		}, true},
		"a content of another type":    {func(m *node) { m.at(1, 0, 2, 0).value = []byte(digested) }, true},
		"not signedData":               {func(m *node) { m.at(0).value = []byte(digested) }, false},
		"signedData of version 3":      {func(m *node) { m.at(1, 0, 0).value = []byte{3} }, true},
		"a version with leading zeros": {func(m *node) { m.at(1, 0, 0).value = []byte{0, 1} }, false},
		"two signers":                  {func(m *node) { add(m.at(signers...), 1, m.at(signer...)) }, true},
		"no signer":                    {func(m *node) { drop(m.at(signers...), 0) }, false},
		"a signer of version 3":        {func(m *node) { m.at(signer...).nodes[0].value = []byte{3} }, true},
		"a signer by its key identifier": {func(m *node) {
			m.at(signer...).nodes[1] = &node{tag: 0x80, value: make([]byte, 20)}
		}, false},
		"another issuer":        {func(m *node) { m.at(signer...).nodes[1].nodes[0] = &node{tag: 0x30} }, false},
		"another serial number": {func(m *node) { m.at(signer...).nodes[1].nodes[1].value = []byte{1} }, false},
		"a negative serial number": {func(m *node) { m.at(signer...).nodes[1].nodes[1].value = []byte{0xff} },
			false},
		"something after the serial number": {func(m *node) { add(m.at(signer...).nodes[1], 2, &node{tag: 5}) }, true},
		"unsigned attributes": {func(m *node) {
			add(m.at(signer...), 6, &node{tag: 0xa1, nodes: []*node{null(md5)}})
		}, true},
		"something else after the signature": {func(m *node) { add(m.at(signer...), 6, &node{tag: 5}) }, true},
		"something after the signers":        {func(m *node) { add(m.at(signedData...), 4, &node{tag: 5}) }, true},
		"something after signedData":         {func(m *node) { add(m.at(1), 1, &node{tag: 5}) }, true},
		"something after the contentInfo's":  {func(m *node) { add(m, 2, &node{tag: 5}) }, true},
		"an empty set of certificates":       {func(m *node) { add(m.at(signedData...), 3, &node{tag: 0xa0}) }, true},
		"a certificate that is not a sequence": {func(m *node) {
			add(m.at(signedData...), 3, &node{tag: 0xa0, nodes: []*node{{tag: 4}}})
		}, false},
		"CRLs":                                   {func(m *node) { add(m.at(signedData...), 3, &node{tag: 0xa1}) }, true},
		"no digest algorithms":                   {func(m *node) { drop(m.at(algorithms...), 0) }, true},
		"two digest algorithms":                  {func(m *node) { add(m.at(algorithms...), 1, null(sha1)) }, true},
		"a digest algorithm that is not named":   {func(m *node) { m.at(algorithms...).nodes[0] = null(md5) }, true},
		"SHA-1":                                  {set(sha1), false},
		"MD5":                                    {set(md5), false},
		"SHA-512, and a signature under SHA-256": {set(sha512), false},
		"an algorithm with parameters": {func(m *node) {
			m.at(signer...).nodes[4].nodes[1] = &node{tag: 4, value: []byte("x")}
		}, true},
		"an algorithm with two parameters": {func(m *node) { add(m.at(signer...).nodes[4], 2, &node{tag: 5}) }, true},
		"a NULL with a value":              {func(m *node) { m.at(signer...).nodes[4].nodes[1].value = []byte{0} }, true},
		"SHA-1 with RSA":                   {func(m *node) { m.at(signer...).nodes[4] = null(sha1RSA) }, true},
		"SHA-512 with RSA over SHA-256":    {func(m *node) { m.at(signer...).nodes[4] = null(sha512R) }, true},
		"RSA-PSS":                          {func(m *node) { m.at(signer...).nodes[4] = null(rsaPSS) }, false},
		"DSA":                              {func(m *node) { m.at(signer...).nodes[4] = null(dsaSHA1) }, false},
		"an empty signature":               {func(m *node) { m.at(signer...).nodes[5].value = nil }, false},
		"a signature of another length": {func(m *node) {
			s := m.at(signer...).nodes[5]
			s.value = append([]byte{0}, s.value...)
		}, false},
		"no signed attributes": {func(m *node) { drop(m.at(signer...), 3) }, false},
		"signed attributes with a byte less": {func(m *node) {
			v := m.at(signer...).nodes[3].at(1, 1, 0)
			v.value = v.value[1:]
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := tree(t, good)
			c.change(m)
			raw := m.der()
			if got, err := read(raw, cms.Options{}); err == nil {
				t.Errorf("accepted: %q", got)
			}
			if _, ok := oracle(raw); ok != c.accepted {
				t.Errorf("the library accepts it: %t", ok)
			}
		})
	}
}

// Attributes with wrong content, which a careless signer could sign.
func TestAttack_T01_SignedAttributesWithOneWrongThing(t *testing.T) {
	m := honest()
	kind, digest := m.TypeAttribute(), m.DigestAttribute()
	guard := cmstest.Attribute{Type: cmstest.AlgorithmGuard, Value: m.Guard()}
	other := cmstest.Message{Content: []byte("{}")}.DigestAttribute()
	weaker := cmstest.Message{Digest: []int{1, 3, 14, 3, 2, 26}}.Guard()
	stronger := cmstest.Message{Signature: cmstest.SHA256WithRSA}.Guard()
	for name, attributes := range map[string][]cmstest.Attribute{
		"none":                                 {},
		"no contentType":                       {digest},
		"no messageDigest":                     {kind},
		"contentType twice":                    {kind, kind, digest},
		"messageDigest twice":                  {kind, digest, digest},
		"the digest of another content":        {kind, other},
		"the digest of another, and this":      {kind, other, digest},
		"an empty digest":                      {kind, {Type: cmstest.MessageDigest, Value: []byte{4, 0}}},
		"a digest that is not an octet string": {kind, {Type: cmstest.MessageDigest, Value: kind.Value}},
		"a digest with two values": {kind,
			{Type: cmstest.MessageDigest, Value: slices.Concat(digest.Value, digest.Value)}},
		"a digest without value":        {kind, {Type: cmstest.MessageDigest}},
		"another contentType":           {{Type: cmstest.ContentType, Value: append([]byte{6, 9}, digested...)}, digest},
		"a contentType with two values": {{Type: cmstest.ContentType, Value: slices.Concat(kind.Value, kind.Value)}, digest},
		"another digest algorithm":      {kind, digest, {Type: cmstest.AlgorithmGuard, Value: weaker}},
		"another signature algorithm":   {kind, digest, {Type: cmstest.AlgorithmGuard, Value: stronger}},
		"a guard that guards nothing":   {kind, digest, {Type: cmstest.AlgorithmGuard, Value: []byte{0x30, 0}}},
		"a guard with something after it": {kind, digest,
			{Type: cmstest.AlgorithmGuard, Value: slices.Concat(
				[]byte{0x30, guard.Value[1] + 2}, guard.Value[2:], []byte{5, 0})}},
		"a guard that has two values": {kind, digest,
			{Type: cmstest.AlgorithmGuard, Value: slices.Concat(guard.Value, guard.Value)}},
		"the algorithm guard twice":         {kind, digest, guard, guard},
		"more than there is any reason for": append([]cmstest.Attribute{kind, digest}, many(15)...),
	} {
		t.Run(name, func(t *testing.T) {
			m := honest()
			m.Attributes = attributes
			if got, err := read(sign(t, m), cms.Options{AttributesOptional: true}); err == nil {
				t.Errorf("accepted: %q", got)
			}
		})
	}
	m.Attributes = append([]cmstest.Attribute{digest, guard, kind}, many(13)...)
	if _, err := read(sign(t, m), cms.Options{}); err != nil {
		t.Errorf("the valid case, in another order and with irrelevant attributes: %v", err)
	}
}

func many(n int) []cmstest.Attribute {
	var all []cmstest.Attribute
	for i := range n {
		all = append(all, cmstest.Attribute{Type: []int{1, 2, 3, i}, Value: []byte{5, 0}})
	}
	return all
}

// The bytes under a signature over attributes could be presented as a content without attributes,
// and vice versa.
func TestAttack_T01_AttributesPresentedAsContent(t *testing.T) {
	m := tree(t, sign(t, honest()))
	attributes := *m.at(signer...).nodes[3]
	attributes.tag = 0x31
	m.at(1, 0, 2, 1, 0).value = attributes.der()
	m.at(signer...).nodes = slices.Delete(m.at(signer...).nodes, 3, 4)
	if got, ok := oracle(m.der()); !ok {
		t.Errorf("the library rejects it, too: %q", got)
	}
	for _, o := range []cms.Options{{}, azure} {
		if got, err := read(m.der(), o); err == nil {
			t.Errorf("%+v: attributes accepted as a content: %q", o, got)
		}
	}
	if _, err := read(asAzure(t), cms.Options{SHA256WithRSAAsDigest: true}); err == nil {
		t.Error("no signed attributes where they are required")
	}
	if _, err := read(asAzure(t), cms.Options{AttributesOptional: true}); err == nil {
		t.Error("a signature algorithm as digest algorithm, without the option")
	}
}

func TestAttack_T02_KeysThatMayNotSign(t *testing.T) {
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	elliptic, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		key  crypto.PublicKey
		want string
	}{
		"RSA-1024":                 {weak.Public(), "RSA-1024"},
		"ECDSA":                    {elliptic.Public(), "not RSA"},
		"RSA with exponent 3":      {&rsa.PublicKey{N: region().key.N, E: 3}, "exponent 3"},
		"RSA-16384":                {&rsa.PublicKey{N: new(big.Int).SetBit(region().key.N, 16383, 1), E: 65537}, "RSA-16384"},
		"RSA-4097":                 {&rsa.PublicKey{N: new(big.Int).SetBit(region().key.N, 4096, 1), E: 65537}, "RSA-4097"},
		"RSA-4096 for a short one": {&rsa.PublicKey{N: new(big.Int).SetBit(region().key.N, 4095, 1), E: 65537}, "length"},
		"another key of that issue": {&rsa.PublicKey{N: new(big.Int).Xor(region().key.N, big.NewInt(2)), E: 65537},
			"does not verify"},
	} {
		t.Run(name, func(t *testing.T) {
			// Same issuer and serial number, but another key.
			der, err := x509.CreateCertificate(rand.Reader, template(), template(), c.key, region().key)
			if err != nil {
				t.Fatal(err)
			}
			other, err := x509.ParseCertificate(der)
			if err != nil {
				t.Fatal(err)
			}
			m, err := cms.Parse(asAWS(t), aws)
			if err != nil || !m.SignedBy(other) {
				t.Fatal(err)
			}
			if _, err := m.Verify(other); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestAttack_T16_MoreThanAnyMessageNeeds(t *testing.T) {
	blank := []byte{0x30, 0}
	for name, c := range map[string]struct {
		raw  func() []byte
		want string
	}{
		"a huge content": {func() []byte {
			m := honest()
			m.Content = make([]byte, 64<<10)
			return sign(t, m)
		}, "at most 65536"},
		"17 certificates": {func() []byte {
			m := honest()
			m.Certificates = slices.Repeat([][]byte{blank}, 17)
			return sign(t, m)
		}, "more than 16"},
		"1000 certificates": {func() []byte {
			m := honest()
			m.Certificates = slices.Repeat([][]byte{blank}, 1000)
			return sign(t, m)
		}, "more than 16"},
		"65 pieces": {func() []byte {
			m := honest()
			m.Indefinite, m.Pieces, m.Content = true, 1, make([]byte, 65)
			return sign(t, m)
		}, "more than 64 pieces"},
		"structures in structures": {func() []byte { return slices.Repeat([]byte{0x30, 0x80}, 30_000) }, "not signedData"},
		"pieces in pieces": {func() []byte {
			raw := asAWS(t)
			at := bytes.Index(raw, []byte{0x24, 0x80})
			return slices.Concat(raw[:at], slices.Repeat([]byte{0x24, 0x80}, 20_000), raw[at:])
		}, "no content"},
		"a serial number of 1000 bytes": {func() []byte {
			m := tree(t, sign(t, honest()))
			m.at(signer...).nodes[1].nodes[1].value = bytes.Repeat([]byte{1}, 1000)
			return m.der()
		}, "serial number"},
		"a length of four gigabytes": {func() []byte { return []byte{0x30, 0x84, 0xff, 0xff, 0xff, 0xff} }, "0x30"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := read(c.raw(), aws); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}
