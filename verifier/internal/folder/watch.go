// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// quiet is the pause between the last event and the read of the folder.
const quiet = 100 * time.Millisecond

// Watch reads the folder after each change and calls onChange with each new snapshot, one call at a
// time, until ctx ends. Events of the file system make this fast. A scan every two seconds also detects
// changes without events (network file systems, too few inotify watches). Another scan follows if a
// change may be incomplete.
func (f *Folder) Watch(ctx context.Context, onChange func(*Snapshot)) {
	var events <-chan fsnotify.Event
	var errs <-chan error
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		events, errs = watcher.Events, watcher.Errors
	}
	listen := func() {
		if watcher == nil {
			return
		}
		// Adding again is harmless. A folder may be new or may have been replaced.
		_ = watcher.Add(f.dir)
		for _, s := range sections {
			_ = watcher.Add(filepath.Join(f.dir, s.dir))
		}
	}
	var debounced <-chan time.Time
	refresh := func() {
		listen() // before the read, so that no later change in a new folder is missed
		s, changed, later := f.refresh(f.settle)
		if changed {
			onChange(s)
		}
		if later && debounced == nil {
			debounced = time.After(f.settle)
		}
	}
	refresh()

	tick := time.NewTicker(f.poll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			debounced = time.After(quiet)
		case _, ok := <-errs:
			// An overflow loses events. The next tick detects the changes.
			if !ok {
				errs = nil
			}
		case <-debounced:
			debounced = nil
			refresh()
		case <-tick.C:
			refresh()
		}
	}
}
