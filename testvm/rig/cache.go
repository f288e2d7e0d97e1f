package rig

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mcs-attest/mcs-attest/testvm/buildcache"
)

// inputs collects what goes into a build; its sum names the result.
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

// file adds one file's content and whether it is executable.
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

// cached returns <cache>/<kind>/<sum>, after build has made it if it was not there.
func (r *Rig) cached(kind, what string, in *inputs, build func(out string)) string {
	r.t.Helper()
	path, err := buildcache.Result(r.cache, kind, in.sum(), what, r.progress, func(out string) error {
		build(out)
		return nil
	})
	r.fatal(err, "cache")
	return path
}

// takeSlot waits for one of the host's places for a scenario. `go test ./...`
// runs packages side by side; two emulated machines on two cores are slower
// than one after the other.
func (r *Rig) takeSlot() {
	r.t.Helper()
	unlock, err := buildcache.Lock(filepath.Join(r.cache, "slot.lock"), r.progress)
	r.fatal(err, "slot")
	r.t.Cleanup(unlock)
}
