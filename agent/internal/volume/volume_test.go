// SPDX-License-Identifier: Apache-2.0

package volume_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/volume"
	"github.com/mcs-attest/mcs-attest/agent/internal/volume/volumetest"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
)

var every = []string{volume.ISO9660, volume.UDF, volume.FAT}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestIdentify_RealImages(t *testing.T) {
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	must(t, os.MkdirAll(filepath.Join(tree, "openstack/latest"), 0o755))
	must(t, os.WriteFile(filepath.Join(tree, "openstack/latest/user_data"), []byte("{}"), 0o644))
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	for _, c := range []struct {
		name string
		make func(image string)
		want []string
	}{
		{"ISO 9660 as Nova makes it", func(image string) {
			run("genisoimage", "-quiet", "-o", image, "-ldots", "-allow-lowercase", "-allow-multidot", "-l", "-J", "-r", "-V",
				"config-2", tree)
		}, []string{volume.ISO9660}},
		{"a hybrid of ISO 9660 and UDF", func(image string) {
			run("genisoimage", "-quiet", "-o", image, "-udf", "-V", "config-2", tree)
		}, []string{volume.ISO9660, volume.UDF}},
		{"FAT16", func(image string) { run("mkfs.vfat", "-F", "16", "-n", "CONFIG-2", "-C", image, "16384") },
			[]string{volume.FAT}},
		{"FAT32", func(image string) { run("mkfs.vfat", "-F", "32", "-n", "CONFIG-2", "-C", image, "65536") },
			[]string{volume.FAT}},
		{"ext4", func(image string) { run("mkfs.ext4", "-q", "-L", "config-2", image, "1M") }, nil},
		{"UDF only", func(image string) { must(t, os.WriteFile(image, volumetest.UDF(), 0o600)) }, []string{volume.UDF}},
		{"nothing", func(image string) { must(t, os.WriteFile(image, make([]byte, 1<<20), 0o600)) }, nil},
		{"an empty device", func(image string) { must(t, os.WriteFile(image, nil, 0o600)) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			image := filepath.Join(t.TempDir(), "image")
			c.make(image)
			f, err := os.Open(image)
			must(t, err)
			defer func() { _ = f.Close() }()
			if got := volume.Identify(f, every); !slices.Equal(got, c.want) {
				t.Errorf("Identify returned %v, want %v", got, c.want)
			}
		})
	}
}

func TestVolume(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(outside, []byte("a file of the machine"), 0o600))
	for _, c := range []struct {
		name, file string
		content    func(dir string)
		want       string
		err        string
	}{
		{"a file", "openstack/latest/user_data", func(string) {}, "from the drive", ""},
		{"a link inside", "latest", func(dir string) {
			must(t, os.Symlink("openstack/latest/user_data", filepath.Join(dir, "latest")))
		}, "from the drive", ""},
		{"a missing file", "user-data", func(string) {}, "", "no such file"},
		{"an absolute link out", "out", func(dir string) { must(t, os.Symlink(outside, filepath.Join(dir, "out"))) }, "",
			"escapes"},
		{"a relative link out", "out", func(dir string) {
			must(t, os.Symlink("../../../../../../../.."+outside, filepath.Join(dir, "out")))
		}, "", "escapes"},
		{"a folder that is a link out", "out/secret", func(dir string) {
			must(t, os.Symlink(filepath.Dir(outside), filepath.Join(dir, "out")))
		}, "", "escapes"},
		{"a link to itself", "loop", func(dir string) { must(t, os.Symlink("loop", filepath.Join(dir, "loop"))) }, "",
			"too many"},
		{"a FIFO without a writer", "fifo", func(dir string) {
			must(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
		}, "", "not a regular file"},
		{"a folder", "openstack", func(string) {}, "", "not a regular file"},
		{"a file of the largest size", "large", func(dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "large"), make([]byte, pointer.MaxSize), 0o600))
		}, string(make([]byte, pointer.MaxSize)), ""},
		{"a file that is too large", "large", func(dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "large"), nil, 0o600))
			must(t, os.Truncate(filepath.Join(dir, "large"), 1<<40))
		}, "", "more than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := t.TempDir()
			disk := volumetest.New(t, volume.ISO9660, map[string]string{"openstack/latest/user_data": "from the drive"})
			c.content(disk.Tree)
			v, err := volume.Reader{Run: run, Mount: volumetest.Mount}.Open(disk.Device, every...)
			must(t, err)
			raw, err := v.ReadFile(c.file)
			must(t, v.Close())
			if string(raw) != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("have %d bytes and error %v", len(raw), err)
			}
			left, err := os.ReadDir(run)
			must(t, err)
			if len(left) > 0 {
				t.Errorf("%s is left", left[0].Name())
			}
		})
	}
}

func TestOpen(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	r := volume.Reader{Run: run, Mount: volumetest.Mount}
	if _, err := r.Open(filepath.Join(t.TempDir(), "config-2"), every...); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no device: %v", err)
	}
	disk := volumetest.New(t, volume.ISO9660, nil)
	if _, err := r.Open(disk.Device, volume.UDF, volume.FAT); !errors.Is(err, volume.ErrForeign) {
		t.Errorf("a file system that was not asked for: %v", err)
	}
	if _, err := os.Stat(run); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder was created for a device that is not mounted: %v", err)
	}
	r.Mount = func(string, string, string) (func() error, error) { return nil, errors.New("damaged") }
	if _, err := r.Open(disk.Device, every...); err == nil ||
		!strings.Contains(err.Error(), "mounting it as iso9660: damaged") {
		t.Errorf("a mount that fails: %v", err)
	}
	if left, err := os.ReadDir(run); err != nil || len(left) > 0 {
		t.Errorf("mount points left: %v, %v", left, err)
	}
	var tried []string
	r.Mount = func(_, kind, dir string) (func() error, error) {
		tried = append(tried, kind)
		return nil, errors.New("no")
	}
	hybrid := filepath.Join(t.TempDir(), "hybrid")
	must(t, os.WriteFile(hybrid, append(volumetest.UDF()[:64<<10:64<<10], 0), 0o600))
	if _, err := r.Open(hybrid, every...); err == nil || !slices.Equal(tried, []string{volume.UDF}) {
		t.Errorf("tried %v: only what the device claims is mounted", tried)
	}
}

func FuzzIdentify(f *testing.F) {
	f.Add([]byte{})
	f.Add(volumetest.UDF())
	f.Add(append(make([]byte, 32<<10), "\x01CD001"...))
	f.Fuzz(func(t *testing.T, image []byte) {
		for _, kind := range volume.Identify(strings.NewReader(string(image)), every) {
			if !slices.Contains(every, kind) {
				t.Errorf("%s", kind)
			}
		}
	})
}

// A device that fails may have the file system.
func TestOpen_AnErrorOfTheDeviceIsNotAnotherFileSystem(t *testing.T) {
	folder := t.TempDir() // reading it fails
	if _, err := (volume.Reader{Run: t.TempDir()}).Open(folder, every...); !errors.Is(err, syscall.EISDIR) {
		t.Errorf("error %v", err)
	}
}
