package configsource

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/render"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cluster"
)

// Interval is how often a folder is looked at.
const Interval = 2 * time.Second

// KubeconfigFile, in the folder, is what kubelets bootstrap with.
const KubeconfigFile = "kubeconfig"

// runner follows the place that a Source reads until ctx ends.
type runner interface{ run(ctx context.Context) }

// folder is a directory of manifests. Every file stands by itself: a broken one keeps
// its last good content, and stops no other.
type folder struct {
	s     *Source
	dir   string
	files map[string]*file
	first bool
	// unlisted: the last look could not list the folder.
	unlisted bool
}

type file struct {
	sum  [sha256.Size]byte
	good bool
	in   render.Input
	// clean is the last content all of whose MachineConfigs could be used.
	clean render.Input
	// kubeconfig's own: the last good one.
	secret secret.Bytes
	faults []fault
}

// NewFolder reads the *.yaml, *.yml and *.json of a folder, and the file kubeconfig.
// A folder that is not there has no pools.
func NewFolder(dir string, o Options) *Source {
	s := &Source{o: o.complete()}
	f := &folder{s: s, dir: dir, files: map[string]*file{}}
	s.run = f
	f.look()
	return s
}

// Run follows what is read until ctx ends.
func (s *Source) Run(ctx context.Context) { s.run.run(ctx) }

func (f *folder) run(ctx context.Context) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.look()
		}
	}
}

// look reads the folder, and takes what changed.
func (f *folder) look() {
	changed := !f.first || f.unlisted
	f.first = true
	var faults []fault
	here := map[string]bool{}
	entries, err := os.ReadDir(f.dir)
	f.unlisted = err != nil && !errors.Is(err, fs.ErrNotExist)
	if f.unlisted {
		faults = append(faults, fault{reason: reasonNotRead, text: f.dir + " cannot be listed: " + err.Error() + "; its files stay as they were"})
		for name := range f.files {
			here[name] = true
		}
	}
	for _, e := range entries {
		name := e.Name()
		manifests := slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
		if strings.HasPrefix(name, ".") || !manifests && name != KubeconfigFile {
			continue
		}
		here[name] = true
		if f.read(name) {
			changed = true
		}
	}
	for name, one := range f.files {
		switch {
		case here[name]:
		case name == KubeconfigFile && !one.secret.Empty():
			if one.sum != ([sha256.Size]byte{}) || len(one.faults) == 0 {
				one.sum, changed = [sha256.Size]byte{}, true
			}
			one.faults = []fault{{reason: reasonNotRead, text: filepath.Join(f.dir, name) + " is gone; as it was before, it stays in whole configs until the verifier is restarted"}}
		default:
			delete(f.files, name)
			changed = true
		}
	}
	if !changed && len(faults) == 0 {
		return
	}
	var in input
	var all []render.Input
	for _, name := range sorted(f.files) {
		one := f.files[name]
		faults = append(faults, one.faults...)
		if one.good {
			all = append(all, one.in)
		}
		if name == KubeconfigFile {
			in.extras.Kubeconfig = one.secret
			if one.secret.Empty() {
				in.noKubeconfig = reason.Deny(reason.ConfigUnavailable, "%s cannot be used, so whole configs would have no kubeconfig", filepath.Join(f.dir, name))
			}
		}
	}
	joined, problems := render.Join(all...)
	if manifest.Failed(problems) {
		// Which of two is meant nobody can say: nothing changes.
		f.s.withdraw(render.Together(all...), reason.Wrap(reason.ConfigUnavailable, problems[0], "the MachineConfigs cannot be read"))
		f.s.tell(append(faults, fromProblems(problems, cluster.Object{}, stays)...), f.s.Pools())
		if !f.s.Ready() {
			f.s.pools.Store(&map[string]*pool{})
		}
		return
	}
	in.Input, in.faults = joined, faults
	authorities(&in.extras, joined)
	f.s.take(in)
}

// read reads one file, and reports whether it changed.
func (f *folder) read(name string) (changed bool) {
	one := f.files[name]
	if one == nil {
		one = &file{}
		f.files[name] = one
		changed = true
	}
	path := filepath.Join(f.dir, name)
	raw, err := bounded(path)
	if err != nil {
		text := path + " cannot be read: " + err.Error() + standIn(one.good)
		changed = changed || len(one.faults) != 1 || one.faults[0].text != text
		one.faults, one.sum = []fault{{reason: reasonNotRead, text: text}}, [sha256.Size]byte{}
		return changed
	}
	sum := sha256.Sum256(raw)
	if sum == one.sum {
		return changed
	}
	one.sum, one.faults = sum, nil
	if name == KubeconfigFile {
		if err := kubeconfig(raw); err != nil {
			one.faults = []fault{{reason: reasonNotUsable, text: path + ": " + err.Error() + standIn(one.good)}}
			return true
		}
		one.secret, one.good = secret.New(raw), true
		return true
	}
	in, problems := render.Parse(path, raw)
	switch {
	case !manifest.Failed(problems):
		one.in, one.good = in, true
		if !in.Broken() {
			one.clean = in
		}
	default:
		// What was wrong with the content before is not there to be mended any more.
		one.in = one.clean
		one.good = len(one.in.Pools)+len(one.in.Configs) > 0 || one.in.Controller != nil || one.in.Streams != nil
	}
	one.faults = fromProblems(problems, cluster.Object{}, standIn(one.good))
	return true
}

// kubeconfig checks that a file is one that a kubelet can bootstrap with. The error
// never has any of it.
func kubeconfig(raw []byte) error {
	var k struct {
		Users []struct {
			User map[string]any `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(raw, &k); err != nil {
		return errors.New("it is no kubeconfig: not YAML, or not the fields of one")
	}
	for _, u := range k.Users {
		if len(u.User) > 0 {
			return nil
		}
	}
	return errors.New("it is no kubeconfig: no user in it has a credential")
}

func bounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case info.Size() > manifest.MaxFile:
		return nil, fmt.Errorf("%d bytes, at most %d are read", info.Size(), manifest.MaxFile)
	}
	return os.ReadFile(path)
}
