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

	r      *Rig
	memory string // of its machines, in MiB; "" means the usual
}

const (
	// coreOSTable has the partitions with the names that CoreOS gives them. The size of the root varies.
	coreOSTable = "label: gpt\n" +
		"start=1MiB, size=1MiB, name=BIOS-BOOT\n" +
		"start=2MiB, size=126MiB, name=boot\n" +
		"start=128MiB, size=%dMiB, name=root\n"
	// localTarget is the target of the link /usr/local, because OSTree makes /usr read-only.
	localTarget = "../var/usrlocal"
	bootOffset  = 2 << 20
	bootSize    = 126 // MiB
	rootOffset  = 128 << 20
)

// coreOSUnits returns the units of Fedora CoreOS and RHCOS. The tests of dracut/ check their ordering.
func (r *Rig) coreOSUnits() string {
	r.t.Helper()
	return string(r.Source("dracut/testdata/fcos.txt")) + string(r.Source("dracut/testdata/rhcos.txt"))
}

// coreOSRoot is the real root of a [CoreOSDisk].
type coreOSRoot struct {
	// files and programs are below /usr: path to content, and to the path here.
	files, programs map[string]string
	// script makes the programs of /usr and the files of /etc in its working folder, from the initramfs
	// $1; "" means busybox.
	script string
	// size is that of the partition, in MiB.
	size int
}

// NewCoreOSDisk creates a disk for which the installer got a pointer config. Its real root has no systemd:
// it reports, and ends the machine.
func (r *Rig) NewCoreOSDisk(pointer []byte) *CoreOSDisk {
	r.t.Helper()
	return r.newCoreOSDisk(pointer, coreOSRoot{size: 127, files: r.rootFiles()})
}

func (r *Rig) newCoreOSDisk(pointer []byte, root coreOSRoot) *CoreOSDisk {
	r.t.Helper()
	kernel, version := r.Kernel(CoreOS)
	initrd := r.Build(Initrd{System: CoreOS, Agent: NoAgent, Compress: true})
	table := fmt.Sprintf(coreOSTable, root.size)
	in := r.inputs("coreos").text(table, localTarget, version, root.script).file(busybox).file(kernel).file(initrd)
	for _, name := range slices.Sorted(maps.Keys(root.files)) {
		in.text(name, root.files[name])
	}
	for _, name := range slices.Sorted(maps.Keys(root.programs)) {
		in.text(name).file(root.programs[name])
	}
	stock := r.cached("coreos", "disk with a stand-in for CoreOS", in, func(out string) {
		dir, err := os.MkdirTemp(r.dir, "coreos-")
		r.fatal(err, "CoreOS")
		tree := filepath.Join(dir, "tree")
		if root.script == "" {
			r.installBusybox(filepath.Join(tree, "usr/bin"))
		} else {
			r.fatal(os.Mkdir(tree, 0o755), "CoreOS")
			r.run(tree, nil, "sh", "-ec", root.script, "sh", initrd)
		}
		r.writeFiles(root.files, filepath.Join(tree, "usr"))
		modules := filepath.Join(tree, "usr/lib/modules", version)
		r.run(dir, nil, "mkdir", "-p", modules)
		r.fatal(os.Symlink(localTarget, filepath.Join(tree, "usr/local")), "CoreOS")
		for name, program := range root.programs {
			r.run(dir, nil, "cp", program, filepath.Join(tree, "usr", name))
		}
		r.run(dir, nil, "cp", kernel, filepath.Join(modules, "vmlinuz"))
		r.run(dir, nil, "cp", initrd, filepath.Join(modules, "initramfs.img"))
		// A deployment is not protected, so that the build needs no root.
		r.run(dir, []string{"OSTREE_SYSROOT_DEBUG=mutable-deployments"}, "sh", "-ec", `
			mkdir dev proc run sys tmp var boot sysroot
			(cd tree && mkdir dev proc run sys tmp var boot sysroot root &&
				ln -s usr/bin usr/sbin usr/lib . && ln -s sysroot/ostree ostree)
			[ ! -d tree/usr/lib64 ] || ln -s usr/lib64 tree/
			ostree admin init-fs --modern sysroot
			ostree admin os-init --sysroot=sysroot rig
			ostree --repo=sysroot/ostree/repo config set sysroot.bootloader none
			ostree --repo=sysroot/ostree/repo commit --branch=rig --tree=dir=tree --timestamp=@0
			ostree admin deploy --sysroot=sysroot --os=rig --karg='$ignition_firstboot' --karg=ignition.platform.id=metal rig
			mv sysroot/boot/* boot && mkdir boot/ignition && touch boot/ignition.firstboot`)
		r.fatal(os.WriteFile(out, nil, 0o644), "CoreOS")
		r.fatal(os.Truncate(out, rootOffset+int64(root.size+1)<<20), "CoreOS")
		r.run(dir, nil, "sh", "-c", `printf "$1" | sfdisk --quiet "$2"`, "sh", table, out)
		mkfs := func(label, from string, offset, size int) {
			r.run(dir, nil, "mkfs.ext4", "-q", "-F", "-L", label, "-d", from, "-E", fmt.Sprintf("offset=%d", offset), out,
				fmt.Sprintf("%dM", size))
		}
		mkfs("boot", "boot", bootOffset, bootSize)
		mkfs("root", "sysroot", rootOffset, root.size-1)
	})
	disk, err := os.CreateTemp(r.dir, "coreos-*.img")
	r.fatal(err, "CoreOS")
	r.fatal(disk.Close(), "CoreOS")
	r.run(r.dir, nil, "cp", "--sparse=always", stock, disk.Name())
	c := &CoreOSDisk{Path: disk.Name(), r: r}
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
