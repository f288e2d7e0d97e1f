// Package buildcache keeps what takes tests long to build under
// ${XDG_CACHE_HOME:-~/.cache}/mcs-attest, named by a hash of everything that
// went into it. Only a finished result gets its name, two processes that build
// the same take turns, and the results that nobody used for longest go.
package buildcache

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"syscall"
	"time"
)

// kept is how many results of one kind the cache holds; an initramfs has 77 MB.
const kept = 8

// Logf tells a person who waits what is going on.
type Logf func(format string, a ...any)

// Dir is ${XDG_CACHE_HOME:-$HOME/.cache}/mcs-attest, made if it was not there.
func Dir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(base, "mcs-attest")
	return dir, os.MkdirAll(dir, 0o755)
}

// Result returns dir/kind/sum, after build has made it if it was not there.
// build writes to the path it is given. what names the result in progress lines.
func Result(dir, kind, sum, what string, logf Logf, build func(out string) error) (string, error) {
	dir = filepath.Join(dir, kind)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	final := filepath.Join(dir, sum)
	if touch(final) {
		return final, nil
	}
	unlock, err := Lock(filepath.Join(dir, ".lock"), logf)
	if err != nil {
		return "", err
	}
	defer unlock()
	if touch(final) {
		return final, nil
	}
	logf("building %s", what)
	start := time.Now()
	partial := final + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return "", err
	}
	if err := build(partial); err != nil {
		return "", fmt.Errorf("building %s: %w", what, err)
	}
	if err := os.Rename(partial, final); err != nil {
		return "", err
	}
	logf("built %s in %.1f s", what, time.Since(start).Seconds())
	return final, prune(dir)
}

// touch says whether the path exists, and marks it as used now.
func touch(path string) bool {
	now := time.Now()
	return os.Chtimes(path, now, now) == nil
}

// prune drops the results that were not used for longest.
func prune(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
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
		// What runs now may still have an hour-old file open.
		if i >= kept && time.Since(old.used) > time.Hour {
			if err := os.RemoveAll(old.path); err != nil {
				return err
			}
		}
	}
	return nil
}

// Lock takes an exclusive lock on a file for as long as the returned func is
// not called; it ends with the process too.
func Lock(path string, logf Logf) (unlock func(), err error) {
	if unlock, err = TryLock(path); unlock != nil || err != nil {
		return unlock, err
	}
	logf("waiting for another run to free %s", path)
	return lock(path, syscall.LOCK_EX)
}

// TryLock is [Lock] without waiting: it returns nil when another process, or
// another caller in this process, has the lock.
func TryLock(path string) (unlock func(), err error) {
	unlock, err = lock(path, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, nil
	}
	return unlock, err
}

func lock(path string, how int) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
