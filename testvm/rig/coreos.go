// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// CoreOSDisk is a disk as coreos-installer leaves it, with a stand-in for Fedora CoreOS and RHCOS: a
// boot file system with the pointer config and a boot loader entry, and a root file system that
// OSTree deployed. Its initramfs has the units of CoreOS (guest/99coreos) and no agent. Unlike the
// rig's other disks, it keeps what machines change.
type CoreOSDisk struct {
	// Path is the raw image.
	Path string

	r *Rig
}

// The partitions, with the names that CoreOS gives them.
const (
	coreOSTable = "label: gpt\n" +
		"start=1MiB, size=1MiB, name=BIOS-BOOT\n" +
		"start=2MiB, size=126MiB, name=boot\n" +
		"start=128MiB, size=127MiB, name=root\n"
	coreOSSize = 256 << 20
	// localTarget is the target of the link /usr/local, because OSTree makes /usr read-only.
	localTarget = "../var/usrlocal"
	bootOffset  = 2 << 20
	rootOffset  = 128 << 20
)

// coreOSUnits returns the units of Fedora CoreOS and RHCOS. The tests of dracut/ check their ordering.
func (r *Rig) coreOSUnits() string {
	r.t.Helper()
	return string(r.Source("dracut/testdata/fcos.txt")) + string(r.Source("dracut/testdata/rhcos.txt"))
}

// NewCoreOSDisk creates a disk for which the installer got a pointer config.
func (r *Rig) NewCoreOSDisk(pointer []byte) *CoreOSDisk {
	r.t.Helper()
	kernel, version := r.Kernel(CoreOS)
	initrd := r.Build(Initrd{System: CoreOS, Agent: NoAgent, Compress: true})
	files := r.rootFiles()
	in := r.inputs("coreos").text(coreOSTable, localTarget, version).file(busybox).file(kernel).file(initrd)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		in.text(name, files[name])
	}
	stock := r.cached("coreos", "disk with a stand-in for CoreOS", in, func(out string) {
		dir, err := os.MkdirTemp(r.dir, "coreos-")
		r.fatal(err, "CoreOS")
		tree := filepath.Join(dir, "tree")
		usr := map[string]string{}
		for name, content := range files {
			usr[filepath.Join("usr", name)] = content
		}
		r.writeFiles(usr, tree)
		r.installBusybox(filepath.Join(tree, "usr/bin"))
		modules := filepath.Join(tree, "usr/lib/modules", version)
		r.run(dir, nil, "mkdir", "-p", modules)
		r.fatal(os.Symlink(localTarget, filepath.Join(tree, "usr/local")), "CoreOS")
		r.run(dir, nil, "cp", kernel, filepath.Join(modules, "vmlinuz"))
		r.run(dir, nil, "cp", initrd, filepath.Join(modules, "initramfs.img"))
		// A deployment is not protected, so that the build needs no root.
		r.run(dir, []string{"OSTREE_SYSROOT_DEBUG=mutable-deployments"}, "sh", "-ec", `
			mkdir dev proc run sys tmp var boot sysroot
			(cd tree && mkdir dev proc run sys tmp var boot sysroot root &&
				ln -s usr/bin usr/sbin usr/lib . && ln -s sysroot/ostree ostree)
			ostree admin init-fs --modern sysroot
			ostree admin os-init --sysroot=sysroot rig
			ostree --repo=sysroot/ostree/repo config set sysroot.bootloader none
			ostree --repo=sysroot/ostree/repo commit --branch=rig --tree=dir=tree --timestamp=@0
			ostree admin deploy --sysroot=sysroot --os=rig --karg='$ignition_firstboot' --karg=ignition.platform.id=metal rig
			mv sysroot/boot/* boot && mkdir boot/ignition && touch boot/ignition.firstboot`)
		r.fatal(os.WriteFile(out, nil, 0o644), "CoreOS")
		r.fatal(os.Truncate(out, coreOSSize), "CoreOS")
		r.run(dir, nil, "sh", "-c", `printf "$1" | sfdisk --quiet "$2"`, "sh", coreOSTable, out)
		for label, offset := range map[string]int{"boot": bootOffset, "sysroot": rootOffset} {
			r.run(dir, nil, "mkfs.ext4", "-q", "-F", "-L", strings.TrimPrefix(label, "sys"), "-d", label,
				"-E", fmt.Sprintf("offset=%d", offset), out, "126M")
		}
	})
	disk, err := os.CreateTemp(r.dir, "coreos-*.img")
	r.fatal(err, "CoreOS")
	r.fatal(disk.Close(), "CoreOS")
	r.run(r.dir, nil, "cp", "--sparse=always", stock, disk.Name())
	c := &CoreOSDisk{disk.Name(), r}
	c.debugfs("write " + r.text("config.ign", string(pointer)) + " ignition/config.ign")
	return c
}

// AddAgent adds the agent's archive to what the disk boots, as an administrator does.
func (c *CoreOSDisk) AddAgent() {
	c.r.t.Helper()
	c.r.run(c.r.repo, nil, "dracut/boot.sh", "add", "--image", c.Path,
		filepath.Join(c.r.Image(), "mcs-attest-initramfs.cpio.zst"))
}

// debugfs reads or changes the boot file system.
func (c *CoreOSDisk) debugfs(command string) {
	c.r.t.Helper()
	c.r.run(c.r.dir, nil, "debugfs", "-w", "-R", command, fmt.Sprintf("%s?offset=%d", c.Path, bootOffset))
}

// entry is the disk's only boot loader entry.
type entry struct {
	dir     string // with the files of the boot file system
	first   bool   // ignition.firstboot exists
	linux   string
	initrds []string
	options string
}

func (c *CoreOSDisk) entry() entry {
	c.r.t.Helper()
	dir, err := os.MkdirTemp(c.r.dir, "entry-")
	c.r.fatal(err, "boot loader entry")
	c.debugfs("rdump / " + dir)
	paths, err := filepath.Glob(filepath.Join(dir, "loader/entries/*.conf"))
	c.r.fatal(err, "boot loader entry")
	if len(paths) != 1 {
		c.r.t.Fatalf("the boot file system has the entries %v", paths)
	}
	text, err := os.ReadFile(paths[0])
	c.r.fatal(err, "boot loader entry")
	_, err = os.Stat(filepath.Join(dir, "ignition.firstboot"))
	e := entry{dir: dir, first: err == nil}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch key {
		case "options":
			e.options = value + " console=ttyS0 " + commonCmdline
		case "linux":
			e.linux = value
		case "initrd":
			e.initrds = append(e.initrds, value)
		}
	}
	return e
}

// loaded returns what a boot loader gives the kernel: one file has all archives of the entry.
func (c *CoreOSDisk) loaded() (kernel, initrd, cmdline string) {
	c.r.t.Helper()
	e := c.entry()
	var archives []string
	for _, name := range e.initrds {
		archives = append(archives, filepath.Join(e.dir, name))
	}
	first := ""
	if e.first {
		first = "ignition.firstboot"
	}
	return filepath.Join(e.dir, e.linux), c.r.join(archives), strings.ReplaceAll(e.options, "$ignition_firstboot", first)
}

// espFiles returns the EFI system partition with which shim and GRUB boot the disk. Debian's GRUB does
// not read entries, so grub.cfg has what the entry has.
func (c *CoreOSDisk) espFiles() map[string]string {
	c.r.t.Helper()
	e := c.entry()
	return map[string]string{
		"EFI/BOOT/BOOTX64.EFI": shim,
		"EFI/BOOT/grubx64.efi": signedGRUB,
		"EFI/BOOT/mmx64.efi":   mokManager,
		"EFI/debian/grub.cfg": c.r.text("grub.cfg", strings.Join([]string{
			"set timeout=0",
			"search --no-floppy --label boot --set=root",
			`set ignition_firstboot=""`,
			`if [ -f "/ignition.firstboot" ]; then`,
			`  set ignition_firstboot="ignition.firstboot"`,
			"fi",
			"linux " + e.linux + " " + e.options,
			"initrd " + strings.Join(e.initrds, " "),
			"boot", "",
		}, "\n")),
	}
}

// BootFiles writes what shim and GRUB boot the disk from to a folder.
func (c *CoreOSDisk) BootFiles() string {
	c.r.t.Helper()
	dir := c.entry().dir
	c.r.copyFiles(c.espFiles(), dir)
	return dir
}
