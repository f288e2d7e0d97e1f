// SPDX-License-Identifier: Apache-2.0

// Package nextboot has an unpatched Ignition apply a config in the next boot, as Fedora CoreOS and
// RHCOS do after an installation.
//
// Two files on the boot partition do that:
//
//	ignition/config.ign   the config, mode 0600. The initramfs copies it to Ignition's user.ign
//	ignition.firstboot    the flag. GRUB then starts the kernel with ignition.firstboot, and with the
//	                      network arguments in this file, if there are any
//
// [Boot.Stage] writes them in this order, each of them durably, and then a marker that this boot
// staged a config. So after a crash at any point the next boot is either an ordinary one, or one in
// which Ignition applies the full config. [Boot.Clear] removes what is left. Both may run again.
//
// Durable is not enough for the boot loader: fsync writes a new name only to the journal of the file system, and GRUB
// does not read journals. So Stage and Clear also write the journal to its place, see flush.
//
// The config is secret. It is on the boot partition from Stage until Ignition has applied it. Clear overwrites it, but
// Ignition's own unit on CoreOS, which runs before Clear, only deletes it.
package nextboot

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
)

const (
	folder    = "ignition"
	config    = "config.ign"
	temporary = ".mcs-attest.tmp"
	flag      = "ignition.firstboot"
)

// minFree is the space that must be free on the boot partition, in bytes. A config has at most 16 MiB,
// and a third more in base64.
const minFree = 32 << 20

// ErrNotMounted reports that the boot partition is not mounted.
var ErrNotMounted = errors.New("the boot partition is not mounted")

// Boot is the boot partition.
type Boot struct {
	// Dir is where it is mounted.
	Dir string
	// Marker is a file on the root file system, which has the id of the boot that staged a config. After [Boot.Retry]
	// it also has the id of the boot that called it.
	Marker string
	// Network is a file on the root file system, which has the network arguments of the flag of the first boot.
	Network string
	// BootID is the id of this boot.
	BootID string

	// Mounted reports whether a folder has a file system of its own; nil asks the kernel.
	Mounted func(dir string) (bool, error)
	// Step, if set, is called after each step of Stage. An error ends Stage, as a crash would.
	Step func(name string) error
}

// Prepare checks that the boot partition is mounted, makes it writable, and checks that a config fits.
func (b Boot) Prepare() error {
	if err := b.requireMount(); err != nil {
		return err
	}
	if err := b.writable(); err != nil {
		return fmt.Errorf("make %s writable: %w", b.Dir, err)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(b.Dir, &s); err != nil {
		return fmt.Errorf("read the free space of %s: %w", b.Dir, err)
	}
	if free := s.Bavail * uint64(s.Bsize); free < minFree { //nolint:unconvert // the types differ by architecture
		return fmt.Errorf("%s has %d bytes free; %d are needed", b.Dir, free, minFree)
	}
	return nil
}

// requireMount returns an error if Dir is a folder of the root file system, which neither GRUB nor
// Ignition reads.
func (b Boot) requireMount() error {
	mounted := b.Mounted
	if mounted == nil {
		mounted = isMount
	}
	ok, err := mounted(b.Dir)
	if err == nil && !ok {
		err = ErrNotMounted
	}
	if err != nil {
		return fmt.Errorf("%s: %w", b.Dir, err)
	}
	return nil
}

// isMount reports whether dir has a file system of its own. Where there is no boot partition, OSTree
// mounts a folder of the root file system on /boot. That is not such a mount.
func isMount(dir string) (bool, error) {
	var above, own unix.Stat_t
	// In this order: the first call mounts an automount point.
	if err := errors.Join(unix.Stat(dir+"/..", &above), unix.Stat(dir, &own)); err != nil {
		return false, err
	}
	return own.Dev != above.Dev, nil
}

// writable remounts the boot partition if it is read-only, with its other options.
func (b Boot) writable() error {
	probe := filepath.Join(b.Dir, temporary)
	err := write(probe, nil)
	if errors.Is(err, unix.EROFS) {
		var s unix.Statfs_t
		if err := unix.Statfs(b.Dir, &s); err != nil {
			return err
		}
		// The flags of statfs and mount have the same values (statfs(2), f_flags).
		keep := uintptr(s.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_RELATIME)
		if err := unix.Mount("", b.Dir, "", unix.MS_REMOUNT|keep, ""); err != nil {
			return os.NewSyscallError("mount", err)
		}
		err = write(probe, nil)
	}
	return errors.Join(err, remove(probe))
}

// Stage makes the next boot apply the config.
func (b Boot) Stage(content []byte) error {
	if len(content) == 0 {
		return errors.New("the config is empty")
	}
	dir := filepath.Join(b.Dir, folder)
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"folder", func() error { return errors.Join(os.MkdirAll(dir, 0o700), sync(b.Dir)) }},
		{"temporary", func() error { return write(filepath.Join(dir, temporary), content) }},
		{"config", func() error {
			return errors.Join(os.Rename(filepath.Join(dir, temporary), filepath.Join(dir, config)), sync(dir))
		}},
		{"flag", b.writeFlag},
		{"marker", b.WriteMarker},
		{"flush", b.flush}, // with the marker, a boot that finds this step missing repeats it, see Retry
	} {
		err := s.do()
		if err == nil && b.Step != nil {
			err = b.Step(s.name)
		}
		if err != nil {
			return fmt.Errorf("stage the config for the next boot (%s): %w", s.name, err)
		}
	}
	return nil
}

// WriteMarker writes the marker, after which the machine only has to boot again.
func (b Boot) WriteMarker() error {
	if err := os.MkdirAll(filepath.Dir(b.Marker), 0o755); err != nil {
		return err
	}
	return WriteFile(b.Marker, []byte(b.BootID))
}

// Retry makes the boot loader see a config that an earlier boot staged and that Ignition did not apply, and reports
// whether the machine should boot again for that. A machine does so only once, because its boot loader may ignore the
// flag.
func (b Boot) Retry() (bool, error) {
	raw, err := os.ReadFile(b.Marker)
	if err != nil {
		return false, err
	}
	staged, retried, again := strings.Cut(string(raw), "\n")
	if !b.Staged() || again && retried != b.BootID {
		return false, nil
	}
	return true, errors.Join(b.flush(), WriteFile(b.Marker, []byte(staged+"\n"+b.BootID)))
}

// Staged reports whether the next boot applies a config.
func (b Boot) Staged() bool {
	return paths.Exists(filepath.Join(b.Dir, folder, config)) && paths.Exists(filepath.Join(b.Dir, flag))
}

// StagedEarlier reports whether an earlier boot staged a config completely.
func (b Boot) StagedEarlier() bool {
	raw, err := os.ReadFile(b.Marker)
	id, _, _ := strings.Cut(string(raw), "\n")
	return err == nil && id != b.BootID
}

// Clear removes a config, complete or not, and its marker. The flag goes first, also for the boot loader, so
// that no boot finds a flag without its config. Without any of them, Clear does not write to the boot
// partition. If the marker says that there is a config and the boot partition is not mounted, Clear fails and
// keeps the marker.
func (b Boot) Clear() error {
	staged := paths.Exists(b.Marker)
	if staged {
		if err := b.requireMount(); err != nil {
			return fmt.Errorf("remove the staged config: %w", err)
		}
	}
	dir := filepath.Join(b.Dir, folder)
	left := slices.DeleteFunc([]string{
		filepath.Join(b.Dir, flag), filepath.Join(b.Dir, temporary),
		filepath.Join(dir, config), filepath.Join(dir, temporary),
	}, func(file string) bool { return !paths.Exists(file) })
	if len(left) > 0 {
		if err := b.writable(); err != nil {
			return fmt.Errorf("make %s writable: %w", b.Dir, err)
		}
	}
	if staged || len(left) > 0 {
		if err := errors.Join(remove(filepath.Join(b.Dir, flag)), sync(b.Dir), b.flush()); err != nil {
			return fmt.Errorf("remove the flag of the staged config: %w", err)
		}
	}
	var errs []error
	for _, file := range left {
		if paths.Exists(file) {
			errs = append(errs, erase(file), remove(file), sync(filepath.Dir(file)))
		}
	}
	// It may have files of others.
	if err := os.Remove(dir); err == nil {
		errs = append(errs, sync(b.Dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the staged config: %w", err)
	}
	return remove(b.Marker)
}

// WriteFile writes a file with mode 0600, and makes it and its name durable. After a crash the file has its earlier
// content or the new one. A file that has the content already is not written.
func WriteFile(path string, content []byte) error {
	dir := filepath.Dir(path)
	if has, err := os.ReadFile(path); err == nil && bytes.Equal(has, content) {
		return errors.Join(sync(path), sync(dir)) // an earlier call may have ended before that
	}
	temporary := filepath.Join(dir, temporary)
	if err := write(temporary, content); err != nil {
		return errors.Join(err, remove(temporary))
	}
	return errors.Join(os.Rename(temporary, path), sync(dir))
}

// write writes a file with mode 0600, durably.
func write(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// sync makes a file, or the entries of a folder, durable.
func sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, unix.EINVAL) { // vfat has no fsync of folders
		err = nil
	}
	return errors.Join(err, f.Close())
}

// erase overwrites a file in place: the boot partition is not encrypted, and keeps the content of a deleted file.
func erase(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		_, err = f.Write(make([]byte, info.Size()))
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// remove removes a file if it exists. On a read-only mount, unlink fails with EROFS before it looks for the file.
func remove(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
