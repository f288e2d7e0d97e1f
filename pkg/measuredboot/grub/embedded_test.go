// SPDX-License-Identifier: Apache-2.0

package grub

import (
	"os"
	"slices"
	"testing"
)

// signedGRUB is in Debian's package grub-efi-amd64-signed.
const signedGRUB = "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed"

func TestEmbedded_DebianHasAMemoryDisk(t *testing.T) {
	f, err := os.Open(signedGRUB)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	scripts, err := Embedded(f)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := Read(scripts...)
	if err != nil {
		t.Fatal(err)
	}
	// As measured in the capture ovmf-shim16-grub of package eventlogtest.
	for _, want := range []string{"[ -z * -o ! -e * ]", "source */grub.cfg"} {
		if !slices.Contains(boot.Commands, want) {
			t.Errorf("no %q in %q", want, boot.Commands)
		}
	}
}

func TestEmbedded_DeniesOtherImages(t *testing.T) {
	for _, path := range []string{"/usr/lib/shim/shimx64.efi.signed", "/etc/passwd"} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := Embedded(f); err == nil {
			t.Errorf("%s was read as GRUB", path)
		}
	}
}

func FuzzMemdisk(f *testing.F) {
	disk := make([]byte, 8*512)
	copy(disk[11:], []byte{0, 2, 1, 1, 0, 1, 16, 0, 8, 0, 0xF8, 1, 0})
	disk[510], disk[511] = 0x55, 0xAA
	copy(disk[1024:], "GRUB    CFG")
	disk[1024+26], disk[1024+28] = 2, 5
	copy(disk[1536:], "boot\n")
	f.Add(disk)
	f.Fuzz(func(t *testing.T, disk []byte) {
		scripts, err := memdisk(disk)
		for _, s := range scripts {
			if err != nil || len(s.Text) > len(disk) {
				t.Errorf("%d bytes from %d, %v", len(s.Text), len(disk), err)
			}
		}
	})
}
