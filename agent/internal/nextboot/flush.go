// SPDX-License-Identifier: Apache-2.0

package nextboot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// The commands that freeze and thaw a file system (FIFREEZE and FITHAW in linux/fs.h).
const (
	freeze = 0xC0045877
	thaw   = 0xC0045878
)

// flush writes what the boot partition has only in memory or in its journal to its place, where GRUB finds it. syncfs
// only has to write the journal (ext4 writes more). Freezing a file system also empties the journal. No program can
// write to it until the thaw, so flush does not freeze the root file system, which /boot may be a folder of.
func (b Boot) flush() error {
	f, err := os.Open(b.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	fd := int(f.Fd())
	if err := unix.Syncfs(fd); err != nil {
		return fmt.Errorf("write %s to the disk: %w", b.Dir, err)
	}
	var s unix.Statfs_t
	var own, root unix.Stat_t
	if err := errors.Join(unix.Fstatfs(fd, &s), unix.Fstat(fd, &own), unix.Stat(existing(b.Marker), &root)); err != nil {
		return fmt.Errorf("the file system of %s: %w", b.Dir, err)
	}
	if own.Dev == root.Dev || s.Type != unix.EXT4_SUPER_MAGIC && s.Type != unix.XFS_SUPER_MAGIC {
		return nil
	}
	// A system that forbids this is only less safe from a power cut: an orderly reboot unmounts the file system.
	if unix.IoctlSetInt(fd, freeze, 0) != nil {
		return nil
	}
	for range 10 {
		err := unix.IoctlSetInt(fd, thaw, 0)
		if err == nil || errors.Is(err, unix.EINVAL) { // another program thawed it
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("%s remains frozen; run: fsfreeze -u %s", b.Dir, b.Dir)
}

// existing returns the path, or the first folder above it that exists.
func existing(path string) string {
	for {
		if _, err := os.Lstat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}
