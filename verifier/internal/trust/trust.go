// Package trust is every anchor for the clouds' documents and for certified AKs:
// the embedded defaults, and what an administrator put in their place.
//
//	ak-roots            authorities that certify AKs (Google, Azure): in place of the embedded
//	azure-roots         authorities behind Azure's attested documents: in place of the embedded
//	aws-certificates    AWS's certificates by region: each in place of, or beside, the embedded
//	google-keys         keys that sign Google's identity tokens: beside those that are fetched
//
// An administrator who replaces anchors distrusts the others. So a file that was
// never readable leaves its section with nothing rather than with the defaults; one
// of aws-certificates, the regions that it names.
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

// Section names what an anchor is for: a folder of the standalone verifier, the
// content of a ConfigMap in a cluster.
type Section string

// The sections.
const (
	AKRoots         Section = "ak-roots"
	AzureRoots      Section = "azure-roots"
	AWSCertificates Section = "aws-certificates"
	GoogleKeys      Section = "google-keys"
)

// Sections are all of them, with the endings of their files. Whoever reads anchors reads each of these.
var Sections = map[Section][]string{
	AKRoots: {".pem", ".crt"}, AzureRoots: {".pem", ".crt"}, AWSCertificates: {".pem", ".crt"}, GoogleKeys: {".json"},
}

// File is what one file of a section holds.
type File struct {
	Section Section
	// Broken: it has never been readable. The section then has no defaults.
	Broken bool
	// Regions are those that a broken file of aws-certificates names. Of none, it may
	// be about any.
	Regions []string

	sum     [sha256.Size]byte // of path and content: what tells one File from another
	anchors []anchors.Anchor
	aws     []awsiid.RegionCertificate
	google  *gcpidentity.StaticKeys
}

// Parse reads a file of a section. With a problem the File is broken, and holds nothing.
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
		err = fmt.Errorf("%q is no section of anchors", section)
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

// Problem is an error of a parser of anchors, with its line.
func Problem(path string, err error) manifest.Problem {
	p := manifest.Problem{File: path, What: err.Error()}
	var at *anchors.Error
	if errors.As(err, &at) {
		p.Line, p.What, p.Want = at.Line, at.What, at.Want
	}
	return p
}

// Trust is what is in force. It is read only.
type Trust struct {
	AK     tpm2.AKCertificateEndorser
	Azure  *anchors.Set
	AWS    *awsiid.Certificates
	Google *gcpidentity.StaticKeys

	ak *anchors.Set
}

// New joins files. What contradicts each other is a problem, and not in force.
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
	pick := func(s Section, defaults func() []anchors.Anchor) *anchors.Set {
		if own[s] {
			return anchors.NewSet(bundles[s]...)
		}
		return anchors.NewSet(defaults())
	}
	var problems []manifest.Problem
	for _, s := range []Section{AKRoots, AzureRoots} {
		some := slices.Concat(bundles[s]...)
		if len(some) > 0 && !slices.ContainsFunc(some, func(a anchors.Anchor) bool { return a.Root }) {
			problems = append(problems, manifest.Problem{File: some[0].File,
				What: fmt.Sprintf("there is no root in %s, so nothing is trusted", s),
				Want: fmt.Sprintf("your files are in place of what is built in: begin with 'mcs-attest-verifier anchors export %s'",
					s)})
		}
	}
	t := &Trust{Azure: pick(AzureRoots, azureattested.DefaultRoots), ak: pick(AKRoots, tpm2.DefaultAKRoots),
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
			problems = append(problems, manifest.Problem{File: string(s), What: "no anchor is in force: a file could never " +
				"be read, and everything that needs one is refused", Want: "mend it, or remove it to trust what is built in"})
		}
	}
	keys, err := gcpidentity.JoinKeys(google...)
	if err != nil {
		return t, append(problems, Problem(string(GoogleKeys), err))
	}
	t.Google = keys
	return t, problems
}

// unambiguous takes out the regions for which two files have two certificates: none
// of them counts, nor the embedded one, which an administrator meant to replace.
func unambiguous(all []awsiid.RegionCertificate) (
	taken []awsiid.RegionCertificate, contested []string, problems []manifest.Problem) {
	for i, r := range all {
		other := slices.IndexFunc(all, func(o awsiid.RegionCertificate) bool {
			return o.Region == r.Region && !o.Certificate.Equal(r.Certificate)
		})
		if other < 0 {
			taken = append(taken, r)
			continue
		}
		contested = append(contested, r.Region)
		if other < i { // each contradiction once
			problems = append(problems, manifest.Problem{File: r.File, Line: r.Line,
				What: fmt.Sprintf("region %s has another certificate in %s:%d", r.Region, all[other].File, all[other].Line),
				Want: "one certificate for each region; until then none counts"})
		}
	}
	return taken, contested, problems
}

// Joined is the last that was joined. Verified chains are kept for as long as the
// pools are the same, so what has not changed is not made anew.
type Joined struct {
	files    []File
	trust    *Trust
	problems []manifest.Problem
}

// Join is [New], where something has changed.
func (j *Joined) Join(files []File) (*Trust, []manifest.Problem) {
	if j.trust == nil || !slices.EqualFunc(files, j.files, File.same) {
		j.files = files
		j.trust, j.problems = New(files...)
	}
	return j.trust, j.problems
}

// same compares no anchors: a new section has nothing to add here.
func (f File) same(o File) bool {
	return f.Section == o.Section && f.Broken == o.Broken && f.sum == o.sum
}

// Count is how many anchors of each section are in force.
func (t *Trust) Count() map[Section]int {
	return map[Section]int{AKRoots: t.ak.Len(), AzureRoots: t.Azure.Len(), AWSCertificates: len(t.AWS.All()),
		GoogleKeys: len(t.Google.All())}
}

// NotAfter is when the next anchor of each section ends. A section without such an
// end is not in it.
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

// Anchor is one line of a list of all that is in force.
type Anchor struct {
	Section  Section   `json:"section"`
	Name     string    `json:"name"`
	From     string    `json:"from"`
	NotAfter time.Time `json:"notAfter,omitzero"`
}

// origin is where an anchor comes from. What is built in has no folder of its own.
func origin(file string, line int) string {
	at := fmt.Sprintf("%s:%d", file, line)
	if !filepath.IsAbs(file) {
		return "built in: " + at
	}
	return at
}

// All are the anchors in force.
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

// Export writes what is in force of a section as a file of that section: to be
// changed, and put where this verifier reads its own.
func (t *Trust) Export(s Section) ([]byte, error) {
	var b bytes.Buffer
	block := func(c *x509.Certificate) error { return pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}) }
	authorities := func(set *anchors.Set) error {
		for _, a := range set.All() {
			for line := range strings.Lines(a.Provenance) {
				fmt.Fprintf(&b, "# %s\n", strings.TrimRight(line, "\n"))
			}
			if err := block(a.Certificate); err != nil {
				return err
			}
		}
		return nil
	}
	switch s {
	case AKRoots:
		err := authorities(t.ak)
		return b.Bytes(), err
	case AzureRoots:
		err := authorities(t.Azure)
		return b.Bytes(), err
	case AWSCertificates:
		for _, r := range t.AWS.All() {
			fmt.Fprintf(&b, "# region: %s\n", r.Region)
			if err := block(r.Certificate); err != nil {
				return nil, err
			}
		}
		return b.Bytes(), nil
	}
	return nil, fmt.Errorf("%s: there is nothing to export; known are %s, %s and %s", s, AKRoots, AzureRoots,
		AWSCertificates)
}
