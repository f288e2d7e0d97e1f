// SPDX-License-Identifier: Apache-2.0

package cms_test

import (
	"bytes"
	"crypto"
	"encoding/asn1"
	"slices"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/cms"
	"github.com/mcs-attest/mcs-attest/pkg/cms/cmstest"
)

func TestParse_NamesWhatIsWrong(t *testing.T) {
	drop := func(n *node, i int) { n.nodes = slices.Delete(n.nodes, i, i+1) }
	add := func(n *node, more ...*node) { n.nodes = append(n.nodes, more...) }
	attribute := func(m *node, i int) *node { return m.at(signer...).nodes[3].nodes[i] }
	// cut ends a structure after some of its elements with the header of a longer one.
	cut := func(n *node, i int, tag byte) {
		for _, child := range n.nodes[:i] {
			n.value = append(n.value, child.der()...)
		}
		n.nodes, n.value = nil, append(n.value, tag, 5, 0)
	}
	for name, c := range map[string]struct {
		change func(*node)
		want   string
	}{
		"no digest algorithm": {func(m *node) { m.at(algorithms...).nodes = []*node{} },
			"signedData: not exactly one digest algorithm"},
		"CRLs": {func(m *node) {
			n := m.at(signedData...)
			n.nodes = slices.Insert(n.nodes, 3, &node{tag: 0xa1})
		}, "signedData: crls"},
		"certificates that are cut off": {func(m *node) { cut(m.at(signedData...), 3, 0xa0) }, "certificates: truncated"},
		"no name of the signer":         {func(m *node) { m.at(signer...).nodes[1].tag = 0x31 }, "signerInfo: no issuer"},
		"a name without an issuer":      {func(m *node) { drop(m.at(signer...).nodes[1], 0) }, "signerInfo: no issuer"},
		"a name without a serial number": {func(m *node) { drop(m.at(signer...).nodes[1], 1) },
			"signerInfo: no serial number"},
		"a serial number with leading zeros": {func(m *node) { m.at(signer...).nodes[1].nodes[1].value = []byte{0, 1} },
			"signerInfo: no serial number"},
		"a negative serial number": {func(m *node) { m.at(signer...).nodes[1].nodes[1].value = []byte{0xff} },
			"signerInfo: no serial number"},
		"no digest algorithm of the signer": {func(m *node) { m.at(signer...).nodes[2].tag = 4 },
			"signerInfo: no digest algorithm"},
		"signed attributes that are cut off": {func(m *node) { cut(m.at(signer...), 3, 0xa0) },
			"signerInfo: truncated signed attributes"},
		"no signature algorithm": {func(m *node) { drop(m.at(signer...), 4) }, "signerInfo: no signature algorithm"},
		"unsigned attributes": {func(m *node) { add(m.at(signer...), &node{tag: 0xa1}) },
			"signerInfo: unsigned attributes"},
		"an attribute that is a set": {func(m *node) { attribute(m, 1).tag = 0x31 }, "a malformed signed attribute"},
		"an attribute that is only a text": {func(m *node) { add(m.at(signer...).nodes[3], &node{tag: 4}) },
			"a malformed signed attribute"},
		"an attribute whose type is a text": {func(m *node) { attribute(m, 1).nodes[0].tag = 4 },
			"a malformed signed attribute"},
		"an attribute without values": {func(m *node) {
			add(m.at(signer...).nodes[3], &node{tag: 0x30, nodes: []*node{
				{tag: 6, value: []byte(md5)}}})
		}, "a malformed signed attribute"},
		"an attribute with more than values": {func(m *node) { add(attribute(m, 1), &node{tag: 5}) },
			"a malformed signed attribute"},
		"another contentType": {func(m *node) { attribute(m, 0).at(1, 0).value = []byte(digested) },
			"contentType is not id-data"},
		"no value of messageDigest": {func(m *node) { attribute(m, 1).nodes[1].nodes = []*node{} },
			"messageDigest is not one octet string"},
		"no messageDigest": {func(m *node) { drop(m.at(signer...).nodes[3], 1) },
			"signed attributes without contentType or messageDigest"},
	} {
		m := tree(t, sign(t, honest()))
		c.change(m)
		if _, err := cms.Parse(m.der(), cms.Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestParse_NamesWhatIsWrongWithThePieces(t *testing.T) {
	raw := asAWS(t)
	at := bytes.Index(raw, []byte{0x24, 0x80}) + 2
	for name, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"only the header of the message": {[]byte{0x30, 0x80}, "not signedData"},
		"a piece that is cut off":        {raw[:at+10], "a truncated piece"},
		"an empty first piece":           {slices.Insert(bytes.Clone(raw), at, 4, 0), "an empty piece"},
		"no piece":                       {slices.Concat(raw[:at], []byte{0, 0}), "no content"},
	} {
		if _, err := cms.Parse(c.raw, aws); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestParse_AcceptsEachLimit(t *testing.T) {
	large := honest()
	large.Content = make([]byte, 60000)
	large.Content = make([]byte, 60000+65536-len(sign(t, large)))
	large.Attributes = []cmstest.Attribute{large.TypeAttribute(), large.DigestAttribute()}
	if n := len(sign(t, large)); n != 65536 {
		t.Fatalf("a message of %d bytes", n)
	}
	certificates := honest()
	certificates.Certificates = slices.Repeat([][]byte{{0x30, 0}}, 16)
	pieces := honest()
	pieces.Indefinite, pieces.Pieces, pieces.Content = true, 1, make([]byte, 64)
	pieces.Attributes = []cmstest.Attribute{pieces.TypeAttribute(), pieces.DigestAttribute()}
	for name, c := range map[string]struct {
		m       cmstest.Message
		options cms.Options
	}{
		"65536 bytes": {large, cms.Options{}}, "16 certificates": {certificates, cms.Options{}}, "64 pieces": {pieces, aws},
	} {
		if got, err := read(sign(t, c.m), c.options); err != nil || !bytes.Equal(got, c.m.Content) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		serial []byte
		ok     bool
	}{
		"zero":                                 {[]byte{0}, true},
		"20 octets":                            {append([]byte{0}, bytes.Repeat([]byte{0xff}, 20)...), true},
		"one bit more":                         {append([]byte{1}, make([]byte, 20)...), false},
		"21 octets":                            {append([]byte{0}, bytes.Repeat([]byte{0xff}, 21)...), false},
		"20 octets without a zero before them": {bytes.Repeat([]byte{0x7f}, 20), true},
	} {
		m := tree(t, sign(t, honest()))
		m.at(signer...).nodes[1].nodes[1].value = c.serial
		if _, err := cms.Parse(m.der(), cms.Options{}); (err == nil) != c.ok {
			t.Errorf("a serial number: %s: %v", name, err)
		}
	}
}

// A content without attributes must not begin like a set, even if it has only that byte.
func TestParse_AcceptsAnEmptyContentButNoneThatBeginsLikeAttributes(t *testing.T) {
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":                 {[]byte{}, ""},
		"another byte":          {[]byte{0x30}, ""},
		"the tag of a set":      {[]byte{0x31}, "a content that looks like them"},
		"more after that tag":   {[]byte{0x31, 0}, "a content that looks like them"},
		"the tag in the middle": {[]byte{0x30, 0x31}, ""},
	} {
		raw, err := cmstest.Azure(c.content, region().certificate, region().key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := read(raw, azure)
		if c.want == "" && (err != nil || !bytes.Equal(got, c.content)) {
			t.Errorf("%s: %x, %v", name, got, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestParse_AcceptsOnlyTheSignatureAlgorithmOfTheDigest(t *testing.T) {
	sha := func(n int) asn1.ObjectIdentifier { return asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, n} }
	rsa := func(n int) asn1.ObjectIdentifier { return asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, n} }
	for i, hash := range []crypto.Hash{crypto.SHA256, crypto.SHA384, crypto.SHA512} {
		for j := range 3 {
			m := honest()
			m.Hash, m.Digest, m.Signature = hash, sha(i+1), rsa(11+j)
			m.Attributes = []cmstest.Attribute{m.TypeAttribute(), m.DigestAttribute()}
			_, err := read(sign(t, m), cms.Options{})
			if i == j && err != nil {
				t.Errorf("%v: %v", hash, err)
			}
			if i != j && (err == nil || !strings.Contains(err.Error(), "the signature algorithm is not RSA")) {
				t.Errorf("%v with signature algorithm %v: %v", hash, m.Signature, err)
			}
		}
	}
}
