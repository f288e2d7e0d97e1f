// SPDX-License-Identifier: Apache-2.0

// Package volume reads files from a block device with untrusted content, such as a config drive or
// a cloud's CD-ROM.
//
// [Reader.Open] and [Volume.ReadFile] limit what the content can do:
//
//  1. The magic bytes identify the file system. Only one that the caller names is mounted, so most
//     drivers never see an untrusted image.
//  2. The mount is read-only, nosuid, nodev and noexec, in a new folder that only root can enter.
//     [Volume.Close] unmounts it.
//  3. Names are resolved inside the mount: a symbolic link cannot lead out of it.
//  4. Only a regular file is read, never a device or a FIFO, and at most [pointer.MaxSize] bytes.
//
// This does not protect against a defect in the kernel's driver. Ignition mounts the same device
// moments later, with any file system that the device claims to have.
package volume

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/mcs-attest/mcs-attest/pkg/bounded"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

// The supported file systems, by the names of mount(2).
const (
	ISO9660 = "iso9660"
	UDF     = "udf"
	FAT     = "vfat"
)

// ErrForeign reports that the device has none of the requested file systems.
var ErrForeign = errors.New("it holds no file system of the expected kind")

// Mount mounts a device's file system read-only on a folder. Tests replace it.
type Mount func(device, filesystem, dir string) (unmount func() error, err error)

// Reader opens volumes.
type Reader struct {
	Run   string // the folder for mount points
	Mount Mount  // nil: the kernel's
}

// Volume is a mounted volume. The caller must close it.
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
		return nil, fmt.Errorf("creating a mount point: %w", err)
	}
	dir, err := os.MkdirTemp(r.Run, "volume-") // mode 0700
	if err != nil {
		return nil, fmt.Errorf("creating a mount point: %w", err)
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

// kinds returns the given file systems that the device claims to have.
func kinds(device string, filesystems []string) ([]string, error) {
	f, err := os.Open(device)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	content := &recorder{ReaderAt: f}
	found := Identify(content, filesystems)
	switch {
	case len(found) == 0 && content.err != nil:
		return nil, content.err
	case len(found) == 0:
		return nil, ErrForeign
	}
	return found, nil
}

// recorder keeps the first error other than the end of the device.
type recorder struct {
	io.ReaderAt
	err error
}

func (r *recorder) ReadAt(p []byte, offset int64) (int, error) {
	n, err := r.ReaderAt.ReadAt(p, offset)
	if r.err == nil && err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// Close unmounts the volume and removes its mount point.
func (v *Volume) Close() error {
	return errors.Join(v.root.Close(), v.unmount(), os.Remove(v.dir))
}

// ReadFile reads a whole file. The error for a missing file matches fs.ErrNotExist.
func (v *Volume) ReadFile(name string) ([]byte, error) {
	// Opening a FIFO would block until a process writes to it.
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
	raw, err := bounded.Read(f, pointer.MaxSize)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return raw, nil
}

// Has reports whether name exists in the volume.
func (v *Volume) Has(name string) bool {
	_, err := v.root.Stat(name)
	return err == nil
}

// kernelMount calls mount(2). It unmounts lazily, so that another process with an open folder does
// not prevent it.
func kernelMount(device, filesystem, dir string) (func() error, error) {
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount(device, dir, filesystem, flags, ""); err != nil {
		if errors.Is(err, unix.ENODEV) {
			err = errors.New("the kernel has no such file system; add its module to the initramfs")
		}
		return nil, err
	}
	return func() error { return unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) }, nil
}
