// SPDX-License-Identifier: Apache-2.0

// Package buildcache stores the results of slow builds for tests in
// ${XDG_CACHE_HOME:-~/.cache}/mcs-attest, named by a hash of all inputs. Only a finished result
// gets its name. Two processes that build the same result wait for each other, and the least
// recently used results are deleted.
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

// kept is how many results of one kind the cache keeps; an initramfs has 77 MB.
const kept = 8

// Logf reports progress.
type Logf func(format string, a ...any)

// Dir returns ${XDG_CACHE_HOME:-$HOME/.cache}/mcs-attest and creates it if needed.
func Dir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(base, "mcs-attest")
	return dir, os.MkdirAll(dir, 0o755)
}

// Result returns dir/kind/sum. If it does not exist, build creates it at the given path. what names
// the result in progress lines.
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

// touch marks the path as used now, and reports whether it exists.
func touch(path string) bool {
	now := time.Now()
	return os.Chtimes(path, now, now) == nil
}

// prune deletes the least recently used results.
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
		// A running test may still have a file open that is an hour old.
		if i >= kept && time.Since(old.used) > time.Hour {
			if err := os.RemoveAll(old.path); err != nil {
				return err
			}
		}
	}
	return nil
}

// Lock takes an exclusive lock on a file until unlock is called or the process ends.
func Lock(path string, logf Logf) (unlock func(), err error) {
	if unlock, err = TryLock(path); unlock != nil || err != nil {
		return unlock, err
	}
	logf("waiting for another run to free %s", path)
	return lock(path, syscall.LOCK_EX)
}

// TryLock is like [Lock], but returns nil immediately if another process, or another caller in this
// process, has the lock.
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
