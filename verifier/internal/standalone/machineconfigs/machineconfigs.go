// SPDX-License-Identifier: Apache-2.0

// Package machineconfigs is the standalone backend of package poolconfig. It reads a folder of
// MachineConfigs, MachineConfigPools, a ControllerConfig and an OSImageStream, and renders each pool
// again when a file changes.
//
// Files are independent. A broken file keeps its last good content, and does not affect the others. A
// deleted file is no longer used. The kubeconfig is an exception: the last good one stays in full
// configs until the verifier restarts.
package machineconfigs

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"maps"
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
	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/reload"
	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// Interval is the time between two scans of a folder.
const Interval = 2 * time.Second

// KubeconfigFile is the name of the file with the kubeconfig with which kubelets bootstrap.
const KubeconfigFile = "kubeconfig"

// Folder is a directory of manifests. Its Store is safe for concurrent use.
type Folder struct {
	*poolconfig.Store
	dir     string
	files   map[string]*file
	scanned bool
	// unlisted means that the last scan could not list the folder.
	unlisted bool
	// settle means that a changed file is used only after two equal scans, because it may be half written.
	settle bool
}

// file is the last good content of a file, and its current problem.
type file struct {
	sum  [sha256.Size]byte // of the content in use
	seen [sha256.Size]byte // of the content at the last scan
	good bool
	in   render.Input
	// clean is the last content, without a MachineConfig that cannot be used.
	clean      render.Input
	kubeconfig secret.Bytes // the last good one, of the file kubeconfig
	faults     []poolconfig.Fault
}

// Open reads the *.yaml, *.yml and *.json files of a folder, and the file kubeconfig. A folder that
// does not exist has no pools.
func Open(dir string, o poolconfig.Options) *Folder {
	f := &Folder{Store: poolconfig.NewStore(o), dir: dir, files: map[string]*file{}}
	f.scan()
	return f
}

// Run follows the folder until ctx ends.
func (f *Folder) Run(ctx context.Context) {
	f.settle = true
	reload.Every(ctx, Interval, f.scan)
}

// scan reads the folder, and renders its pools if something changed.
func (f *Folder) scan() {
	changed := !f.scanned || f.unlisted
	f.scanned = true
	var faults []poolconfig.Fault
	entries, err := os.ReadDir(f.dir)
	f.unlisted = err != nil && !errors.Is(err, fs.ErrNotExist)
	switch {
	case f.unlisted:
		faults = append(faults, notRead(f.dir+" cannot be listed: "+err.Error()+"; its files stay as they were"))
	case f.read(entries):
		changed = true
	}
	if !changed && len(faults) == 0 {
		return
	}
	in := poolconfig.Input{}
	var all []render.Input
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		one := f.files[name]
		faults = append(faults, one.faults...)
		if one.good {
			all = append(all, one.in)
		}
		if name == KubeconfigFile {
			in.Extras.Kubeconfig = one.kubeconfig
			if one.kubeconfig.Empty() {
				in.NoKubeconfig = reason.Deny(reason.ConfigUnavailable,
					"%s cannot be used, so full configs would have no kubeconfig", filepath.Join(f.dir, name))
			}
		}
	}
	joined, problems := render.Join(all...)
	if manifest.Failed(problems) {
		// It is unknown which of two objects is the intended one, so nothing changes.
		for _, name := range f.Names() {
			f.Keep(name, render.Together(all...), problems[0])
		}
		f.Report("", append(faults, poolconfig.NotUsable(problems, poolconfig.InForce(true))...)...)
		return
	}
	f.Report("", faults...)
	in.Input = joined
	in.Extras.FromController(joined.Controller)
	exists := map[string]bool{}
	for _, p := range joined.Pools {
		exists[p.Name] = true
		f.Update(p.Name, in)
	}
	f.Retain(func(name string) bool { return exists[name] })
}

// read reads the files that changed, and reports whether one did.
func (f *Folder) read(entries []fs.DirEntry) (changed bool) {
	here := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		manifests := slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
		if strings.HasPrefix(name, ".") || !manifests && name != KubeconfigFile {
			continue
		}
		here[name] = true
		if f.readFile(name) {
			changed = true
		}
	}
	for name, one := range f.files {
		switch {
		case here[name]:
		case name == KubeconfigFile && !one.kubeconfig.Empty():
			if one.sum != ([sha256.Size]byte{}) || len(one.faults) == 0 {
				one.sum, changed = [sha256.Size]byte{}, true
			}
			one.faults = []poolconfig.Fault{notRead(filepath.Join(f.dir, name) +
				" was deleted; its last good state stays in full configs until the verifier restarts")}
		default:
			delete(f.files, name)
			changed = true
		}
	}
	return changed
}

// readFile reads one file, and reports whether it changed.
func (f *Folder) readFile(name string) (changed bool) {
	one := f.files[name]
	if one == nil {
		one = &file{}
		f.files[name] = one
		changed = !f.settle
	}
	path := filepath.Join(f.dir, name)
	_, raw, err := wholefile.Read(path, manifest.MaxFile)
	if err != nil {
		fault := notRead(path + " cannot be read: " + err.Error() + poolconfig.InForce(one.good))
		changed = changed || len(one.faults) != 1 || one.faults[0] != fault
		one.faults, one.sum = []poolconfig.Fault{fault}, [sha256.Size]byte{}
		return changed
	}
	sum := sha256.Sum256(raw)
	settled := sum == one.seen || !f.settle
	one.seen = sum
	if sum == one.sum || !settled {
		return changed
	}
	one.sum, one.faults = sum, nil
	if name == KubeconfigFile {
		if err := checkKubeconfig(raw); err != nil {
			one.faults = []poolconfig.Fault{{
				Reason: poolconfig.ReasonNotUsable, Text: path + ": " + err.Error() + poolconfig.InForce(one.good),
			}}
			return true
		}
		one.kubeconfig, one.good = secret.New(raw), true
		return true
	}
	in, problems := render.Parse(path, raw)
	if manifest.Failed(problems) {
		// The problem of the previous content no longer exists.
		one.in = one.clean
		one.good = len(one.in.Pools)+len(one.in.Configs) > 0 || one.in.Controller != nil || one.in.Streams != nil
	} else {
		one.in, one.good = in, true
		if !in.Broken() {
			one.clean = in
		}
	}
	one.faults = poolconfig.NotUsable(problems, poolconfig.InForce(one.good))
	return true
}

func notRead(text string) poolconfig.Fault {
	return poolconfig.Fault{Reason: poolconfig.ReasonNotRead, Text: text}
}

// checkKubeconfig checks that a kubelet can bootstrap with a file. The error contains nothing of its
// content.
func checkKubeconfig(raw []byte) error {
	var k struct {
		Users []struct {
			User map[string]any `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(raw, &k); err != nil {
		return errors.New("the file is not a kubeconfig: it is not YAML, or has other fields")
	}
	for _, u := range k.Users {
		if len(u.User) > 0 {
			return nil
		}
	}
	return errors.New("the file is not a usable kubeconfig: no user has a credential")
}
