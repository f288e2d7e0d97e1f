// SPDX-License-Identifier: Apache-2.0

// Package anchors reads trust anchors: the roots and intermediates that vouch for endorsement keys
// (RFC 9334, 4.1: endorsers).
//
// Anchors are data in PEM bundles. The text before a certificate is kept as its provenance. A
// bundle is accepted or rejected as a whole: a block that does not parse, a key, a certificate that
// is not a CA's, or a signature that does not verify is an error with its line number.
//
// Expired anchors are kept, because a TPM lives longer than some manufacturers' certificates. The
// verification of a chain chooses its time. [Set.NotAfter] returns when the next anchor expires.
package anchors

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// Limits of one bundle.
const (
	MaxBundle       = 1 << 20
	maxCertificates = 500
	minRSABits      = 2048
	maxRSABits      = 4096 // a larger key would let an attacker waste the verifier's time
)

// Anchor is one trusted certificate, with its origin.
type Anchor struct {
	Certificate *x509.Certificate
	Root        bool   // self-issued; otherwise an intermediate, which only helps to build chains
	File        string // of the bundle
	Line        int    // of the block's BEGIN
	Provenance  string // the text before the block, without "#"
	SHA256      [sha256.Size]byte
}

// String returns the subject and the position.
func (a Anchor) String() string {
	return fmt.Sprintf("%s (%s:%d)", a.Certificate.Subject, a.File, a.Line)
}

// Embedded returns the anchors of the bundles that are part of the program. It panics if one of them
// cannot be read; tests read all of them.
func Embedded(files fs.FS, pattern string) []Anchor {
	var all []Anchor
	names, err := fs.Glob(files, pattern)
	for _, name := range names {
		var raw []byte
		var bundle []Anchor
		if raw, err = fs.ReadFile(files, name); err == nil {
			bundle, err = Parse(name, raw)
		}
		if err != nil {
			break
		}
		all = append(all, bundle...)
	}
	if err != nil {
		panic(err)
	}
	return all
}

// Error is a fault in a bundle, for the author of the bundle.
type Error struct {
	File string
	Line int    // 0 means the whole file
	What string // the problem
	Want string // the expected content
}

// Error returns "file:line: the problem; the expected content".
func (e *Error) Error() string {
	at := e.File
	if e.Line > 0 {
		at = fmt.Sprintf("%s:%d", e.File, e.Line)
	}
	return at + ": " + e.What + "; " + e.Want
}

// Parse reads one bundle.
func Parse(file string, raw []byte) ([]Anchor, error) {
	fault := func(line int, what, want string) error {
		return &Error{File: file, Line: line, What: what, Want: want}
	}
	switch {
	case len(raw) > MaxBundle:
		return nil, fault(0, fmt.Sprintf("%d bytes", len(raw)), fmt.Sprintf("at most %d", MaxBundle))
	case len(raw) > 1 && raw[0] == 0x30 && raw[1] >= 0x80:
		return nil, fault(0, "the file is DER", "PEM: openssl x509 -inform der -in FILE -out FILE.pem")
	}
	var all []Anchor
	rest, line := raw, 1
	for {
		begin := bytes.Index(rest, []byte("-----BEGIN "))
		if begin < 0 {
			break
		}
		text := rest[:begin]
		at := line + bytes.Count(text, []byte("\n"))
		block, after := pem.Decode(rest[begin:])
		// pem.Decode skips what it cannot read. The block must be the one that begins here.
		size := len(rest) - begin - len(after)
		if block == nil || bytes.Count(rest[begin:begin+size], []byte("-----BEGIN ")) != 1 {
			return nil, fault(at, "a PEM block that is truncated or damaged", "copy it again, from -----BEGIN to -----END")
		}
		if block.Type != "CERTIFICATE" {
			want := "only certificates are allowed"
			if strings.Contains(block.Type, "PRIVATE KEY") {
				want = "remove the private key, and replace it if others could read this file"
			}
			return nil, fault(at, fmt.Sprintf("a block of type %.40q", block.Type), want)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fault(at, "the certificate does not parse: "+err.Error(), "get it from its issuer again")
		}
		a := Anchor{Certificate: cert, File: file, Line: at, Provenance: provenance(text), SHA256: sha256.Sum256(cert.Raw)}
		if what, want := a.check(); what != "" {
			return nil, fault(at, fmt.Sprintf("%.200s: %s", cert.Subject, what), want)
		}
		if all = append(all, a); len(all) > maxCertificates {
			return nil, fault(at, "too many certificates", fmt.Sprintf("at most %d in one file", maxCertificates))
		}
		line += bytes.Count(rest[:begin+size], []byte("\n"))
		rest = after
	}
	if len(all) == 0 {
		return nil, fault(0, "no certificate in it", "PEM blocks that begin with -----BEGIN CERTIFICATE-----")
	}
	return all, nil
}

// check reports whether a certificate may be an anchor, and sets Root.
func (a *Anchor) check() (what, want string) {
	c := a.Certificate
	if !c.BasicConstraintsValid || !c.IsCA {
		return "not a CA's certificate", "the root of the TPM's manufacturer; to trust one single TPM, enroll its EK"
	}
	if c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0 {
		return "its key usage does not allow signing certificates", "the certificate of the CA that signs EK certificates"
	}
	switch key := c.PublicKey.(type) {
	case *rsa.PublicKey:
		if n := key.N.BitLen(); n < minRSABits || n > maxRSABits {
			return fmt.Sprintf("an RSA key of %d bits", n), fmt.Sprintf("%d to %d", minRSABits, maxRSABits)
		}
	case *ecdsa.PublicKey:
	default:
		return fmt.Sprintf("a key of type %s", c.PublicKeyAlgorithm), "RSA or ECDSA"
	}
	a.Root = bytes.Equal(c.RawSubject, c.RawIssuer) &&
		(len(c.AuthorityKeyId) == 0 || bytes.Equal(c.AuthorityKeyId, c.SubjectKeyId))
	if !a.Root {
		return "", ""
	}
	// Trust in a root does not depend on its own signature, but a broken signature means a damaged
	// file. SHA-1 signatures are not checked, because Go rejects SHA-1.
	var insecure x509.InsecureAlgorithmError
	if err := c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature); err != nil &&
		!errors.As(err, &insecure) {
		return "its own signature does not verify", "take it from its issuer again"
	}
	return "", ""
}

// provenance returns the text before a block, without comment signs, at most 1000 characters.
func provenance(text []byte) string {
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(string(text), "?")) {
		if line = strings.TrimSpace(strings.TrimLeft(strings.TrimSpace(line), "#")); line != "" {
			lines = append(lines, line)
		}
	}
	s := []rune(strings.Join(lines, "\n"))
	return string(s[:min(len(s), 1000)])
}

// Set is the anchors of several bundles, each certificate once. It is read-only.
type Set struct {
	all                  []Anchor
	roots, intermediates *x509.CertPool
}

// NewSet joins bundles. If a certificate occurs twice, the first one is kept.
func NewSet(bundles ...[]Anchor) *Set {
	s := &Set{roots: x509.NewCertPool(), intermediates: x509.NewCertPool()}
	seen := map[[sha256.Size]byte]bool{}
	for _, a := range slices.Concat(bundles...) {
		if seen[a.SHA256] {
			continue
		}
		seen[a.SHA256] = true
		s.all = append(s.all, a)
		if a.Root {
			s.roots.AddCert(a.Certificate)
		} else {
			s.intermediates.AddCert(a.Certificate)
		}
	}
	return s
}

// Roots returns the trusted roots. The caller must not add to them.
func (s *Set) Roots() *x509.CertPool { return s.roots }

// Intermediates returns certificates that help to build chains and are not trusted by themselves.
// The caller must not add to them.
func (s *Set) Intermediates() *x509.CertPool { return s.intermediates }

// All returns the anchors in the order of their bundles.
func (s *Set) All() []Anchor { return slices.Clone(s.all) }

// Len returns the number of anchors.
func (s *Set) Len() int { return len(s.all) }

// KeepExpired is how long NotAfter returns the end of an expired anchor, so that an alert does not end
// when the anchor expires.
const KeepExpired = 30 * 24 * time.Hour

// NotAfter returns the earliest end of an anchor, without those that expired [KeepExpired] before now
// or earlier. It returns false if there is none.
func (s *Set) NotAfter(now time.Time) (time.Time, bool) {
	var next time.Time
	for _, a := range s.all {
		if end := a.Certificate.NotAfter; end.After(now.Add(-KeepExpired)) && (next.IsZero() || end.Before(next)) {
			next = end
		}
	}
	return next, !next.IsZero()
}
