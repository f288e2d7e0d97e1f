// SPDX-License-Identifier: Apache-2.0

// Package trust has the anchors for the clouds' documents and for certified AKs: the embedded defaults,
// and those with which an administrator replaced them.
//
//	ak-roots            CAs that certify AKs (Google, Azure): replace the embedded ones
//	azure-roots         CAs of Azure's attested documents: replace the embedded ones
//	aws-certificates    AWS's certificates by region: each replaces or complements the embedded ones
//	google-keys         keys that sign Google's identity tokens: complement those that are fetched
//
// An administrator who replaces anchors distrusts the others. So if a file was never readable, its
// section has no anchors instead of the defaults. For aws-certificates, this applies to the regions
// that the file names.
package trust

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awsiid"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
)

// Section is a purpose of anchors: a folder of the standalone verifier, or the content of a ConfigMap
// in a cluster.
type Section string

// The sections.
const (
	AKRoots         Section = "ak-roots"
	AzureRoots      Section = "azure-roots"
	AWSCertificates Section = "aws-certificates"
	GoogleKeys      Section = "google-keys"
)

// Sections has all sections with the extensions of their files.
var Sections = map[Section][]string{
	AKRoots: {".pem", ".crt"}, AzureRoots: {".pem", ".crt"}, AWSCertificates: {".pem", ".crt"}, GoogleKeys: {".json"},
}

// File is the content of one file of a section.
type File struct {
	Section Section
	// Broken means that the file was never readable. The section then has no defaults.
	Broken bool
	// Regions are those that a broken file of aws-certificates names. If it names none, it may concern
	// any region.
	Regions []string

	sum     [sha256.Size]byte // the hash of path and content, which identifies the File
	anchors []anchors.Anchor
	aws     []awsiid.RegionCertificate
	google  *gcpidentity.StaticKeys
}

// Parse parses a file of a section. If there is a problem, the File is broken and empty.
func Parse(section Section, path string, raw []byte) (File, []manifest.Problem) {
	f := File{Section: section, sum: sha256.Sum256(slices.Concat([]byte(path), []byte{0}, raw))}
	var err error
	switch section {
	case AKRoots, AzureRoots:
		f.anchors, err = anchors.Parse(path, raw)
	case AWSCertificates:
		f.aws, err = awsiid.ParseCertificates(path, raw)
	case GoogleKeys:
		f.google, err = gcpidentity.ParseKeys(path, raw)
	default:
		err = fmt.Errorf("%q is not a section of anchors", section)
	}
	if err != nil {
		f = File{Section: section, Broken: true, sum: f.sum}
		if section == AWSCertificates {
			f.Regions = awsiid.NamedRegions(raw)
		}
		return f, []manifest.Problem{Problem(path, err)}
	}
	return f, nil
}

// Problem returns an error of a parser of anchors with its line.
func Problem(path string, err error) manifest.Problem {
	p := manifest.Problem{File: path, What: err.Error()}
	if at, ok := errors.AsType[*anchors.Error](err); ok {
		p.Line, p.What, p.Want = at.Line, at.What, at.Want
	}
	return p
}

// Trust has the anchors in force. It is immutable.
type Trust struct {
	AK     tpm2.AKCertificateEndorser
	Azure  *anchors.Set
	AWS    *awsiid.Certificates
	Google *gcpidentity.StaticKeys

	ak *anchors.Set
}

// New joins files. Anchors that contradict each other are reported as problems and are not in force.
// Built-in anchors that are left out are a warning.
func New(files ...File) (*Trust, []manifest.Problem) {
	own := map[Section]bool{}
	broken := map[Section]bool{}
	var lost []string // regions that a broken file names
	bundles := map[Section][][]anchors.Anchor{}
	var aws []awsiid.RegionCertificate
	var google []*gcpidentity.StaticKeys
	for _, f := range files {
		own[f.Section] = true
		broken[f.Section] = broken[f.Section] || f.Broken && len(f.Regions) == 0
		lost = append(lost, f.Regions...)
		bundles[f.Section] = append(bundles[f.Section], f.anchors)
		aws = append(aws, f.aws...)
		if f.google != nil {
			google = append(google, f.google)
		}
	}
	var problems []manifest.Problem
	pick := func(s Section, builtIn []anchors.Anchor) *anchors.Set {
		if !own[s] {
			return anchors.NewSet(builtIn)
		}
		set := anchors.NewSet(bundles[s]...)
		all := set.All()
		if len(all) == 0 {
			return set // reported below
		}
		p := manifest.Problem{File: all[0].File, Want: fmt.Sprintf(
			"your files replace the built-in ones: start with 'mcs-attest-verifier anchors export %s'", s)}
		if !slices.ContainsFunc(all, func(a anchors.Anchor) bool { return a.Root }) {
			p.What = fmt.Sprintf("%s has no root, so nothing is trusted", s)
		} else if n := anchors.NewSet(all, builtIn).Len() - len(all); n > 0 {
			p.What, p.Warning = fmt.Sprintf("the files of %s leave out %d built-in anchors", s, n), true
		}
		if p.What != "" {
			problems = append(problems, p)
		}
		return set
	}
	t := &Trust{Azure: pick(AzureRoots, azureattested.DefaultRoots()), ak: pick(AKRoots, tpm2.DefaultAKRoots()),
		AWS: awsiid.Defaults()}
	t.AK = tpm2.NewAKCertificateEndorser(t.ak.All())
	if broken[AWSCertificates] {
		t.AWS = &awsiid.Certificates{}
	}
	aws, contested, twice := unambiguous(aws)
	problems = append(problems, twice...)
	t.AWS = t.AWS.Without(lost...).With(aws...).Without(contested...)
	for s, n := range t.Count() {
		if n == 0 && own[s] && s != GoogleKeys {
			problems = append(problems, manifest.Problem{File: string(s), What: "no anchor is in force: a file was never " +
				"readable, and evidence that needs an anchor is denied",
				Want: "fix the file, or remove it to trust the built-in anchors"})
		}
	}
	keys, err := gcpidentity.JoinKeys(google...)
	if err != nil {
		return t, append(problems, Problem(string(GoogleKeys), err))
	}
	t.Google = keys
	return t, problems
}

// unambiguous removes the regions for which two files have different certificates. Neither is in force,
// nor is the embedded one, because an administrator meant to replace it.
func unambiguous(all []awsiid.RegionCertificate) (
	accepted []awsiid.RegionCertificate, contested []string, problems []manifest.Problem) {
	for i, r := range all {
		other := slices.IndexFunc(all, func(o awsiid.RegionCertificate) bool {
			return o.Region == r.Region && !o.Certificate.Equal(r.Certificate)
		})
		if other < 0 {
			accepted = append(accepted, r)
			continue
		}
		contested = append(contested, r.Region)
		if other < i { // each contradiction once
			problems = append(problems, manifest.Problem{File: r.File, Line: r.Line,
				What: fmt.Sprintf("region %s has another certificate in %s:%d", r.Region, all[other].File, all[other].Line),
				Want: "keep one certificate for each region; until then none is in force"})
		}
	}
	return accepted, contested, problems
}

// Joined caches the last result of Join. Chains are cached per pool of certificates, so the pools must
// not be recreated without a change.
type Joined struct {
	files    []File
	trust    *Trust
	problems []manifest.Problem
}

// Join is [New], unless nothing has changed.
func (j *Joined) Join(files []File) (*Trust, []manifest.Problem) {
	if j.trust == nil || !slices.EqualFunc(files, j.files, File.same) {
		j.files = files
		j.trust, j.problems = New(files...)
	}
	return j.trust, j.problems
}

// same reports whether two Files are equal. It does not compare the anchors.
func (f File) same(o File) bool {
	return f.Section == o.Section && f.Broken == o.Broken && f.sum == o.sum
}

// Count returns the number of anchors in force by section.
func (t *Trust) Count() map[Section]int {
	return map[Section]int{AKRoots: t.ak.Len(), AzureRoots: t.Azure.Len(), AWSCertificates: len(t.AWS.All()),
		GoogleKeys: len(t.Google.All())}
}

// NotAfter returns the earliest end of an anchor of each section, as in [anchors.Set]. It omits sections
// whose anchors do not expire.
func (t *Trust) NotAfter(now time.Time) map[Section]time.Time {
	ends := map[Section]time.Time{}
	for s, next := range map[Section]func(time.Time) (time.Time, bool){AKRoots: t.ak.NotAfter,
		AzureRoots: t.Azure.NotAfter, AWSCertificates: t.AWS.NotAfter} {
		if at, ok := next(now); ok {
			ends[s] = at
		}
	}
	return ends
}

// Anchor is one line of the list of anchors in force.
type Anchor struct {
	Section  Section   `json:"section"`
	Name     string    `json:"name"`
	From     string    `json:"from"`
	NotAfter time.Time `json:"notAfter,omitzero"`
}

// origin returns where an anchor comes from. A built-in one has no folder.
func origin(file string, line int) string {
	at := fmt.Sprintf("%s:%d", file, line)
	if !filepath.IsAbs(file) {
		return "built in: " + at
	}
	return at
}

// All returns the anchors in force.
func (t *Trust) All() []Anchor {
	var all []Anchor
	for _, set := range []struct {
		section Section
		anchors *anchors.Set
	}{{AKRoots, t.ak}, {AzureRoots, t.Azure}} {
		for _, a := range set.anchors.All() {
			all = append(all, Anchor{Section: set.section, Name: a.Certificate.Subject.String(), From: origin(a.File, a.Line),
				NotAfter: a.Certificate.NotAfter})
		}
	}
	for _, r := range t.AWS.All() {
		all = append(all, Anchor{Section: AWSCertificates, Name: r.Region, From: origin(r.File, r.Line),
			NotAfter: r.Certificate.NotAfter})
	}
	for _, k := range t.Google.All() {
		all = append(all, Anchor{Section: GoogleKeys, Name: k.ID, From: fmt.Sprintf("%s:%d", k.File, k.Line)})
	}
	return all
}

// Export returns the anchors in force of a section as a file of that section, which an administrator
// can change and install.
func (t *Trust) Export(s Section) ([]byte, error) {
	var b bytes.Buffer
	block := func(c *x509.Certificate) error { return pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}) }
	authorities := func(set *anchors.Set) ([]byte, error) {
		for _, a := range set.All() {
			for line := range strings.Lines(a.Provenance) {
				fmt.Fprintf(&b, "# %s\n", strings.TrimRight(line, "\n"))
			}
			if err := block(a.Certificate); err != nil {
				return nil, err
			}
		}
		return b.Bytes(), nil
	}
	switch s {
	case AKRoots:
		return authorities(t.ak)
	case AzureRoots:
		return authorities(t.Azure)
	case AWSCertificates:
		for _, r := range t.AWS.All() {
			fmt.Fprintf(&b, "# region: %s\n", r.Region)
			if err := block(r.Certificate); err != nil {
				return nil, err
			}
		}
		return b.Bytes(), nil
	}
	return nil, fmt.Errorf("%s has nothing to export; the sections are %s, %s and %s", s, AKRoots, AzureRoots,
		AWSCertificates)
}
