// Package volume reads files from a block device that somebody else filled: a
// config drive, a CD-ROM of the cloud's.
//
// Nothing on the device is trusted. [Reader.Open] and [Volume.ReadFile] keep to
// this order:
//
//  1. the file system is told by its magic bytes, and only one of those that the
//     caller names is mounted: no driver meets an image that does not claim to
//     be its own, and most drivers meet none;
//  2. it is mounted read-only, nosuid, nodev, noexec, in a folder made for it
//     that only root can enter, and unmounted by [Volume.Close];
//  3. a name is resolved inside of it: a symbolic link cannot lead out;
//  4. only a regular file is read (nothing that blocks, no device), and no more
//     than [pointer.MaxSize] bytes.
//
// What the kernel's driver makes of a damaged image is the kernel's. Ignition
// mounts the same device moments later, and any file system that it claims.
package volume

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// The file systems that are known by their magic bytes, as mount(2) names them.
const (
	ISO9660 = "iso9660"
	UDF     = "udf"
	FAT     = "vfat"
)

// ErrForeign reports that the device holds none of the file systems that were asked for.
var ErrForeign = errors.New("it holds no file system of the expected kind")

// Mount mounts a device's file system read-only on a folder. Tests have another.
type Mount func(device, filesystem, dir string) (unmount func() error, err error)

// Reader opens volumes.
type Reader struct {
	Run   string // the folder in which the mount points are made
	Mount Mount  // nil: the kernel's
}

// Volume is one that is mounted. Close it.
type Volume struct {
	dir     string
	root    *os.Root
	unmount func() error
}

// Open mounts the device if it has one of the file systems.
func (r Reader) Open(device string, filesystems ...string) (_ *Volume, err error) {
	found, err := kinds(device, filesystems)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.Run, 0o700); err != nil {
		return nil, fmt.Errorf("making a mount point: %w", err)
	}
	dir, err := os.MkdirTemp(r.Run, "volume-") // mode 0700
	if err != nil {
		return nil, fmt.Errorf("making a mount point: %w", err)
	}
	mount := r.Mount
	if mount == nil {
		mount = kernelMount
	}
	var failed error
	for _, kind := range found {
		unmount, err := mount(device, kind, dir)
		if err != nil {
			failed = fmt.Errorf("mounting it as %s: %w", kind, err)
			continue
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, errors.Join(err, unmount(), os.Remove(dir))
		}
		return &Volume{dir, root, unmount}, nil
	}
	return nil, errors.Join(failed, os.Remove(dir))
}

// kinds are those of the file systems that the device claims to have.
func kinds(device string, filesystems []string) ([]string, error) {
	f, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	found := Identify(f, filesystems)
	if len(found) == 0 {
		return nil, ErrForeign
	}
	return found, nil
}

// Close unmounts the volume and removes its mount point.
func (v *Volume) Close() error {
	return errors.Join(v.root.Close(), v.unmount(), os.Remove(v.dir))
}

// ReadFile reads one file whole; an error that is fs.ErrNotExist if there is none.
func (v *Volume) ReadFile(name string) ([]byte, error) {
	// A FIFO would hold the open until somebody writes.
	f, err := v.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	raw, err := io.ReadAll(io.LimitReader(f, pointer.MaxSize+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > pointer.MaxSize {
		return nil, fmt.Errorf("%s has more than %d bytes", name, pointer.MaxSize)
	}
	return raw, nil
}

// Has reports whether the name leads to something in the volume.
func (v *Volume) Has(name string) bool {
	_, err := v.root.Stat(name)
	return err == nil
}

// kernelMount is mount(2). The unmount is lazy: whoever else looks at the folder
// in that moment does not keep it.
func kernelMount(device, filesystem, dir string) (func() error, error) {
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount(device, dir, filesystem, flags, ""); err != nil {
		if errors.Is(err, unix.ENODEV) {
			err = errors.New("the kernel has no such file system; its module belongs into the initramfs")
		}
		return nil, err
	}
	return func() error { return unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) }, nil
}
