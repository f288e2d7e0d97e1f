// SPDX-License-Identifier: Apache-2.0

package measuredboot_test

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
)

// mkconfig writes the boot folder of testdata/mkconfig, which grub-mkconfig of Debian 12 generated.
func mkconfig(t testing.TB) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/mkconfig")); err != nil {
		t.Fatal(err)
	}
	for to, from := range map[string]string{
		"efi/EFI/debian/shimx64.efi":        shimImage,
		"efi/EFI/debian/grubx64.efi":        "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed",
		"vmlinuz-6.1.0-56-cloud-amd64":      "/usr/lib/shim/mmx64.efi.signed",
		"grub/fonts/unicode.pf2":            "testdata/README.md",
		"grub/x86_64-efi/command.lst":       "testdata/README.md",
		"initrd.img-6.1.0-56-cloud-amd64":   "testdata/README.md",
		"grub/grubenv":                      "",
		"grub/x86_64-efi/not-measured.mod":  "testdata/README.md",
		"config-6.1.0-56-cloud-amd64":       "testdata/README.md",
		"efi/EFI/debian/fallback-of-no-use": "testdata/README.md",
	} {
		content := []byte("# GRUB Environment Block\n" + strings.Repeat("#", 999))
		if from != "" {
			var err error
			if content, err = os.ReadFile(from); err != nil {
				t.Fatal(err)
			}
		}
		put(t, dir, to, string(content))
	}
	return dir
}

// The simple entry and the first one of the submenu load the same.
func TestFromBootFiles_ComputesAGeneratedConfiguration(t *testing.T) {
	refs := refValsOf(t, mkconfig(t))
	if len(refs) != 2 {
		t.Fatalf("%d documents", len(refs))
	}
	const line = "/boot/vmlinuz-6.1.0-56-cloud-amd64 root=UUID=6a7b2c1e-0f5d-4b6e-9a51-3c2d7e8f9012 ro "
	for i, want := range []measuredboot.Words{line + "quiet", line + "single"} {
		if !slices.Equal(refs[i].CommandLines, []measuredboot.Words{want}) || len(refs[i].Loads) != 2 {
			t.Errorf("document %s: %q loads %v", refs[i].Metadata.Name, refs[i].CommandLines, refs[i].Loads)
		}
	}
	for _, want := range []string{
		"search.fs_uuid 6a7b2c1e-0f5d-4b6e-9a51-3c2d7e8f9012 root hd0,gpt2", "set prefix=(hd0,gpt2)/boot/grub",
		"configfile (hd0,gpt2)/boot/grub/grub.cfg", "[ -s (hd0,gpt2)/boot/grub/grubenv ]", "set have_grubenv=true",
		"load_env", "[  ]", "set default=0", "[ xy = xy ]", "menuentry_id_option=--id", "export menuentry_id_option",
		"loadfont unicode", "set gfxmode=auto", "insmod all_video", "terminal_output gfxterm", "set timeout=5",
		"set linux_gfx_mode=", "setparams Debian GNU/Linux", "setparams Advanced options for Debian GNU/Linux",
		"[ xefi = xxen ]", "echo Loading initial ramdisk ...", "set root=hd0,gpt2", "insmod gzio",
		"search --no-floppy --fs-uuid --set=root --hint-bios=hd0,gpt2 --hint-efi=hd0,gpt2 --hint-baremetal=ahci0,gpt2 " +
			"6a7b2c1e-0f5d-4b6e-9a51-3c2d7e8f9012",
	} {
		if !slices.ContainsFunc(refs[0].Commands, func(w measuredboot.Words) bool { return w.Match(want) }) {
			t.Errorf("no %q in %q", want, refs[0].Commands)
		}
	}
	if c := refs[0].Commands; !slices.IsSorted(c) || len(slices.Compact(slices.Clone(c))) != len(c) {
		t.Errorf("not sorted, or twice: %q", c)
	}
	var files []string
	for _, c := range refs[0].Files {
		files = append(files, c.Name)
	}
	slices.Sort(files)
	if want := []string{"/efi/EFI/debian/grub.cfg", "/grub/fonts/unicode.pf2", "/grub/grub.cfg", "/grub/grubenv",
		"/grub/x86_64-efi/command.lst"}; !slices.Equal(files, want) {
		t.Errorf("files %q", files)
	}
}

// A live image has no loader entries. Its initramfs and the configuration of Ignition are two archives.
func TestFromBootFiles_ALiveImage(t *testing.T) {
	dir := coreOS(t)
	remove(t, dir, "grub2/grub.cfg")
	remove(t, dir, "loader")
	put(t, dir, "EFI/fedora/grub.cfg", `set default="1"
function load_video { insmod all_video; }
load_video
menuentry 'CoreOS (Live)' --class os {
	linux /images/pxeboot/vmlinuz coreos.liveiso=fedora-coreos-43 ignition.firstboot ignition.platform.id=metal
########## space for more words
	initrd /images/pxeboot/initrd.img /images/ignition.img
}
`)
	kernel, err := os.ReadFile("/usr/lib/shim/mmx64.efi.signed")
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, "images/pxeboot/vmlinuz", string(kernel))
	put(t, dir, "images/pxeboot/initrd.img", "initramfs")
	put(t, dir, "images/ignition.img", "ignition")
	refs := refValsOf(t, dir)
	const line = "/images/pxeboot/vmlinuz coreos.liveiso=fedora-coreos-43 ignition.firstboot ignition.platform.id=metal"
	padded := []byte("initramfs\x00\x00\x00ignition")
	if len(refs) == 1 && (!bytes.Equal(refs[0].Initrd.SHA256, eventlog.Hash(eventlog.SHA256, padded)) ||
		!bytes.Equal(refs[0].Initrd.SHA384, eventlog.Hash(eventlog.SHA384, padded))) {
		t.Errorf("both archives: %v", refs[0].Initrd)
	}
	if len(refs) != 1 || len(refs[0].Loads) != 3 || !slices.Equal(refs[0].CommandLines, []measuredboot.Words{line}) {
		t.Errorf("got %v", refs)
	}
}

// What cannot be computed is refused with its place and what to do.
func TestFromBootFiles_DeniesWhatItCannotCompute(t *testing.T) {
	const at = "grub/grub.cfg, line 119: the command linux: "
	for name, c := range map[string]struct{ old, with, want string }{
		"an unknown variable": {"ro  quiet", "ro $extra", at + "no file of this image sets the variable extra, " +
			"so it could be any parameter. Write the value where the variable is"},
		"a space in a word":   {"ro  quiet", "ro 'dyndbg=file a +p'", at + `the word "dyndbg=file a +p" has a space`},
		"an asterisk":         {"ro  quiet", "ro isolcpus=*", at + `the word "isolcpus=*" has an asterisk`},
		"a text from outside": {"load_video\n	insmod gzio", "eval $1", "grub/grub.cfg, line 107: the command eval: is"},
		"an unknown file":     {"set locale_dir=$prefix/locale", "source $x", "grub/grub.cfg, line 76: the command source: "},
		"a quote":             {"menu_color_normal=cyan/blue", "menu_color_normal='cyan/blue", "grub/grub.cfg, line "},
		"a missing kernel": {
			"/boot/vmlinuz-6.1.0-56-cloud-amd64 root", "/boot/vmlinux root", `an entry loads "boot/vml`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := mkconfig(t)
			edit(t, dir, "grub/grub.cfg", c.old, c.with)
			if r, err := fromBootFiles(dir); err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v, %v", r, err)
			}
		})
	}
}

// GRUB boots without an initramfs that it cannot read. Then no kernel may find another system by itself.
func TestAttack_T71_TheKernelFindsItsRootOnlyWithTheInitramfs(t *testing.T) {
	const root = "root=UUID=6a7b2c1e-0f5d-4b6e-9a51-3c2d7e8f9012"
	for with, denied := range map[string]bool{
		"root=/dev/vda2": true, "root=/dev/$boot_disk": true, "root=/dev/nfs": true, "root=PARTUUID=1-2": true,
		"root=PARTLABEL=root": true, "root=8:2": true, "root=0802": true, "root=mtd0": true, "root=ubi0:root": true,
		"root=$device": true, "root=0x0802": true, "root=/dev/cciss/c0d0p2": true, root + " root=/dev/sda1": true,
		root: false, "root=LABEL=root": false, "root=/dev/mapper/rhel-root": false, "root=live:CDLABEL=x": false,
		"systemd.root=/dev/vda2": false, "root=": false,
	} {
		dir := mkconfig(t)
		edit(t, dir, "grub/grub.cfg", "set timeout=", "set boot_disk=vda\nset device=/dev/vda2\nset timeout=")
		edit(t, dir, "grub/grub.cfg", root+" ro  quiet", with+" ro  quiet")
		r, err := fromBootFiles(dir)
		if (err != nil) != denied || denied && !strings.Contains(err.Error(), "which the kernel mounts itself") {
			t.Errorf("%s: %d documents, %v", with, len(r), err)
		}
	}
}
