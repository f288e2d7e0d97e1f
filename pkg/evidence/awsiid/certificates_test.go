// SPDX-License-Identifier: Apache-2.0

package awsiid_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awsiid"
)

// The built-in certificates. The test fails if their number changes, so that the documentation has
// the right one.
func TestDefaults(t *testing.T) {
	all := awsiid.Defaults().All()
	if len(all) != 39 {
		t.Errorf("%d regions; docs/evidence/aws-iid.md has 39", len(all))
	}
	page, err := os.ReadFile("../../../docs/evidence/aws-iid.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, r := range all {
		c := r.Certificate
		if err := c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature); err != nil {
			t.Errorf("%s: its own signature: %v", r.Region, err)
		}
		if key, ok := c.PublicKey.(*rsa.PublicKey); !ok || key.N.BitLen() != 2048 || key.E != 65537 {
			t.Errorf("%s: the key is not RSA-2048 with exponent 65537", r.Region)
		}
		if c.Subject.Organization[0] != "Amazon Web Services LLC" {
			t.Errorf("%s: of %s", r.Region, c.Subject)
		}
		for _, name := range []string{string(c.RawIssuer) + c.SerialNumber.String(), string(c.RawSubjectPublicKeyInfo)} {
			if seen[name] != "" {
				t.Errorf("%s and %s have one certificate or one key", r.Region, seen[name])
			}
			seen[name] = r.Region
		}
		if got, ok := awsiid.Defaults().Region(r.Region); !ok || got != c {
			t.Errorf("%s is not found by its name", r.Region)
		}
		if !bytes.Contains(page, []byte("`"+r.Region+"`")) {
			t.Errorf("docs/evidence/aws-iid.md does not name %s", r.Region)
		}
	}
}

func TestDefaultsAreValidFor180Days(t *testing.T) {
	for _, r := range awsiid.Defaults().All() {
		if left := time.Until(r.Certificate.NotAfter); left < 180*24*time.Hour {
			t.Errorf("%s ends on %s", r.Region, r.Certificate.NotAfter)
		}
	}
	next, ok := awsiid.Defaults().NotAfter(now)
	if want := time.Date(2195, 1, 17, 0, 0, 0, 0, time.UTC); !ok || !next.Truncate(24*time.Hour).Equal(want) {
		t.Errorf("the first ends on %s", next)
	}
	if _, ok := awsiid.Defaults().NotAfter(time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC)); ok {
		t.Error("something lasts beyond 2300")
	}
}

func TestWith_ReplacesOnlyItsRegion(t *testing.T) {
	mine := cloud()["us-west-2"].certificate
	more := awsiid.Defaults().With(awsiid.RegionCertificate{Region: "us-west-2", Certificate: mine},
		awsiid.RegionCertificate{Region: "xx-new-1", Certificate: mine})
	if len(more.All()) != 40 {
		t.Errorf("%d regions", len(more.All()))
	}
	for _, region := range []string{"us-west-2", "xx-new-1"} {
		if got, _ := more.Region(region); got != mine {
			t.Errorf("%s has another certificate", region)
		}
	}
	if got, _ := awsiid.Defaults().Region("us-west-2"); got == mine {
		t.Error("the defaults were changed")
	}
	if _, ok := more.Region(""); ok {
		t.Error("there is a region without name")
	}
	if _, ok := (*awsiid.Certificates)(nil).Region("us-west-2"); ok {
		t.Error("an empty set has a region")
	}
}

func block(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func TestParseCertificates(t *testing.T) {
	good := block("CERTIFICATE", cloud()["us-west-2"].certificate.Raw)
	text := "# AWS's page, of today\n\n# region: eu-central-1\n" + good + "\n#region:us-gov-west-1\n# a remark\n" + good
	all, err := awsiid.ParseCertificates("more.pem", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 || all[0].Region != "eu-central-1" || all[0].Line != 4 || all[1].Region != "us-gov-west-1" ||
		all[1].File != "more.pem" {
		t.Errorf("got %+v", all)
	}
	if lines := strings.Split(text, "\n"); !strings.HasPrefix(lines[all[1].Line-1], "-----BEGIN") {
		t.Errorf("line %d of the second is %q", all[1].Line, lines[all[1].Line-1])
	}
	if _, err := awsiid.ParseCertificates("crlf.pem", []byte(strings.ReplaceAll(text, "\n", "\r\n"))); err != nil {
		t.Errorf("with CRLF: %v", err)
	}

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := cloud()["us-west-2"].certificate
	forCurve := *template
	forCurve.SignatureAlgorithm, forCurve.PublicKey = x509.UnknownSignatureAlgorithm, nil
	curve, err := x509.CreateCertificate(rand.Reader, &forCurve, &forCurve, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	broken := bytes.Clone(template.Raw)
	broken[len(broken)-1] ^= 1
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                            {"", "more.pem: no certificate"},
		"only comments":                      {"# nothing yet\n", "more.pem: no certificate"},
		"a certificate without a region":     {good, "more.pem:1: a certificate without a region"},
		"a second certificate of one region": {"# region: eu-central-1\n" + good + good, "a certificate without a region"},
		"a region without certificate":       {"# region: eu-central-1\n", "no certificate for region eu-central-1"},
		"two regions, one certificate": {"# region: eu-central-1\n# region: eu-west-1\n" + good,
			`more.pem:2: region "eu-west-1"`},
		"one region twice": {"# region: eu-central-1\n" + good + "# region: eu-central-1\n" +
			good, "twice"},
		"an invalid region":                  {"# region: Frankfurt\n" + good, "is not a region"},
		"a region without name":              {"# region:\n" + good, "is not a region"},
		"text":                               {"# region: eu-central-1\nhello\n" + good, "more.pem:2: \"hello\" is neither"},
		"a truncated certificate":            {"# region: eu-central-1\n" + good[:200], "truncated or damaged"},
		"a certificate in the middle of one": {"# region: eu-central-1\n" + good[:200] + "\n" + good, "truncated or damaged"},
		"a private key": {"# region: eu-central-1\n" + block("PRIVATE KEY", []byte("x")),
			`type "PRIVATE KEY"`},
		"no certificate in a block": {"# region: eu-central-1\n" + block("CERTIFICATE", []byte("x")),
			"does not parse"},
		"the certificate for the DSA form": {"# region: eu-central-1\n" + block("CERTIFICATE", curve), "another form"},
		"the certificate for the RSA form": {"# region: eu-central-1\n" +
			block("CERTIFICATE", newSigning(1, 1024).certificate.Raw), "1024 bits"},
		"a certificate whose signature fails": {"# region: eu-central-1\n" + block("CERTIFICATE", broken),
			"its own signature"},
		"more bytes than a file may have": {strings.Repeat("#", awsiid.MaxFile+1), "at most"},
		"more regions than there are":     {manyRegions(good), "too many"},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := awsiid.ParseCertificates("more.pem", []byte(c.text))
			var fault *anchors.Error
			if !errors.As(err, &fault) || !strings.Contains(err.Error(), c.want) || all != nil {
				t.Errorf("got %v, want an anchors.Error with %q", err, c.want)
			}
		})
	}
}

func manyRegions(block string) string {
	var b strings.Builder
	for i := range 201 {
		fmt.Fprintf(&b, "# region: xx-test-%d\n%s", i, block)
	}
	return b.String()
}
