// SPDX-License-Identifier: Apache-2.0

package awsiid

import (
	"bytes"
	"cmp"
	"crypto/rsa"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/cms"
)

// Limits of one file of certificates.
const (
	MaxFile         = 1 << 20
	maxCertificates = 200
	minRSABits      = 2048
	maxRSABits      = 4096
)

// RegionCertificate is the certificate with which AWS signs in one region.
type RegionCertificate struct {
	Region      string
	Certificate *x509.Certificate
	File        string // the source
	Line        int    // of the block's BEGIN
}

// Certificates has one certificate for each region. It is read-only.
type Certificates struct{ all []RegionCertificate } // in the order of the regions' names

//go:embed regions.pem
var regions []byte

// Defaults returns the certificates that are part of this version; regions.pem has their sources.
func Defaults() *Certificates { return defaults() }

var defaults = sync.OnceValue(func() *Certificates {
	all, err := ParseCertificates("regions.pem", regions)
	if err != nil {
		panic(err) // a test parses the file
	}
	return (&Certificates{}).With(all...)
})

// With returns a copy with more certificates. For an existing region, the new certificate replaces
// the old one.
func (c *Certificates) With(more ...RegionCertificate) *Certificates {
	all := map[string]RegionCertificate{}
	for _, r := range slices.Concat(c.All(), more) {
		all[r.Region] = r
	}
	return &Certificates{all: slices.SortedFunc(maps.Values(all),
		func(a, b RegionCertificate) int { return cmp.Compare(a.Region, b.Region) })}
}

// Without returns a copy without the certificates of some regions.
func (c *Certificates) Without(regions ...string) *Certificates {
	return &Certificates{all: slices.DeleteFunc(slices.Clone(c.All()),
		func(r RegionCertificate) bool { return slices.Contains(regions, r.Region) })}
}

// Region returns the certificate of one region. There is no default.
func (c *Certificates) Region(name string) (*x509.Certificate, bool) {
	for _, r := range c.All() {
		if r.Region == name {
			return r.Certificate, true
		}
	}
	return nil, false
}

// All returns the certificates, sorted by region. The caller must not change them.
func (c *Certificates) All() []RegionCertificate {
	if c == nil {
		return nil
	}
	return c.all
}

// NotAfter returns the earliest end of a certificate, without those that expired [anchors.KeepExpired]
// before now or earlier. It returns false if there is none.
func (c *Certificates) NotAfter(now time.Time) (time.Time, bool) {
	var next time.Time
	for _, r := range c.All() {
		if end := r.Certificate.NotAfter; end.After(now.Add(-anchors.KeepExpired)) && (next.IsZero() || end.Before(next)) {
			next = end
		}
	}
	return next, !next.IsZero()
}

// signer returns the certificate that a message names. All certificates of AWS have the same
// issuer, but different serial numbers.
func (c *Certificates) signer(m *cms.SignedData) (RegionCertificate, bool) {
	for _, r := range c.All() {
		if m.SignedBy(r.Certificate) {
			return r, true
		}
	}
	return RegionCertificate{}, false
}

const regionMark = "region:"

// ParseCertificates reads a file of PEM blocks, each after its own line "# region: NAME". A file is
// accepted or rejected as a whole. The error is an [anchors.Error].
func ParseCertificates(file string, raw []byte) ([]RegionCertificate, error) {
	fault := func(line int, what, want string) error {
		return &anchors.Error{File: file, Line: line, What: what, Want: want}
	}
	if len(raw) > MaxFile {
		return nil, fault(0, fmt.Sprintf("%d bytes", len(raw)), fmt.Sprintf("at most %d", MaxFile))
	}
	var all []RegionCertificate
	region, line := "", 1
	for rest := raw; len(rest) > 0; {
		text, after, _ := bytes.Cut(rest, []byte("\n"))
		text = bytes.TrimSpace(text)
		if !bytes.HasPrefix(text, []byte("-----BEGIN ")) {
			if name, ok := marked(text); ok {
				switch {
				case region != "":
					return nil, fault(line, fmt.Sprintf("region %q before the certificate of region %q", name, region),
						"one block after each region")
				case !isRegion(name):
					return nil, fault(line, fmt.Sprintf("%.80q is not a region", name), "a name like eu-central-1")
				case slices.ContainsFunc(all, func(r RegionCertificate) bool { return r.Region == name }):
					return nil, fault(line, fmt.Sprintf("region %s twice", name), "one certificate for each region")
				}
				region = name
			} else if len(text) > 0 && text[0] != '#' {
				return nil, fault(line, fmt.Sprintf("%.40q is neither a comment nor a certificate", text),
					"PEM blocks, and comments that begin with #")
			}
			rest, line = after, line+1
			continue
		}
		if region == "" {
			return nil, fault(line, "a certificate without a region", "a line \"# region: NAME\" before each block")
		}
		block, after := pem.Decode(rest)
		// pem.Decode skips what it cannot read. The block must be the one that begins here.
		size := len(rest) - len(after)
		if block == nil || bytes.Count(rest[:size], []byte("-----BEGIN ")) != 1 {
			return nil, fault(line, "a PEM block that is truncated or damaged", "copy it again, from -----BEGIN to -----END")
		}
		c, what := parseRegional(block)
		if what != "" {
			return nil, fault(line, region+": "+what,
				"the region's certificate for RSA-2048 from AWS's documentation (regions-certs)")
		}
		if all = append(all, RegionCertificate{Region: region, Certificate: c, File: file,
			Line: line}); len(all) > maxCertificates {
			return nil, fault(line, "too many certificates", fmt.Sprintf("at most %d in one file", maxCertificates))
		}
		line += bytes.Count(rest[:size], []byte("\n"))
		region, rest = "", after
	}
	switch {
	case region != "":
		return nil, fault(line, "no certificate for region "+region, "a PEM block after the region")
	case len(all) == 0:
		return nil, fault(0, "no certificate in it",
			"a line \"# region: NAME\", then a block that begins with -----BEGIN CERTIFICATE-----")
	}
	return all, nil
}

// NamedRegions returns the regions that a file names, even if the file does not parse.
func NamedRegions(raw []byte) []string {
	var all []string
	for line := range bytes.Lines(raw[:min(len(raw), MaxFile)]) {
		if name, ok := marked(bytes.TrimSpace(line)); ok && isRegion(name) && len(all) < maxCertificates {
			all = append(all, name)
		}
	}
	return all
}

// marked returns the name in a line "# region: NAME".
func marked(line []byte) (string, bool) {
	text, comment := strings.CutPrefix(string(line), "#")
	name, ok := strings.CutPrefix(strings.TrimSpace(text), regionMark)
	return strings.TrimSpace(name), comment && ok
}

// parseRegional parses one block. If it fails, the second result is the problem.
func parseRegional(block *pem.Block) (*x509.Certificate, string) {
	if block.Type != "CERTIFICATE" {
		return nil, fmt.Sprintf("a block of type %.40q", block.Type)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, "the certificate does not parse: " + err.Error()
	}
	key, ok := c.PublicKey.(*rsa.PublicKey)
	if !ok {
		return nil, fmt.Sprintf("a key of type %s: this is the certificate of another form of the document",
			c.PublicKeyAlgorithm)
	}
	if n := key.N.BitLen(); n < minRSABits || n > maxRSABits {
		return nil, fmt.Sprintf("an RSA key of %d bits: this is the certificate of another form of the document", n)
	}
	if !bytes.Equal(c.RawSubject, c.RawIssuer) {
		return nil, "not self-signed"
	}
	// Trust does not depend on the certificate's own signature, but a broken signature means a
	// damaged file.
	var insecure x509.InsecureAlgorithmError
	if err := c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature); err != nil &&
		!errors.As(err, &insecure) {
		return nil, "its own signature does not verify"
	}
	return c, ""
}
