// Package reload keeps a value that is read from files current.
//
// The files are looked at once a second and read again when one of them has
// changed. A change that does not parse keeps the last good value and is
// reported until it is mended; a value that never parsed is an error at start.
// Polling is deliberate: it sees a rename, a symlink swap (as Kubernetes mounts
// Secrets) and a network file system alike.
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

// Interval is how often the files are looked at.
const Interval = time.Second

// Value is a value of type T read from files. Load is safe for concurrent use.
type Value[T any] struct {
	paths []string
	parse func([][]byte) (T, error)
	value atomic.Pointer[T]

	mu     sync.Mutex
	seen   [sha256.Size]byte
	broken error // what the contents in seen fail with
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

// Err is what is wrong with the files now, or nil.
func (v *Value[T]) Err() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.err
}

// Refresh looks at the files now and reports whether the value changed.
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

// Watch refreshes until ctx ends. It calls report after each change and each
// time a new error appears or the old one is gone.
func (v *Value[T]) Watch(ctx context.Context, report func(changed bool, err error)) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	var last string
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		changed, err := v.Refresh()
		now := ""
		if err != nil {
			now = err.Error()
		}
		if changed || now != last {
			report(changed, err)
		}
		last = now
	}
}
