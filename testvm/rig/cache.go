// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/buildcache"
)

// inputs collects the inputs of a build; their sum names the result.
type inputs struct {
	r *Rig
	h io.Writer
	s interface{ Sum([]byte) []byte }
}

func (r *Rig) inputs(kind string) *inputs {
	h := sha256.New()
	in := &inputs{r: r, h: h, s: h}
	in.text(kind)
	return in
}

func (in *inputs) text(parts ...string) *inputs {
	for _, p := range parts {
		fmt.Fprintf(in.h, "%d:%s", len(p), p)
	}
	return in
}

// file adds one file's content and its executable bit.
func (in *inputs) file(path string) *inputs {
	in.r.t.Helper()
	f, err := os.Open(path)
	in.r.fatal(err, "cache key")
	defer f.Close()
	info, err := f.Stat()
	in.r.fatal(err, "cache key")
	fmt.Fprintf(in.h, "%d:%t:", info.Size(), info.Mode()&0o111 != 0)
	_, err = io.Copy(in.h, f)
	in.r.fatal(err, "cache key")
	return in
}

// tree adds every file of a folder, by name and content.
func (in *inputs) tree(root fs.FS) *inputs {
	in.r.t.Helper()
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		in.text(path, string(b))
		return nil
	})
	in.r.fatal(err, "cache key")
	return in
}

func (in *inputs) sum() string { return hex.EncodeToString(in.s.Sum(nil))[:24] }

// cached returns <cache>/<kind>/<sum>. If it does not exist, build creates it.
func (r *Rig) cached(kind, what string, in *inputs, build func(out string)) string {
	r.t.Helper()
	path, err := buildcache.Result(r.cache, kind, in.sum(), what, r.progress, func(out string) error {
		build(out)
		return nil
	})
	r.fatal(err, "cache")
	return path
}

// slots is how many scenarios run at the same time on this host. Each machine emulates one core.
const slots = 2

// takeSlot waits for one of the host's slots for a scenario. Other test processes on the host use
// the same slots.
func (r *Rig) takeSlot() {
	r.t.Helper()
	for waits := false; ; time.Sleep(100 * time.Millisecond) {
		for i := range slots {
			unlock, err := buildcache.TryLock(filepath.Join(r.cache, fmt.Sprintf("slot%d.lock", i)))
			r.fatal(err, "slot")
			if unlock != nil {
				r.t.Cleanup(unlock)
				return
			}
		}
		if !waits {
			r.progress("waiting until another scenario ends")
			waits = true
		}
	}
}
