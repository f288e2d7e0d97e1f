// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"os"
	"strings"
)

// GRUB boots as most distributions do: shim, signed by Microsoft, starts GRUB, signed by Debian, which
// starts Debian's signed kernel. Secure Boot does not cover the initramfs, grub.cfg and the command
// line; GRUB measures them into the PCRs 8 and 9.
type GRUB struct {
	Initrd Initrd
	// Cmdline is added to the usual command line, in grub.cfg.
	Cmdline string
	// Commands are added to grub.cfg before the entry.
	Commands []string
	// Menu makes a grub.cfg with the constructs that grub-mkconfig writes: a saved environment, functions,
	// a menu entry, and a submenu with a recovery entry.
	Menu bool
}

const (
	shim       = "/usr/lib/shim/shimx64.efi.signed"
	mokManager = "/usr/lib/shim/mmx64.efi.signed"
	signedGRUB = "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed"
)

// config returns grub.cfg. As on CoreOS, a file on the boot partition makes the boot a first boot.
func (g GRUB) config(platform string) string {
	lines := []string{
		"set timeout=0",
		`set ignition_firstboot=""`,
		`if [ -f "/ignition.firstboot" ]; then`,
		`  set ignition_firstboot="` + strings.TrimPrefix(firstBoot(platform), bareCmdline+" ") + `"`,
		"fi",
	}
	lines = append(lines, g.Commands...)
	line := bareCmdline
	if g.Cmdline != "" {
		line += " " + g.Cmdline
	}
	if g.Menu {
		return strings.Join(append(lines, menu(line)), "\n")
	}
	return strings.Join(append(lines,
		"linux /vmlinuz "+line+" $ignition_firstboot",
		"initrd /initrd.img",
		"boot", ""), "\n")
}

// menu returns the constructs of a generated configuration. GRUB starts the first entry immediately.
func menu(line string) string {
	entry := func(title, id, line string) string {
		return `menuentry '` + title + `' --class debian $menuentry_id_option '` + id + `' {
	load_video
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	search --no-floppy --file --set=root /initrd.img
	echo	'Loading Linux ...'
	linux	/vmlinuz ` + line + `  $ignition_firstboot
	echo	'Loading initial ramdisk ...'
	initrd	/initrd.img
}
`
	}
	return `if [ -s /grubenv ]; then
  set have_grubenv=true
  load_env -f /grubenv
fi
if [ "${next_entry}" ]; then
  set default="${next_entry}"
else
  set default="0"
fi
if [ x"${feature_menuentry_id}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi
export menuentry_id_option
function load_video {
  if [ x$feature_all_video_module = xy ]; then
    insmod all_video
  else
    insmod efi_gop
  fi
}
font=unicode
if loadfont $font; then
  set gfxmode=auto
fi
` + entry("Debian GNU/Linux", "simple", line) + "submenu 'Advanced options' $menuentry_id_option 'advanced' {\n" +
		entry("Debian GNU/Linux (recovery mode)", "recovery", line+" single") + "}\n"
}

// BootFiles writes the files that this machine boots from to a folder, as an installed image has them.
func (r *Rig) BootFiles(g GRUB) string {
	r.t.Helper()
	dir, err := os.MkdirTemp(r.dir, "boot-")
	r.fatal(err, "boot files")
	r.copyFiles(g.files(r, false, ""), dir)
	return dir
}

// copyFiles copies files, by their names in a folder, to that folder.
func (r *Rig) copyFiles(files map[string]string, dir string) {
	r.t.Helper()
	for name, from := range files {
		b, err := os.ReadFile(from)
		r.fatal(err, "boot files")
		r.writeFiles(map[string]string{name: string(b)}, dir)
	}
}

// files returns what the EFI system partition contains. It is also the boot partition.
func (g GRUB) files(r *Rig, later bool, platform string) map[string]string {
	r.t.Helper()
	g.Initrd.Compress = true
	kernel, _ := r.Kernel(g.Initrd.System)
	files := map[string]string{
		"EFI/BOOT/BOOTX64.EFI": shim,
		"EFI/BOOT/grubx64.efi": signedGRUB,
		"EFI/BOOT/mmx64.efi":   mokManager,
		"EFI/debian/grub.cfg":  r.text("grub.cfg", g.config(platform)),
		"vmlinuz":              kernel,
		"initrd.img":           r.Build(g.Initrd),
	}
	if g.Menu {
		env := "# GRUB Environment Block\nboot_success=1\n"
		files["grubenv"] = r.text("grubenv", env+strings.Repeat("#", 1024-len(env)))
	}
	if !later {
		files["ignition.firstboot"] = r.text("flag", "")
	}
	return files
}
