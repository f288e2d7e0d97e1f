// SPDX-License-Identifier: Apache-2.0

package awsiid_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awsiid"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// The exact forms of what names an instance, and the size of a document.
func TestVerify_FormsOfADocument(t *testing.T) {
	padded := func(size int) []string { return []string{"{", "{" + strings.Repeat(" ", size-len(content()))} }
	instanceID := func(id string) []string { return []string{instance, id} }
	zone := func(name string) []string { return []string{"eu-central-1a", name} }
	more := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "\"key%d\" : null, ", i)
		}
		return b.String()
	}
	for name, c := range map[string]struct {
		pairs []string
		want  string // "" if it is accepted
	}{
		"16 KiB":              {padded(16384), ""},
		"more than 16 KiB":    {padded(16385), "a content of 16385 bytes; at most 16384"},
		"an ID of 8 digits":   {instanceID("i-12345678"), ""},
		"an ID of 7 digits":   {instanceID("i-1234567"), "is not an instance id"},
		"an ID of 9 digits":   {instanceID("i-123456789"), "is not an instance id"},
		"an ID of 16 digits":  {instanceID(instance[:18]), "is not an instance id"},
		"an ID of 18 digits":  {instanceID(instance + "0"), "is not an instance id"},
		"an ID in capitals":   {instanceID(strings.ToUpper(instance)), "is not an instance id"},
		"an ID without i-":    {instanceID(instance[2:]), "is not an instance id"},
		"a letter over f":     {instanceID("i-1234567g"), "is not an instance id"},
		"a local zone":        {zone("eu-central-1-fra-1a"), ""},
		"a zone of 64 bytes":  {zone("eu-central-1" + strings.Repeat("a", 52)), ""},
		"a zone of 65 bytes":  {zone("eu-central-1" + strings.Repeat("a", 53)), "is not in region"},
		"a zone of no letter": {zone("eu-central-1"), "is not in region"},
		"another region":      {zone("eu-central-11a"), "is not in region"},
		"a zone in capitals":  {zone("eu-central-1A"), "is not in region"},
		"an account of 11":    {[]string{account, account[:11]}, "is not 12 digits"},
		"an account of 13":    {[]string{account, account + "0"}, "is not 12 digits"},
		"an account's letter": {[]string{account, account[:11] + "a"}, "is not 12 digits"},
		"no account":          {[]string{account, ""}, "no accountId"},
		"no zone":             {[]string{"eu-central-1a", ""}, "no availabilityZone"},
		"no instance":         {[]string{instance, ""}, "no instanceId"},
		"no time":             {[]string{"2026-11-21T11:55:00Z", ""}, "no pendingTime"},
		"no region":           {[]string{`"eu-central-1"`, `""`}, "no region"},
		"no type, which is only for the administrator": {[]string{`"instanceType" : "m6i.xlarge",`, ""}, ""},
		"separators in texts": {[]string{"ami-0fa9e1f64142cde17", "a,b:{[ ~",
			`"kernelId" : null`, `"kernelId" : "\",\"accountId\":\"x\\"`}, ""},
		"an image of no text":     {[]string{`"ami-0fa9e1f64142cde17"`, "7"}, "imageId is not a plain string"},
		"an image of a number":    {[]string{`"ami-0fa9e1f64142cde17"`, "77"}, "imageId is not a plain string"},
		"an image of null":        {[]string{`"ami-0fa9e1f64142cde17"`, "null"}, ""},
		"an instance of null":     {[]string{`"` + instance + `"`, "null"}, "instanceId is not a plain string"},
		"an image with DEL":       {[]string{"ami-0fa9e1f64142cde17", "a\x7f"}, "imageId is not a plain string"},
		"a region of no form":     {[]string{`"eu-central-1"`, `"frankfurt"`}, `region "frankfurt" is not a region`},
		"a list":                  {[]string{"{", "[", "}", "]", " : ", ", "}, "not a JSON object"},
		"64 keys":                 {[]string{`"version"`, more(49) + `"version"`}, ""},
		"65 keys":                 {[]string{`"version"`, more(50) + `"version"`}, "more than 64 keys"},
		"bytes that are no UTF-8": {[]string{"x86_64", "\xff"}, "not JSON"},
		"a time without zone":     {[]string{"11:55:00Z", "11:55:00"}, "is not a time"},
	} {
		raw := signedIn(t, "eu-central-1", content(c.pairs...))
		_, err := verifier(nil).Verify(context.Background(), document(raw), evidence.Binding{}, now)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	raw := signedIn(t, "eu-central-1", content())
	raw[len(raw)-40] ^= 1
	_, err := verifier(nil).Verify(context.Background(), document(raw), evidence.Binding{}, now)
	if err == nil || !strings.Contains(err.Error(), "with the certificate of region eu-central-1") {
		t.Errorf("an altered signature: %v", err)
	}
}

// A stop and a start after the document change the launch time by more than AWS's clocks differ.
func TestConfirm_TheLaunchTimeMayBeFiveMinutesLater(t *testing.T) {
	for later, ok := range map[time.Duration]bool{5 * time.Minute: true, 5*time.Minute + 1: false} {
		answer := honestInstance()
		answer.Launched = started.Add(later)
		s, err := appraise(verifier(&ec2{answer: answer}), document(signedIn(t, "eu-central-1", content())))
		if (err == nil) != ok || ok && !s.Created.Equal(answer.Launched) ||
			!ok && reason.From(err).Code != reason.DocumentNotFresh {
			t.Errorf("%v later: %v", later, err)
		}
	}
}

func TestNotAfter_IsTheNextEnd(t *testing.T) {
	until := func(year int) *x509.Certificate {
		return &x509.Certificate{NotAfter: time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)}
	}
	all := (*awsiid.Certificates)(nil).With(awsiid.RegionCertificate{Region: "a", Certificate: until(2030)},
		awsiid.RegionCertificate{Region: "b", Certificate: until(2028)},
		awsiid.RegionCertificate{Region: "c", Certificate: until(2029)})
	for day, want := range map[string]int{"2027-01-01": 2028, "2028-01-30": 2028, "2028-01-31": 2029, "2029-06-01": 2030,
		"2030-02-01": 0} {
		now, err := time.Parse(time.DateOnly, day)
		if err != nil {
			t.Fatal(err)
		}
		next, ok := all.NotAfter(now)
		if ok != (want != 0) || ok && next.Year() != want {
			t.Errorf("on %s: %s, %v", day, next, ok)
		}
	}
}

func TestNamedRegions_FormsOfALine(t *testing.T) {
	for line, want := range map[string]string{
		"# region: eu-central-1": "eu-central-1", "#region:us-gov-west-1 \r": "us-gov-west-1", "region: eu-central-1": "",
		"# eu-central-1": "", "eu-central-1": "", "# region: eu-1": "", "# region: eu-central-a": "",
		"# region: eu-c3ntral-1": "", "# region: eu--1": "", "# region: a-bcdefghijklmnopqrstuvwxyzabcd-9": "",
		"# region: a-bcdefghijklmnopqrstuvwxyzabc-9": "a-bcdefghijklmnopqrstuvwxyzabc-9",
	} {
		if got := strings.Join(awsiid.NamedRegions([]byte("x\n"+line)), " "); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	if got := awsiid.NamedRegions([]byte(strings.Repeat("# region: xx-test-1\n", 201))); len(got) != 200 {
		t.Errorf("%d regions", len(got))
	}
	const last = "# region: xx-test-1"
	for size, want := range map[int]int{1 << 20: 1, 1<<20 + 1: 0} {
		file := append(bytes.Repeat([]byte("\n"), size-len(last)), last...)
		if got := awsiid.NamedRegions(file); len(got) == 1 && got[0] == "xx-test-1" != (want == 1) || len(got) > 1 {
			t.Errorf("%d bytes: %q", size, got)
		}
	}
}

// A key's size is checked before its certificate's signature, which these do not have.
func TestParseCertificates_SizesOfKeys(t *testing.T) {
	s := cloud()["us-west-2"]
	for bits, want := range map[int]string{2047: "an RSA key of 2047 bits", 2048: "its own signature",
		4096: "its own signature", 4097: "an RSA key of 4097 bits"} {
		key := &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), bits-1, 1), E: 65537}
		der, err := x509.CreateCertificate(rand.Reader, s.certificate, s.certificate, key, s.key)
		if err != nil {
			t.Fatal(err)
		}
		_, err = awsiid.ParseCertificates("f.pem", []byte("# region: eu-central-1\n"+block("CERTIFICATE", der)))
		if err == nil || !strings.Contains(err.Error(), "f.pem:2: eu-central-1: "+want) {
			t.Errorf("%d bits: %v", bits, err)
		}
	}
}

func TestParseCertificates_SizeOfAFile(t *testing.T) {
	good := "# region: eu-central-1\n" + block("CERTIFICATE", cloud()["us-west-2"].certificate.Raw)
	for size, ok := range map[int]bool{1 << 20: true, 1<<20 + 1: false} {
		file := good + "#" + strings.Repeat("x", size-len(good)-1)
		all, err := awsiid.ParseCertificates("f.pem", []byte(file))
		if (err == nil) != ok || ok && len(all) != 1 || !ok && err.Error() != "f.pem: 1048577 bytes; at most 1048576" {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	der := block("CERTIFICATE", cloud()["us-west-2"].certificate.Raw)
	most, _, _ := strings.Cut(manyRegions(der), "# region: xx-test-200\n")
	if all, err := awsiid.ParseCertificates("f.pem", []byte(most)); err != nil || len(all) != 200 {
		t.Errorf("200 certificates: %d, %v", len(all), err)
	}
	lines := strings.Count(good, "\n")
	for more, want := range map[string]string{
		"x":                  fmt.Sprintf("f.pem:%d: \"x\" is neither", lines+1),
		"\n\n-----BEGIN X":   fmt.Sprintf("f.pem:%d: a certificate without a region", lines+3),
		"# region: a-test-1": fmt.Sprintf("f.pem:%d: no certificate for region a-test-1", lines+2),
	} {
		if _, err := awsiid.ParseCertificates("f.pem", []byte(good+more)); err == nil ||
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := awsiid.ParseCertificates("f.pem", nil); err == nil || !strings.HasPrefix(err.Error(), "f.pem: no cert") {
		t.Errorf("nothing: %v", err)
	}
}
