package rig

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"syscall"
	"time"
)

// kept is how many results of one kind the cache holds; an initramfs has 77 MB.
const kept = 8

// cacheDir is ${XDG_CACHE_HOME:-$HOME/.cache}/mcs-attest.
func cacheDir(t TB) string {
	t.Helper()
	base, err := os.UserCacheDir()
	if err != nil {
		t.Fatalf("cache folder: %v", err)
	}
	dir := filepath.Join(base, "mcs-attest")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatalf("cache folder: %v", err)
	}
	return dir
}

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

// cached returns <cache>/<kind>/<sum>, after build has made it if it was not
// there. build writes to the path it is given; only a finished result gets the
// name, and two processes that build the same take turns.
func (r *Rig) cached(kind, what string, in *inputs, build func(out string)) string {
	r.t.Helper()
	dir := filepath.Join(r.cache, kind)
	r.fatal(os.MkdirAll(dir, 0o755), "cache folder")
	final := filepath.Join(dir, in.sum())
	if touch(final) {
		return final
	}
	unlock := r.lock(filepath.Join(dir, ".lock"))
	defer unlock()
	if touch(final) {
		return final
	}
	r.progress("building %s", what)
	start := time.Now()
	partial := final + ".partial"
	r.fatal(os.RemoveAll(partial), "cache")
	build(partial)
	r.fatal(os.Rename(partial, final), "cache")
	r.progress("built %s in %.1f s", what, time.Since(start).Seconds())
	r.prune(dir)
	return final
}

// touch says whether the path exists, and marks it as used now.
func touch(path string) bool {
	now := time.Now()
	return os.Chtimes(path, now, now) == nil
}

// prune drops the results that were not used for longest.
func (r *Rig) prune(dir string) {
	r.t.Helper()
	entries, err := os.ReadDir(dir)
	r.fatal(err, "cache")
	type result struct {
		path string
		used time.Time
	}
	var results []result
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.Name() != ".lock" {
			results = append(results, result{filepath.Join(dir, e.Name()), info.ModTime()})
		}
	}
	sort.Slice(results, func(i, j int) bool { return results[i].used.After(results[j].used) })
	for i, old := range results {
		// A machine that runs now may still have an hour-old file open.
		if i >= kept && time.Since(old.used) > time.Hour {
			r.fatal(os.RemoveAll(old.path), "cache")
		}
	}
}

// lock takes an exclusive lock on a file for as long as the returned func is
// not called; it ends with the process too.
func (r *Rig) lock(path string) (unlock func()) {
	r.t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	r.fatal(err, "lock")
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		r.progress("waiting for another run to free %s", path)
		r.fatal(syscall.Flock(int(f.Fd()), syscall.LOCK_EX), "lock %s", path)
	}
	return func() { f.Close() }
}

// takeSlot waits for one of the host's places for a scenario. `go test ./...`
// runs packages side by side; two emulated machines on two cores are slower
// than one after the other.
func (r *Rig) takeSlot() {
	r.t.Helper()
	r.t.Cleanup(r.lock(filepath.Join(r.cache, "slot.lock")))
}
