// SPDX-License-Identifier: Apache-2.0

// Package volumetest provides devices that tests can mount without root: a file with the right
// magic bytes, and a folder with the device's content.
package volumetest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/volume"
)

// Disk is a device and its content.
type Disk struct {
	Device string
	Tree   string // the folder that a mount provides
}

// treeSuffix is appended to a device's name to form the name of its content.
const treeSuffix = ".tree"

// New creates a device that claims to have the file system.
func New(t testing.TB, filesystem string, files map[string]string) Disk {
	t.Helper()
	return At(t, filepath.Join(t.TempDir(), "device"), filesystem, files)
}

// At is like New, at the path that the caller chooses.
func At(t testing.TB, device, filesystem string, files map[string]string) Disk {
	t.Helper()
	d := Disk{device, device + treeSuffix}
	image := make([]byte, 64<<10)
	switch filesystem {
	case volume.ISO9660:
		copy(image[32<<10:], "\x01CD001\x01")
	case volume.UDF:
		image = UDF()
	case volume.FAT:
		copy(image[54:], "FAT16   ")
		image[510], image[511] = 0x55, 0xAA
	}
	if err := os.MkdirAll(d.Tree, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		file := filepath.Join(d.Tree, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The device is created last, so that a test that waits for it finds all content.
	if err := os.WriteFile(device+".new", image, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(device+".new", device); err != nil {
		t.Fatal(err)
	}
	return d
}

// UDF returns the beginning of a device with only UDF.
func UDF() []byte {
	image := make([]byte, 64<<10)
	for i, name := range []string{"BEA01", "NSR02", "TEA01"} {
		copy(image[32<<10+i*2<<10:], "\x00"+name+"\x01")
	}
	return image
}

// Mount moves the device's content to the folder and, on unmount, back.
func Mount(device, _, dir string) (func() error, error) {
	tree := device + treeSuffix
	if err := os.Remove(dir); err != nil {
		return nil, err
	}
	if err := os.Rename(tree, dir); err != nil {
		return nil, err
	}
	return func() error {
		if err := os.Rename(dir, tree); err != nil {
			return err
		}
		return os.Mkdir(dir, 0o700)
	}, nil
}
