// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awsiid"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
)

var now = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

// authority makes a root in PEM that ends at a time.
func authority(t *testing.T, name string, ends time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: now.AddDate(-1, 0, 0), NotAfter: ends,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func regional(t *testing.T, region string) []byte {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "region"},
		NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(10, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("# region: "+region+"\n"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
}

func parse(t *testing.T, s trust.Section, raw []byte) trust.File {
	t.Helper()
	f, problems := trust.Parse(s, "own", raw)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return f
}

func join(t *testing.T, files ...trust.File) *trust.Trust {
	t.Helper()
	all, problems := trust.New(files...)
	if manifest.Failed(problems) {
		t.Fatal(problems)
	}
	return all
}

func TestDefaults(t *testing.T) {
	d := join(t)
	for s, n := range d.Count() {
		if (n == 0) != (s == trust.GoogleKeys) {
			t.Errorf("%s: %d by default", s, n)
		}
	}
	for s, at := range d.NotAfter(time.Now()) {
		if time.Until(at) < 180*24*time.Hour {
			t.Errorf("%s: an anchor ends at %s, in less than 180 days", s, at)
		}
	}
}

// Anchors are replaced, not added to: who replaces them distrusts the others.
func TestOwnRootsReplaceTheDefaults(t *testing.T) {
	d := join(t)
	for _, s := range []trust.Section{trust.AKRoots, trust.AzureRoots} {
		own := join(t, parse(t, s, authority(t, "own", now.AddDate(5, 0, 0))))
		if n := own.Count()[s]; n != 1 {
			t.Errorf("%s: %d anchors", s, n)
		}
		for other, n := range own.Count() {
			if other != s && n != d.Count()[other] {
				t.Errorf("%s changed %s", s, other)
			}
		}
	}
}

func TestCertificateOfARegion_IsReplacedWithoutTheOthers(t *testing.T) {
	own := join(t, parse(t, trust.AWSCertificates, regional(t, "eu-central-1")),
		parse(t, trust.AWSCertificates, regional(t, "xx-new-1")))
	defaults := awsiid.Defaults()
	if own.Count()[trust.AWSCertificates] != len(defaults.All())+1 {
		t.Errorf("%d certificates", own.Count()[trust.AWSCertificates])
	}
	changed, _ := own.AWS.Region("eu-central-1")
	before, _ := defaults.Region("eu-central-1")
	if changed == nil || before == nil || bytes.Equal(changed.Raw, before.Raw) {
		t.Error("the region's certificate was not replaced")
	}
	same, _ := own.AWS.Region("us-east-1")
	if same == nil {
		t.Error("another region is gone")
	}
}

// A file that was never readable may be the one that distrusts an authority.
func TestAttack_T15_ABrokenFileDoesNotBringDistrustedAnchorsBack(t *testing.T) {
	// A damaged file about one region removes only that region.
	f, _ := trust.Parse(trust.AWSCertificates, "own", []byte("# region: eu-central-1\n-----BEGIN CERTIFICATE-----\nAAAA"))
	all, problems := trust.New(f)
	if _, ok := all.AWS.Region("eu-central-1"); ok {
		t.Error("the certificate that an administrator meant to replace is in force")
	}
	if n := all.Count()[trust.AWSCertificates]; n != join(t).Count()[trust.AWSCertificates]-1 || len(problems) > 0 {
		t.Errorf("%d regions are left; %v", n, problems)
	}
	for s := range trust.Sections {
		f, problems := trust.Parse(s, "own", []byte("damaged"))
		if len(problems) == 0 || !f.Broken {
			t.Fatalf("%s: damaged bytes are read", s)
		}
		all, _ := trust.New(f)
		if n := all.Count()[s]; n != 0 {
			t.Errorf("%s: %d anchors are trusted", s, n)
		}
	}
	// The honest variant: the same section with a file that can be read.
	if join(t, parse(t, trust.AzureRoots, authority(t, "own", now.AddDate(5, 0, 0)))).Count()[trust.AzureRoots] != 1 {
		t.Error("a good file is not taken")
	}
}

func TestAttack_T15_TheNextExpiryIsReported(t *testing.T) {
	soon, later := now.AddDate(0, 1, 0), now.AddDate(3, 0, 0)
	ended := authority(t, "ended", now.AddDate(0, 0, -30))
	all := join(t, parse(t, trust.AzureRoots,
		bytes.Join([][]byte{authority(t, "later", later), authority(t, "soon", soon), ended}, nil)))
	if at := all.NotAfter(now)[trust.AzureRoots]; !at.Equal(soon) {
		t.Errorf("next end %s", at)
	}
	// The three replace the defaults. The one that ended is listed, too.
	if n := all.Count()[trust.AzureRoots]; n != 3 {
		t.Errorf("%d anchors of Azure", n)
	}
	listed := slices.DeleteFunc(all.All(), func(a trust.Anchor) bool { return a.Section != trust.AzureRoots })
	if len(listed) != 3 {
		t.Errorf("the list has %+v", listed)
	}
}

func TestUnchangedAnchorsAreReused(t *testing.T) {
	var j trust.Joined
	f := parse(t, trust.AzureRoots, authority(t, "own", now.AddDate(5, 0, 0)))
	first, _ := j.Join([]trust.File{f})
	again, _ := j.Join([]trust.File{f})
	if first != again {
		t.Error("created again without a change")
	}
	// The purpose of an anchor is in the text before it.
	marked := parse(t, trust.AKRoots,
		append([]byte("# vouches for: gce instances\n"), authority(t, "own", now.AddDate(5, 0, 0))...))
	if with, _ := j.Join([]trust.File{marked}); len(with.AK.GCE) != 1 {
		t.Errorf("%d anchors name instances", len(with.AK.GCE))
	}
	if other, _ := j.Join([]trust.File{parse(t, trust.AzureRoots,
		authority(t, "own", now.AddDate(5, 0, 0)))}); other == first {
		t.Error("a change is not taken up")
	}
}

// sample is a file of a section, with another anchor each time.
func sample(t *testing.T, s trust.Section) []byte {
	t.Helper()
	switch s {
	case trust.AKRoots, trust.AzureRoots:
		return authority(t, "own", now.AddDate(5, 0, 0))
	case trust.AWSCertificates:
		return regional(t, "eu-central-1")
	case trust.GoogleKeys:
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		const set = `{"keys": [{"kid": "own", "kty": "RSA", "alg": "RS256", "use": "sig", "e": "AQAB", "n": "%s"}]}`
		return fmt.Appendf(nil, set, base64.RawURLEncoding.EncodeToString(key.N.Bytes()))
	}
	t.Fatalf("%s: this test has no file of it", s)
	return nil
}

// An administrator who replaces an anchor distrusts the one before, whatever its section.
func TestJoin_ReplacedAnchorIsNotTrusted(t *testing.T) {
	for s := range trust.Sections {
		t.Run(string(s), func(t *testing.T) {
			var j trust.Joined
			raw := sample(t, s)
			first, found := j.Join([]trust.File{parse(t, s, raw)})
			if again, _ := j.Join([]trust.File{parse(t, s, raw)}); again != first {
				t.Error("the same file read twice is a change")
			}
			if manifest.Failed(found) {
				t.Error(found)
			}
			f, problems := trust.Parse(s, "/moved", sample(t, s))
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			other, _ := j.Join([]trust.File{f})
			if other == first {
				t.Error("a change is not taken up")
			}
			if n, ok := other.Count()[s]; !ok || n == 0 {
				t.Errorf("%d anchors, counted: %t", n, ok)
			}
			own := func(a trust.Anchor) bool { return a.Section == s && strings.HasPrefix(a.From, "/moved:") }
			if !slices.ContainsFunc(other.All(), own) {
				t.Error("it is not listed")
			}
		})
	}
	t.Run("one that this version does not know", func(t *testing.T) {
		var j trust.Joined
		one, _ := trust.Parse("example", "own", []byte("one"))
		other, _ := trust.Parse("example", "own", []byte("other"))
		before, _ := j.Join([]trust.File{one})
		if after, _ := j.Join([]trust.File{other}); after == before {
			t.Error("a change is not taken up")
		}
	})
}

// What is exported and read again is the same trust.
func TestExport(t *testing.T) {
	d := join(t)
	for _, s := range []trust.Section{trust.AKRoots, trust.AzureRoots, trust.AWSCertificates} {
		raw, err := d.Export(s)
		if err != nil {
			t.Fatal(err)
		}
		own := join(t, parse(t, s, raw))
		if own.Count()[s] != d.Count()[s] {
			t.Errorf("%s: %d of %d", s, own.Count()[s], d.Count()[s])
		}
		if s == trust.AKRoots && len(own.AK.GCE) != len(d.AK.GCE) {
			t.Errorf("the purpose of an anchor is lost: %d of %d", len(own.AK.GCE), len(d.AK.GCE))
		}
	}
	if _, err := d.Export(trust.GoogleKeys); err == nil {
		t.Error("keys that are in no file are exported")
	}
}

// Two files that say different things of one region say nothing.
func TestTwoCertificatesForOneRegion(t *testing.T) {
	a, b := regional(t, "eu-central-1"), regional(t, "eu-central-1")
	all, problems := trust.New(parse(t, trust.AWSCertificates, a), parse(t, trust.AWSCertificates, b))
	if len(problems) != 1 {
		t.Errorf("problems %v", problems)
	}
	if _, ok := all.AWS.Region("eu-central-1"); ok {
		t.Error("one of them is in force")
	}
	if _, ok := all.AWS.Region("us-east-1"); !ok {
		t.Error("another region is gone")
	}
	if same, problems := trust.New(parse(t, trust.AWSCertificates, a),
		parse(t, trust.AWSCertificates, a)); len(problems) > 0 || same.Count()[trust.AWSCertificates] == 0 {
		t.Errorf("the same certificate twice: %v", problems)
	}
}

// An administrator may have meant to add an anchor to the built-in ones.
func TestNew_WarnsAboutBuiltInAnchorsThatAreLeftOut(t *testing.T) {
	for _, s := range []trust.Section{trust.AKRoots, trust.AzureRoots} {
		_, problems := trust.New(parse(t, s, authority(t, "own", now.AddDate(5, 0, 0))))
		if want := fmt.Sprintf("leave out %d built-in anchors", join(t).Count()[s]); len(problems) != 1 ||
			!problems[0].Warning || !strings.Contains(problems[0].What, want) {
			t.Errorf("%s: %v, want %q", s, problems, want)
		}
		raw, err := join(t).Export(s)
		if err != nil {
			t.Fatal(err)
		}
		// Two files of a section are joined.
		own := parse(t, s, authority(t, "own", now.AddDate(5, 0, 0)))
		if _, problems := trust.New(own, parse(t, s, raw)); len(problems) > 0 {
			t.Errorf("%s, with the export: %v", s, problems)
		}
	}
}

// An intermediate without a root, in place of the built-in ones, trusts nothing, which is reported.
func TestJoin_ReportsASectionWithoutARoot(t *testing.T) {
	raw, err := join(t).Export(trust.AzureRoots)
	if err != nil {
		t.Fatal(err)
	}
	all, err := anchors.Parse("all", raw)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(a anchors.Anchor) bool { return !a.Root })
	if i < 0 {
		t.Fatal("no intermediate is built in")
	}
	one := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: all[i].Certificate.Raw})
	if _, problems := trust.New(parse(t, trust.AzureRoots, one)); len(problems) != 1 {
		t.Errorf("problems %v", problems)
	}
	if _, problems := trust.New(parse(t, trust.AzureRoots, raw)); len(problems) != 0 {
		t.Errorf("the whole export: %v", problems)
	}
}
