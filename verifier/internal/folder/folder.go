// SPDX-License-Identifier: Apache-2.0

// Package folder reads the folder of a standalone verifier and follows its changes.
//
//	machines/*.yaml           Machines, MachineAttestations
//	attestations/*.yaml       the same; `enroll` writes here
//	policies/*.yaml           AttestationPolicies
//	reference-values/*.yaml   ReferenceValues
//	ek-roots/*.pem            certificates of TPM manufacturers
//	ak-roots/, azure-roots/, aws-certificates/, google-keys/
//	                          anchors of clouds; see package trust
//	configs/<pool>.ign        rendered Ignition configs
//
// The content becomes a [Snapshot], which is immutable. A change in the folder creates the next one.
// Files are independent: a broken one keeps its last good state, is reported with its line, and does
// not affect the others. A missing folder counts as empty. Names that begin with "." and other
// extensions are ignored.
//
// A file that is broken when the verifier starts has no last good state. It is listed in
// Snapshot.Incomplete. If it is a policy, the "*" policy does not apply, because the file may be the
// policy of any pool.
//
// Files should be replaced by renaming. A file that is written in place is used after two reads, at least
// half a second apart, had the same content. So a part of a policy is not in force while a writer pauses
// for less. A file that was deleted is in force until it has been missing for as long.
package folder

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/anchors"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/trust"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// Snapshot is the folder's content at one time. It is immutable.
type Snapshot struct {
	Machines        *machine.Index
	Enrollments     []machine.Enrollment
	Policies        *policy.Set
	ReferenceValues []measuredboot.ReferenceValues
	EKRoots         *anchors.Set
	Trust           *trust.Trust
	Configs         map[string][]byte // by pool

	// Problems are the current problems of the files, including warnings, by file and line.
	Problems []manifest.Problem
	// Incomplete are the files that have been broken since the start.
	Incomplete []string
}

// Failed reports whether any problem is more than a warning.
func (s *Snapshot) Failed() bool { return manifest.Failed(s.Problems) }

// Folder is a verifier's folder. It is safe for concurrent use.
type Folder struct {
	dir    string
	poll   time.Duration
	settle time.Duration

	snapshot atomic.Pointer[Snapshot]

	mu       sync.Mutex
	files    map[string]*file // by path
	policies *policy.Set      // the last that compiled
	trust    trust.Joined
	started  bool
	unread   []manifest.Problem // folders that could not be listed
	listed   map[string]bool    // folders that could be listed before
}

// file is one file's state.
type file struct {
	used    version   // zero if the file must be read again
	last    version   // of the last read
	since   time.Time // when last was first read
	readAt  time.Time
	missing time.Time // since when; zero if the file exists
	seen    bool      // the file was used or rejected once

	content  content    // the last good one
	good     bool       // whether a good state existed
	failed   trust.File // of anchors that did not parse
	atStart  bool       // the file existed at the start
	problems []manifest.Problem
}

// version identifies a content of a file.
type version struct {
	modified int64
	size     int64
	sum      [sha256.Size]byte
}

// Load reads the folder once.
func Load(dir string) (*Snapshot, error) {
	f, err := Open(dir)
	if err != nil {
		return nil, err
	}
	return f.Snapshot(), nil
}

// Open reads the folder for the first time. It returns an error only if the folder does not exist; for
// other problems see Snapshot.Problems.
func Open(dir string) (*Folder, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("read the verifier's folder: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("read the verifier's folder: %s is a file", dir)
	}
	f := &Folder{dir: dir, poll: 2 * time.Second, settle: settleTime, files: map[string]*file{},
		policies: &policy.Set{}, listed: map[string]bool{}}
	f.Refresh()
	return f, nil
}

// Snapshot returns the folder as last read.
func (f *Folder) Snapshot() *Snapshot { return f.snapshot.Load() }

// Refresh reads the folder now, and reports whether the snapshot changed. It also uses what may still be
// changing, as at the start; [Folder.Watch] does not.
func (f *Folder) Refresh() (*Snapshot, bool) {
	s, changed, _ := f.refresh(0)
	return s, changed
}

// refresh uses changes that are older than settle. It also reports whether it saw later ones.
func (f *Folder) refresh(settle time.Duration) (s *Snapshot, changed, later bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed, later = f.scan(settle)
	if changed || !f.started {
		f.snapshot.Store(f.build())
		changed = true
	}
	f.started = true
	return f.snapshot.Load(), changed, later
}

// scan updates every file's state.
func (f *Folder) scan(settle time.Duration) (changed, later bool) {
	here := map[string]bool{}
	var unread []manifest.Problem
	for _, s := range sections {
		dir := filepath.Join(f.dir, s.dir)
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			never := "its files keep their last state; check its permissions"
			if !f.listed[dir] {
				never = "check its permissions; none of its files is in force until it can be listed"
			}
			unread = append(unread, manifest.Problem{File: dir, What: "cannot be listed: " + err.Error(), Want: never})
			for path := range f.files {
				here[path] = here[path] || filepath.Dir(path) == dir
			}
			continue
		}
		atStart := !f.listed[dir] // of the verifier, or it existed then in a folder that could not be listed
		f.listed[dir] = true
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") || !slices.Contains(s.endings, filepath.Ext(e.Name())) {
				continue
			}
			path := filepath.Join(dir, e.Name())
			used, unsettled := f.refreshFile(s, path, atStart, settle)
			changed, later = changed || used, later || unsettled
			here[path] = true
		}
	}
	now := time.Now()
	for path, state := range f.files {
		switch {
		case here[path]:
			state.missing = time.Time{}
			continue
		case state.missing.IsZero():
			state.missing = now
		}
		// A file that is renamed and then written again must not be missing under both names.
		gone := now.Sub(state.missing)
		if gone < settle || later && gone < 10*settle {
			later = true
			continue
		}
		delete(f.files, path)
		changed = true
	}
	if !slices.Equal(unread, f.unread) {
		f.unread, changed = unread, true
	}
	return changed, later
}

// stableAfter is the time after its change in which a file may still be changing: two writes can have the
// same time stamp.
const stableAfter = 2 * time.Second

// settleTime is the time for which a changed file must be unchanged before it is used.
const settleTime = 500 * time.Millisecond

// refreshFile reads a file if it may have changed. It reports whether its state changed, or may change later.
func (f *Folder) refreshFile(s section, path string, atStart bool, settle time.Duration) (changed, later bool) {
	state := f.files[path]
	if state == nil {
		state = &file{atStart: atStart}
		f.files[path] = state
	}
	info, raw, err := read(path, state)
	if err != nil {
		if errors.Is(err, errUnchanged) {
			return false, false
		}
		before, first := state.problems, !state.seen
		state.problems = []manifest.Problem{{File: path, What: "cannot be read: " + err.Error(),
			Want: "its last good state stays in force"}}
		state.used, state.last, state.seen = version{}, version{}, true // read again next time
		state.readAt = time.Time{}
		return first || !slices.Equal(before, state.problems), false
	}
	now, v := time.Now(), version{info.ModTime().UnixNano(), info.Size(), sha256.Sum256(raw)}
	if v.sum != state.last.sum {
		state.since = now
	}
	state.last = v
	state.readAt = now
	if v == state.used {
		return false, false
	}
	if (state.seen || !state.atStart) && now.Sub(state.since) < settle {
		return false, true
	}
	state.used, state.seen = v, true
	content, problems := s.parse(path, raw, info.ModTime())
	state.problems = problems
	if !manifest.Failed(problems) {
		state.content, state.good = content, true
	} else {
		state.failed = content.trust
	}
	return true, false
}

var errUnchanged = errors.New("unchanged")

// read reads a regular file of limited size, unless it is unchanged.
func read(path string, state *file) (fs.FileInfo, []byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	modified := info.ModTime()
	if state.used == state.last && info.Size() == state.last.size && modified.UnixNano() == state.last.modified &&
		state.readAt.Sub(modified) > stableAfter {
		return nil, nil, errUnchanged
	}
	return wholefile.Read(path, manifest.MaxFile)
}

// build creates a snapshot of the files' good states.
func (f *Folder) build() *Snapshot {
	s := &Snapshot{Configs: map[string][]byte{}, Problems: slices.Clone(f.unread)}
	var manifests machine.Manifests
	var policies []policy.Parsed
	var roots [][]anchors.Anchor
	var trusted []trust.File
	references := map[string]string{}
	suspended, unread := "", ""
	for _, p := range f.unread {
		if !f.listed[p.File] {
			s.Incomplete = append(s.Incomplete, p.File)
			trusted = append(trusted, broken(p.File)...)
			if filepath.Base(p.File) == referencesDir {
				unread = p.File
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(f.files)) {
		state := f.files[path]
		if !state.seen {
			continue // new, and perhaps incomplete
		}
		s.Problems = append(s.Problems, state.problems...)
		if !state.good {
			if state.failed.Section != "" {
				trusted = append(trusted, state.failed)
			} else {
				trusted = append(trusted, broken(filepath.Dir(path))...)
			}
			if state.atStart {
				s.Incomplete = append(s.Incomplete, path)
				switch filepath.Base(filepath.Dir(path)) {
				case policiesDir:
					suspended = path
				case referencesDir:
					unread = path
				}
			}
			continue
		}
		c := state.content
		manifests.Machines = append(manifests.Machines, c.manifests.Machines...)
		manifests.Enrollments = append(manifests.Enrollments, c.manifests.Enrollments...)
		policies = append(policies, c.policies...)
		roots = append(roots, c.anchors)
		if c.trust.Section != "" {
			trusted = append(trusted, c.trust)
		}
		for _, r := range c.references {
			if first, ok := references[r.Metadata.Name]; ok {
				s.Problems = append(s.Problems, manifest.Problem{File: path,
					What: fmt.Sprintf("reference values %q are in two files and not read from this one", r.Metadata.Name),
					Want: "the other is " + first + "; give each its own name"})
				continue
			}
			references[r.Metadata.Name] = path
			s.ReferenceValues = append(s.ReferenceValues, r)
		}
		if c.config != nil {
			s.Configs[c.pool] = c.config
		}
	}
	var found []manifest.Problem
	s.Machines, found = machine.NewIndex(manifests, nil)
	s.Problems = append(s.Problems, found...)
	s.Enrollments = manifests.Enrollments
	s.EKRoots = anchors.NewSet(roots...)
	s.Trust, found = f.trust.Join(trusted)
	s.Problems = append(s.Problems, found...)
	s.Policies, found = f.compile(policies, suspended)
	s.Policies = s.Policies.WithUnreadReferences(unread)
	for _, p := range found {
		if !slices.Contains(s.Problems, p) { // the problems of each file are already in the list
			s.Problems = append(s.Problems, p)
		}
	}
	slices.SortStableFunc(s.Problems, func(x, y manifest.Problem) int {
		return cmp.Or(cmp.Compare(x.File, y.File), cmp.Compare(x.Line, y.Line))
	})
	return s
}

// broken returns the marker of a folder of anchors in which some file was never readable; see package
// trust.
func broken(dir string) []trust.File {
	section := trust.Section(filepath.Base(dir))
	if trust.Sections[section] == nil {
		return nil
	}
	return []trust.File{{Section: section, Broken: true}}
}

// compile joins the policies. If they contradict each other, the previous set stays in force. At the
// start, that is one that covers nothing.
func (f *Folder) compile(policies []policy.Parsed, suspended string) (*policy.Set, []manifest.Problem) {
	set, problems := policy.CompileParsed(policies...)
	if set != nil {
		f.policies = set
		if suspended != "" {
			f.policies = set.Suspended(suspended)
		}
	}
	return f.policies, problems
}
