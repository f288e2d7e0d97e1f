// SPDX-License-Identifier: Apache-2.0

// Package reload follows a value that is read from files.
//
// It checks the files once a second and reads them again after a change. If the new content does not
// parse, the last good value stays and the error is reported until the content is fixed. A value that
// never parsed is an error at the start. Polling is deliberate: it detects a rename, a replaced symlink
// (as Kubernetes mounts Secrets) and changes on a network file system.
package reload

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Interval is the time between two checks.
const Interval = time.Second

// Value is a value of type T that is read from files. Load is safe for concurrent use.
type Value[T any] struct {
	paths []string
	parse func([][]byte) (T, error)
	value atomic.Pointer[T]

	mu     sync.Mutex
	seen   [sha256.Size]byte
	broken error // the error of the contents in seen
	err    error
}

// New reads the files for the first time.
func New[T any](parse func(contents [][]byte) (T, error), paths ...string) (*Value[T], error) {
	v := &Value[T]{paths: paths, parse: parse}
	if _, err := v.Refresh(); err != nil {
		return nil, err
	}
	return v, nil
}

// Load returns the last good value.
func (v *Value[T]) Load() T { return *v.value.Load() }

// Err returns the current error of the files, or nil.
func (v *Value[T]) Err() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.err
}

// Refresh checks the files now, and reports whether the value changed.
func (v *Value[T]) Refresh() (changed bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	changed, v.err = v.refresh()
	return changed, v.err
}

func (v *Value[T]) refresh() (bool, error) {
	contents := make([][]byte, len(v.paths))
	sum := sha256.New()
	for i, p := range v.paths {
		b, err := os.ReadFile(p)
		if err != nil {
			return false, err
		}
		contents[i] = b
		fmt.Fprintf(sum, "%d:", len(b))
		sum.Write(b)
	}
	seen := [sha256.Size]byte(sum.Sum(nil))
	if seen == v.seen {
		return false, v.broken
	}
	value, err := v.parse(contents)
	v.seen, v.broken = seen, nil
	if err != nil {
		v.broken = fmt.Errorf("%s: %w", v.paths[0], err)
		return false, v.broken
	}
	v.value.Store(&value)
	return true, nil
}

// Watch refreshes until ctx ends. It calls report after each change, and when an error appears, changes
// or ends.
func (v *Value[T]) Watch(ctx context.Context, report func(changed bool, err error)) {
	var last string
	Every(ctx, Interval, func() {
		changed, err := v.Refresh()
		now := ""
		if err != nil {
			now = err.Error()
		}
		if changed || now != last {
			report(changed, err)
		}
		last = now
	})
}

// Every calls f after each interval until ctx ends.
func Every(ctx context.Context, interval time.Duration, f func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
}
