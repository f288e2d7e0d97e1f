// SPDX-License-Identifier: Apache-2.0

package awsiid_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/cms/cmstest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awsiid"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// These are signed with the right key, so only the strict parser rejects them.
func TestAttack_T01_ContentWithTwoMeanings(t *testing.T) {
	if _, err := appraise(verifier(nil), document(signedIn(t, "eu-central-1", content()))); err != nil {
		t.Fatalf("the valid case: %v", err)
	}
	id := `"instanceId" : "i-078517ca8a70a1dde"`
	for name, c := range map[string]string{
		"a key twice":                         content(id, id+`, "instanceId" : "i-11111111111111111"`),
		"a key twice, the same":               content(id, id+", "+id),
		"a key twice, once escaped":           content(id, id+`, "\u0069nstanceId" : "i-11111111111111111"`),
		"a key in another case":               content(id, id+`, "InstanceId" : "i-11111111111111111"`),
		"a key only in another case":          content(`"instanceId"`, `"instanceID"`),
		"a key with a long s":                 content(id, id+`, "in`+"\u017f"+`tanceId" : "i-11111111111111111"`),
		"an optional key in another case":     content(`"imageId"`, `"imageid"`),
		"an unknown key twice":                content(`"kernelId"`, `"kernelId" : null, "kernelId"`),
		"an object after it":                  content() + content(),
		"a byte after it":                     content() + "x",
		"a zero after it":                     content() + "\x00",
		"a byte before it":                    "x" + content(),
		"a byte order mark":                   "\ufeff" + content(),
		"an array":                            "[" + content() + "]",
		"nothing":                             "",
		"null":                                "null",
		"an empty object":                     "{}",
		"a truncated object":                  strings.TrimSuffix(content(), "}"),
		"bytes that are not UTF-8":            content("m6i", "m\xff"),
		"a comment":                           content(id, "/**/"+id),
		"a comma too many":                    content(`"2017-09-30"`, `"2017-09-30",`),
		"no instance":                         content(id+",", ""),
		"no region":                           content(`"region" : "eu-central-1",`, ""),
		"null for the account":                content(`"278576220453"`, "null"),
		"a number for the account":            content(`"278576220453"`, "278576220453"),
		"an account of 11 digits":             content("278576220453", "27857622045"),
		"an account of letters":               content("278576220453", "27857622045a"),
		"an array for the instance":           content(`"i-078517ca8a70a1dde"`, `["i-078517ca8a70a1dde"]`),
		"an instance with upper case":         content(instance, "i-078517CA8A70A1DDE"),
		"an instance with a path":             content(instance, "i-078517ca8a70a1dde/../x"),
		"an instance with 16 digits":          content(instance, instance[:18]),
		"an instance with a newline":          content(instance, instance+`\n`),
		"a zone of another region":            content("eu-central-1a", "us-west-2a"),
		"a zone of region eu-central-10":      content("eu-central-1a", "eu-central-10a"),
		"a zone that is the region":           content("eu-central-1a", "eu-central-1"),
		"a zone with a path":                  content("eu-central-1a", "eu-central-1a/i-1"),
		"a zone with upper case":              content("eu-central-1a", "eu-central-1A"),
		"an invalid time":                     content("2026-11-21T11:55:00Z", "yesterday"),
		"no time":                             content("2026-11-21T11:55:00Z", ""),
		"an invalid month":                    content("2026-11-21T11:55:00Z", "2026-13-21T11:55:00Z"),
		"an object for the type":              content(`"m6i.xlarge"`, "{}"),
		"a hundred keys":                      content(`"kernelId"`, manyKeys(100)+`"kernelId"`),
		"deep JSON in a key that AWS may add": content(`"kernelId"`, `"deep" : `+strings.Repeat("[", 15_000)+`, "kernelId"`),
		"a huge string":                       content("m6i.xlarge", strings.Repeat("x", 20_000)),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := appraise(verifier(nil), document(signedIn(t, "eu-central-1", c)))
			denied(t, err, reason.DocumentInvalid)
		})
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`"key` + strings.Repeat("x", i) + `" : null,`)
	}
	return b.String()
}

// The signature of one document with the content of another.
func TestAttack_T01_SignatureOfAnotherDocument(t *testing.T) {
	mine := signedIn(t, "eu-central-1", content())
	theirs := bytes.Replace(mine, []byte(instance), []byte("i-11111111111111111"), 1)
	if bytes.Equal(mine, theirs) {
		t.Fatal("the instance is not in the message")
	}
	_, err := appraise(verifier(nil), document(theirs))
	denied(t, err, reason.DocumentInvalid)
	for name, raw := range map[string][]byte{
		"two messages":        slices.Concat(mine, mine),
		"only the content":    []byte(content()),
		"base64":              []byte("MIAGCSqGSIb3DQEHAqCAMIAC"),
		"nothing":             nil,
		"a byte behind it":    append(bytes.Clone(mine), 0),
		"a byte in front":     append([]byte{0}, mine...),
		"two contents in one": bytes.Replace(mine, []byte(content()), []byte(content()+content()), 1),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := appraise(verifier(nil), document(raw))
			denied(t, err, reason.DocumentInvalid)
		})
	}
}

// The parts outside of the message are not signed, so they must be empty.
func TestAttack_T01_SomethingBesideTheDocument(t *testing.T) {
	raw := signedIn(t, "eu-central-1", content())
	s := cloud()["eu-central-1"]
	inside, err := cmstest.Message{Content: []byte(content()), Certificate: s.certificate, Key: s.key,
		Attributes: []cmstest.Attribute{cmstest.Message{}.TypeAttribute(),
			cmstest.Message{Content: []byte(content())}.DigestAttribute()},
		Certificates: [][]byte{s.certificate.Raw}}.Sign()
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]evidence.Document{
		"certificates":            {Raw: raw, Certificates: [][]byte{s.certificate.Raw}},
		"a token":                 {Raw: raw, Token: []byte("x")},
		"certificates in the CMS": {Raw: inside},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := appraise(verifier(nil), d)
			denied(t, err, reason.DocumentInvalid)
		})
	}
}

// No mutant of a real document is accepted (package cms has the complete list).
func TestAttack_T01_MutantsOfARealDocument(t *testing.T) {
	raw := capture(t, "../../cms/testdata/aws-us-west-2.b64")
	v := &awsiid.Verifier{Accounts: []string{"278576220453"}, Regions: []string{"us-west-2"}}
	if _, err := appraise(v, document(raw)); err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		for _, mask := range []byte{0x01, 0x20, 0xff} {
			mutant := bytes.Clone(raw)
			mutant[i] ^= mask
			if _, err := appraise(v, document(mutant)); err == nil {
				t.Errorf("accepted with byte %d changed by %#x", i, mask)
			}
		}
	}
}

// AWS offers two more forms of the document, with weaker keys. A caller cannot choose them.
func TestAttack_T02_OtherFormsOfTheDocument(t *testing.T) {
	weak := newSigning(13, 1024)
	weakMessage, err := cmstest.AWS([]byte(content()), weak.certificate, weak.key, started)
	if err != nil {
		t.Fatal(err)
	}
	digest := make([]byte, 32)
	bare, err := rsa.SignPKCS1v15(nil, weak.key, 5, digest)
	if err != nil {
		t.Fatal(err)
	}
	// Even a verifier that is configured with the weak certificate does not use it.
	all := certificates().With(awsiid.RegionCertificate{Region: "eu-central-1", Certificate: weak.certificate})
	v := verifier(nil)
	v.Certificates = func() *awsiid.Certificates { return all }
	for name, raw := range map[string][]byte{
		"pkcs7, with DSA-1024 and SHA-1 (a capture)": capture(t, "testdata/pkcs7-dsa.b64"),
		"signature, with RSA-1024":                   bare,
		"the rsa2048 form with an RSA-1024 key":      weakMessage,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := appraise(v, document(raw))
			denied(t, err, reason.DocumentInvalid)
		})
	}
}

func TestAttack_T03_OtherRegions(t *testing.T) {
	abroad := content("eu-central-1", "us-west-2")
	unknown := content("eu-central-1", "xx-nowhere-1")
	stranger := newSigning(14, 2048)
	foreign, err := cmstest.AWS([]byte(content()), stranger.certificate, stranger.key, started)
	if err != nil {
		t.Fatal(err)
	}
	twin := newSigning(11, 2048) // the issuer and serial number of eu-central-1
	forged, err := cmstest.AWS([]byte(content()), twin.certificate, twin.key, started)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		raw  []byte
		want reason.Code
	}{
		"a genuine document of a region that is not allowed": {signedIn(t, "us-west-2", abroad), reason.AccountNotAllowed},
		"an allowed region in the content, another one's signature": {signedIn(t, "us-west-2", content()),
			reason.DocumentUntrusted},
		"another region in the content, an allowed one's signature": {signedIn(t, "eu-central-1", abroad),
			reason.DocumentUntrusted},
		"a region that does not exist":               {signedIn(t, "eu-central-1", unknown), reason.DocumentUntrusted},
		"a certificate without a region":             {foreign, reason.DocumentUntrusted},
		"a certificate with the names of a region's": {forged, reason.DocumentInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := appraise(verifier(nil), document(c.raw))
			denied(t, err, c.want)
		})
	}
	t.Run("no region is a default for another", func(t *testing.T) {
		v := verifier(nil)
		v.Certificates = func() *awsiid.Certificates { return (*awsiid.Certificates)(nil) }
		_, err := appraise(v, document(signedIn(t, "eu-central-1", content())))
		denied(t, err, reason.DocumentUntrusted)
	})
	t.Run("test keys are not among those built in", func(t *testing.T) {
		v := verifier(nil)
		v.Certificates = nil
		_, err := appraise(v, document(signedIn(t, "eu-central-1", content())))
		denied(t, err, reason.DocumentUntrusted)
	})
}

func TestAllowListsAreClosedByDefault(t *testing.T) {
	raw := signedIn(t, "eu-central-1", content())
	for name, change := range map[string]func(*awsiid.Verifier){
		"another account": func(v *awsiid.Verifier) { v.Accounts = []string{"111122223333"} },
		"no account":      func(v *awsiid.Verifier) { v.Accounts = nil },
		"another region":  func(v *awsiid.Verifier) { v.Regions = []string{"us-west-2", "eu-central-1a", "eu-central"} },
		"no region":       func(v *awsiid.Verifier) { v.Regions = nil },
	} {
		t.Run(name, func(t *testing.T) {
			v := verifier(nil)
			change(v)
			_, err := appraise(v, document(raw))
			denied(t, err, reason.AccountNotAllowed)
		})
	}
}

func TestAttack_T15_CertificateOutsideItsValidity(t *testing.T) {
	raw := signedIn(t, "eu-central-1", content())
	for _, at := range []time.Time{{}, time.Date(2019, 12, 31, 0, 0, 0, 0, time.UTC),
		time.Date(2195, 1, 2, 0, 0, 0, 0, time.UTC)} {
		_, err := verifier(nil).Verify(context.Background(), document(raw), evidence.Binding{}, at)
		denied(t, err, reason.DocumentUntrusted)
	}
}

func TestAttack_T16_CostlyDocuments(t *testing.T) {
	s := cloud()["eu-central-1"]
	// The verifier's configuration determines the signer's key. A huge key is always rejected.
	huge := &rsa.PublicKey{N: new(big.Int).SetBit(s.key.N, 16383, 1), E: 65537}
	der, err := x509.CreateCertificate(rand.Reader, s.certificate, s.certificate, huge, s.key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	careless := verifier(nil)
	careless.Certificates = func() *awsiid.Certificates {
		return (*awsiid.Certificates)(nil).With(awsiid.RegionCertificate{Region: "eu-central-1", Certificate: certificate})
	}
	thousand, err := cmstest.Message{Content: []byte(content()), Certificate: s.certificate, Key: s.key,
		Attributes: []cmstest.Attribute{}, Certificates: slices.Repeat([][]byte{der[:4]}, 1000)}.Sign()
	if err != nil {
		t.Fatal(err)
	}
	raw := signedIn(t, "eu-central-1", content())
	for name, c := range map[string]struct {
		v *awsiid.Verifier
		d evidence.Document
	}{
		"RSA-16384 as a region's":          {careless, document(raw)},
		"1000 certificates in the message": {verifier(nil), document(thousand)},
		"1000 certificates with it": {verifier(nil),
			evidence.Document{Raw: raw, Certificates: slices.Repeat([][]byte{der}, 1000)}},
		"a body of 200 MB": {verifier(nil), document(make([]byte, 200<<20))},
		"a content of 60 KB, rightly signed": {verifier(nil),
			document(signedIn(t, "eu-central-1", content("m6i", strings.Repeat(" ", 60_000))))},
		"deep structures":           {verifier(nil), document(slices.Repeat([]byte{0x30, 0x80}, 30_000))},
		"deep JSON, rightly signed": {verifier(nil), document(signedIn(t, "eu-central-1", strings.Repeat(`{"a":`, 3000)))},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := appraise(c.v, c.d)
			denied(t, err, reason.DocumentInvalid)
		})
	}
}

// A document never changes, so a replay cannot be detected. The statement must never count as
// bound.
func TestAttack_T05_AReplayedDocumentIsNeverBound(t *testing.T) {
	raw := signedIn(t, "eu-central-1", content())
	var statements []evidence.Statement
	for _, transcript := range [][32]byte{{}, {1}} {
		c, err := verifier(nil).Verify(context.Background(), document(raw),
			evidence.Binding{Transcript: transcript, Origin: "https://other:22624"}, now)
		if err != nil {
			t.Fatal(err)
		}
		statements = append(statements, c.Statement())
	}
	if statements[0].Bound || !reflect.DeepEqual(statements[0], statements[1]) {
		t.Errorf("got %+v", statements)
	}
}
