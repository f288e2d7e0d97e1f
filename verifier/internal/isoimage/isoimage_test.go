// SPDX-License-Identifier: Apache-2.0

package isoimage

import (
	"bytes"
	"encoding/binary"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v, %s", name, args, err, out)
	}
}

func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// partitionOf writes a FAT file system of some KiB. Its first file is removed, so that a later one is not contiguous.
func partitionOf(t testing.TB, out string, kib int, files map[string]string, options ...string) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, files)
	write(t, dir, map[string]string{"removed": strings.Repeat("x", 3000)})
	run(t, "mkfs.vfat", append(options, "-C", out, strconv.Itoa(kib))...)
	run(t, "mcopy", "-i", out, filepath.Join(dir, "removed"), "::")
	written := map[string]bool{".": true}
	var folder func(string)
	folder = func(d string) {
		if !written[d] {
			folder(filepath.Dir(d))
			written[d] = true
			run(t, "mmd", "-i", out, "::/"+d)
		}
	}
	for i, name := range slices.Sorted(maps.Keys(files)) {
		folder(filepath.Dir(name))
		if i == 1 {
			run(t, "mdel", "-i", out, "::/removed")
		}
		run(t, "mcopy", "-i", out, filepath.Join(dir, name), "::/"+name)
	}
}

// imageOf returns an ISO image with files, and with a partition of the folder efi.
func imageOf(t testing.TB, files map[string]string, fat func(out string), options ...string) []byte {
	t.Helper()
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "live.iso")
	write(t, dir, files)
	args := append([]string{"-quiet", "-o", out}, options...)
	if fat != nil {
		write(t, dir, map[string]string{"images/keep": ""})
		fat(filepath.Join(dir, "images/efiboot.img"))
		args = append(args, "-eltorito-alt-boot", "-e", "images/efiboot.img", "-no-emul-boot")
	}
	run(t, "xorrisofs", append(args, dir)...)
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// rockRidge are the options that the live images of Fedora CoreOS and RHCOS are written with.
var rockRidge = []string{"-rational-rock", "-J", "-joliet-long"}

// contents are files of both file systems. A long name needs a continuation area, and several entries of FAT.
var (
	long  = strings.Repeat("a long name with spaces ", 9) + ".conf"
	tree0 = map[string]string{
		"EFI/fedora/grub.cfg":        "linux /images/pxeboot/vmlinuz\n",
		"images/pxeboot/vmlinuz":     strings.Repeat("kernel", 1000),
		"images/pxeboot/initrd.img":  "initramfs",
		"images/ignition.img":        "",
		"a/b/c/d/e/f/g/h/deep":       "deep",
		"loader/entries/" + long:     "entry",
		"loader/entries/UPPER.lower": "mixed",
	}
	partition0 = map[string]string{
		"EFI/BOOT/BOOTX64.EFI": strings.Repeat("shim", 2000),
		"EFI/BOOT/grub.cfg":    "configfile",
		"EFI/BOOT/grubx64.efi": strings.Repeat("GRUB", 3000),
		"EFI/fedora/" + long:   "long",
		"EFI/fedora/empty":     "",
		"readme.TXT":           "lower case base",
	}
)

func open(t testing.TB, image []byte) fs.FS {
	t.Helper()
	files, err := Open(bytes.NewReader(image), int64(len(image)))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestOpen_HasTheFilesOfBothFileSystems(t *testing.T) {
	for name, c := range map[string]struct {
		kib     int
		options []string
	}{
		"FAT12":                 {128, nil},
		"FAT16":                 {8 << 10, []string{"-F", "16", "-s", "1"}},
		"FAT32":                 {34 << 10, []string{"-F", "32", "-s", "1"}},
		"sectors of 2048 bytes": {512, []string{"-S", "2048", "-s", "2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := open(t, imageOf(t, tree0, func(out string) {
				partitionOf(t, out, c.kib, partition0, c.options...)
			}, rockRidge...))
			want := maps.Clone(tree0)
			for name, content := range partition0 {
				want["efi/"+name] = content
			}
			if err := fstest.TestFS(files, slices.Collect(maps.Keys(want))...); err != nil {
				t.Fatal(err)
			}
			for name, content := range want {
				if got, err := fs.ReadFile(files, name); err != nil || string(got) != content {
					t.Errorf("%s: %d bytes, %v, expected %d bytes", name, len(got), err, len(content))
				}
			}
			if f, err := files.Open("efi/EFI/BOOT/GRUBX64.EFI"); err == nil {
				t.Errorf("a name in another case: %v", f)
			}
		})
	}
}

// A partition behind the file system, as images of other distributions have it, has no file in the ISO.
func TestOpen_ReadsAnAppendedPartition(t *testing.T) {
	esp := filepath.Join(t.TempDir(), "esp")
	partitionOf(t, esp, 128, partition0)
	files := open(t, imageOf(t, tree0, nil, "-rational-rock", "-append_partition", "2", "0xef", esp,
		"-eltorito-alt-boot", "-e", "--interval:appended_partition_2:all::", "-no-emul-boot"))
	if got, err := fs.ReadFile(files, "efi/EFI/BOOT/grub.cfg"); err != nil || string(got) != "configfile" {
		t.Errorf("got %q, %v", got, err)
	}
}

// A file of several extents is larger than 4 GB. Its parts here are the first 4 KB of the kernel, and the rest.
func TestOpen_ReadsAFileOfSeveralExtents(t *testing.T) {
	image := small(t)
	at := record(t, image, "VMLINUZ.;1")
	rest := bytes.Clone(image[at : at+int(image[at])])
	image[at+25] |= flagContinue
	both(image[at+10:], 4096)
	both(rest[2:], binary.LittleEndian.Uint32(rest[2:])+2)
	both(rest[10:], binary.LittleEndian.Uint32(rest[10:])-4096)
	copy(image[at+len(rest):], rest) // at the end of its folder
	if got, err := fs.ReadFile(open(t, image), "images/pxeboot/vmlinuz"); err != nil ||
		string(got) != tree0["images/pxeboot/vmlinuz"] {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// both writes a number in both byte orders.
func both(b []byte, n uint32) {
	binary.LittleEndian.PutUint32(b, n)
	binary.BigEndian.PutUint32(b[4:], n)
}

// small returns an image with a small FAT file system.
func small(t testing.TB) []byte {
	t.Helper()
	return imageOf(t, tree0, func(out string) { partitionOf(t, out, 96, partition0) }, "-rational-rock")
}

// record returns the position of a directory record by its ISO 9660 name.
func record(t testing.TB, image []byte, name string) int {
	t.Helper()
	at := bytes.Index(image, append([]byte{byte(len(name))}, name...))
	if at < 0 {
		t.Fatalf("no record of %s", name)
	}
	return at - minRecord + 1
}

func TestOpen_Denies(t *testing.T) {
	image := small(t)
	esp := bytes.Index(image, []byte("mkfs.fat")) - 3
	catalog := bytes.Index(image, []byte{0x55, 0xAA, 0x88}) - 30
	bootx64 := bytes.Index(image[esp:], []byte("BOOTX64 EFI")) + esp
	efi := bytes.Index(image[esp:], []byte("EFI        ")) + esp
	if esp < 0 || catalog < 0 || bootx64 < esp || efi < esp {
		t.Fatal(esp, catalog, bootx64, efi)
	}
	const rootAt = firstDescriptor*sectorSize + rootRecord
	kernel := func(b []byte) []byte { return b[record(t, b, "VMLINUZ.;1"):] }
	for name, c := range map[string]struct {
		change func(b []byte)
		want   string
	}{
		"another file":           {func(b []byte) { b[firstDescriptor*sectorSize+1] = 'X' }, "not an ISO 9660 image"},
		"no primary descriptor":  {func(b []byte) { b[firstDescriptor*sectorSize] = 3 }, "no primary volume descriptor"},
		"another block size":     {func(b []byte) { b[firstDescriptor*sectorSize+129] = 2 }, "blocks of 512 bytes"},
		"no boot record":         {func(b []byte) { b[(firstDescriptor+1)*sectorSize] = 3 }, "catalog: the image has none"},
		"no catalog":             {func(b []byte) { b[catalog] = 0 }, "not that of El Torito"},
		"a platform without EFI": {func(b []byte) { b[catalog+1] = 0 }, "0 images for EFI"},
		"two images for EFI":     {func(b []byte) { copy(b[catalog+64:], b[catalog+32:catalog+64]) }, "2 images for EFI"},
		"an EFI partition outside": {func(b []byte) { b[catalog+32+11] = 0x7F },
			"the image for EFI is outside of the image"},
		"a file outside":             {func(b []byte) { both(kernel(b)[2:], 1<<31) }, "vmlinuz: the file is outside"},
		"an interleaved file":        {func(b []byte) { kernel(b)[26] = 1 }, "interleaved"},
		"extended attributes":        {func(b []byte) { kernel(b)[1] = 1 }, "extended attributes"},
		"a file that does not end":   {func(b []byte) { kernel(b)[25] |= flagContinue }, "the last file does not end"},
		"a wrong length of a record": {func(b []byte) { kernel(b)[0] = 34 }, "wrong length"},
		"a wrong length of an entry": {func(b []byte) { kernel(b)[minRecord+11+2] = 3 }, "wrong length"},
		"a folder that contains itself": {func(b []byte) {
			r := b[record(t, b, "IMAGES"):]
			copy(r[2:18], b[rootAt+2:])
		}, "folders inside each other"},
		"an endless directory": {func(b []byte) { both(b[rootAt+10:], 1<<32-1) },
			"ISO 9660: "},
		"a name with a zero byte": {func(b []byte) {
			r := kernel(b)
			copy(r[bytes.Index(r, []byte("vmlinuz")):], "x\x00\x00\x00\x00\x00\x00")
		}, "is not supported"},
		"no FAT":                        {func(b []byte) { b[esp+510] = 0 }, "not a FAT file system"},
		"no clusters":                   {func(b []byte) { b[esp+19], b[esp+20] = 1, 0 }, "clusters"},
		"a cluster that does not exist": {func(b []byte) { b[efi+26], b[efi+27] = 0xF0, 0xF }, "does not exist"},
		"a FAT folder that contains itself": {func(b []byte) {
			at := bytes.Index(b[bootx64-512:], []byte(".          ")) // of EFI/BOOT
			copy(b[bootx64+11:bootx64+32], b[bootx64-512+at+11:])
			b[bootx64+11] = attrFolder
		}, "folders inside each other"},
		"files with more bytes than the image": {func(b []byte) { copy(b[bootx64+28:], "\xFF\xFF\xFF\x7F") },
			"more bytes than the image"},
	} {
		t.Run(name, func(t *testing.T) {
			b := bytes.Clone(image)
			c.change(b)
			files, err := Open(bytes.NewReader(b), int64(len(b)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, %v, expected an error with %q", files, err, c.want)
			}
		})
	}
	t.Run("no Rock Ridge", func(t *testing.T) {
		b := imageOf(t, map[string]string{"a": ""}, func(out string) { partitionOf(t, out, 96, partition0) },
			"-J", "--norock")
		if _, err := Open(bytes.NewReader(b), int64(len(b))); err == nil || !strings.Contains(err.Error(), "Rock Ridge") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a folder with the name of the partition", func(t *testing.T) {
		b := imageOf(t, map[string]string{"efi/a": ""}, func(out string) { partitionOf(t, out, 96, partition0) },
			"-rational-rock")
		if _, err := Open(bytes.NewReader(b), int64(len(b))); err == nil || !strings.Contains(err.Error(), "name efi") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a file that ends early", func(t *testing.T) {
		b := bytes.Clone(image)
		size := bytes.Clone(b[bootx64+28 : bootx64+32])
		binary.LittleEndian.PutUint32(b[bootx64+28:], binary.LittleEndian.Uint32(size)+10000)
		if got, err := fs.ReadFile(open(t, b), "efi/EFI/BOOT/BOOTX64.EFI"); err == nil {
			t.Errorf("%d bytes", len(got))
		}
	})
}

// Whatever the bytes are, all files can be listed, and each one is read to its size or to an error.
func FuzzOpen(f *testing.F) {
	image := small(f)
	f.Add(image)
	f.Add(image[:len(image)/2])
	f.Fuzz(func(t *testing.T, image []byte) {
		files, err := Open(bytes.NewReader(image), int64(len(image)))
		if err != nil {
			return
		}
		n, total := 0, int64(0)
		err = fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			f, err := files.Open(name)
			if err != nil {
				return err
			}
			info, err := f.Stat()
			if err != nil {
				return err
			}
			read, err := io.Copy(io.Discard, f)
			if err == nil && read != info.Size() {
				t.Errorf("%s: %d bytes, expected %d", name, read, info.Size())
			}
			n++
			total += read
			return nil
		})
		if err != nil || n > maxFiles || total > maxContent*int64(len(image)) {
			t.Fatalf("%d files, %d bytes, %v", n, total, err)
		}
	})
}
