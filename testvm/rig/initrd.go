// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"embed"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
)

//go:embed all:guest
var guestFiles embed.FS

const (
	dracutTree = "/usr/lib/dracut"
	// ignitionModule is Debian's dracut module with its Ignition.
	ignitionModule = dracutTree + "/modules.d/30ignition"
)

// Delivery defines how the agent is added to the initramfs.
type Delivery int

const (
	// Module builds the initramfs with dracut/90mcs-attest, which is the normal way.
	Module Delivery = iota
	// Appended adds the archive of `make image` to a stock initramfs.
	Appended
	// NoAgent is the stock initramfs.
	NoAgent
)

// Initrd defines the content of an initramfs. The zero value has the agent as a dracut module and
// Debian's Ignition.
type Initrd struct {
	System System
	Agent  Delivery
	// Newer uses the Ignition of testvm/ignition instead of Debian's 2.14.
	Newer bool
	// Sealed adds what seals and opens a volume of [Rig.NewSealedRoot], and systemd-pcrphase. Debian12 only.
	Sealed bool
	// Extra is appended as a separate archive: path to content.
	Extra map[string]string
	// Compress makes it smaller and slower to unpack. Under OVMF, which hashes every byte, that is
	// faster.
	Compress bool
}

// dracutModules is the shortest list that starts Ignition.
const dracutModules = "bash systemd systemd-initrd dracut-systemd systemd-sysctl systemd-modules-load " +
	"systemd-udevd systemd-tmpfiles systemd-journald systemd-sysusers base udev-rules rootfs-block fs-lib " +
	"dbus dbus-daemon network kernel-network-modules ignition shutdown kernel-modules qemu url-lib rig"

// systemModules start the network, and are what the system's dracut adds without a request.
var systemModules = map[System]string{
	Debian12: " systemd-networkd",
	Debian13: " network-manager systemd-pcrphase",
	CoreOS:   " network-manager systemd-pcrphase ostree coreos",
}

// rigModules are the rig's own modules, in guest/.
var rigModules = []string{"98rig-sealed", "99coreos", "99rig"}

const sealedModules, sealedDrivers = " rig-sealed", " dm_crypt xts"

const dracutDrivers = "virtio_pci virtio_net virtio_blk virtio_rng qemu_fw_cfg efivarfs vfat " +
	"nls_cp437 nls_ascii ext4 crc32c_generic overlay af_packet"

// Agent builds the agent in its shipped form: static and stripped.
func (r *Rig) Agent() string {
	r.t.Helper()
	path, err := binaries.Agent()
	r.fatal(err, "agent")
	return path
}

// Image runs dracut/image.sh like `make image`, and returns its folder.
func (r *Rig) Image() string {
	r.t.Helper()
	script := filepath.Join(r.repo, "dracut", "image.sh")
	agent := r.Agent()
	in := r.inputs("image").file(agent).tree(os.DirFS(filepath.Join(r.repo, "dracut")))
	return r.cached("image", "the appended archive and the tarball", in, func(out string) {
		r.run(r.repo, nil, script, agent, out)
	})
}

// Build creates the initramfs, or returns it from the cache.
func (r *Rig) Build(i Initrd) string {
	r.t.Helper()
	path := r.buildBase(i)
	var more []string
	if i.Agent == Appended {
		more = append(more, filepath.Join(r.Image(), "mcs-attest-initramfs.cpio.zst"))
	}
	if len(i.Extra) > 0 {
		more = append(more, r.archive(i.Extra))
	}
	if len(more) == 0 {
		return path
	}
	// This is not cached, because it is fast and Extra may change every time.
	return r.join(append([]string{path}, more...))
}

// join joins archives as a boot loader does.
func (r *Rig) join(archives []string) string {
	r.t.Helper()
	joined, err := os.CreateTemp(r.dir, "initrd-")
	r.fatal(err, "initramfs")
	defer joined.Close()
	for _, p := range archives {
		b, err := os.ReadFile(p)
		r.fatal(err, "initramfs")
		// The kernel requires each archive to start at a multiple of four.
		b = append(b, make([]byte, (4-len(b)%4)%4)...)
		_, err = joined.Write(b)
		r.fatal(err, "initramfs")
	}
	return joined.Name()
}

func (r *Rig) buildBase(i Initrd) string {
	r.t.Helper()
	if i.Compress {
		i.Compress = false
		plain := r.buildBase(i)
		in := r.inputs("initrd").text("zstd", filepath.Base(plain))
		return r.cached("initrd", "compressed initramfs", in, func(out string) {
			r.run(r.dir, nil, "zstd", "-3", "-q", "-T0", "-o", out, plain)
		})
	}
	_, version := r.Kernel(i.System)
	modules, drivers := dracutModules+systemModules[i.System], dracutDrivers
	what := "initramfs with dracut and Ignition"
	in := r.inputs("initrd").text(version)
	for _, name := range rigModules {
		module, err := fs.Sub(guestFiles, "guest/"+name)
		r.fatal(err, "rig's module")
		in.tree(module)
	}
	if i.System != Debian12 {
		in.file(filepath.Join(r.Debian13(), dpkgStatus))
	} else {
		in.file(filepath.Join(ignitionModule, "ignition")).file("/usr/bin/dracut")
	}
	if i.System == CoreOS {
		in.text(r.coreOSUnits())
	}
	if i.Newer {
		in.file(filepath.Join(r.newerIgnition(), "ignition"))
	}
	if i.Agent == Module {
		in.file(r.Agent()).tree(os.DirFS(filepath.Join(r.repo, "dracut", "90mcs-attest")))
		modules += " mcs-attest"
		what = "initramfs with dracut, Ignition and the agent"
	}
	if i.Sealed {
		sealedModule, err := fs.Sub(guestFiles, "guest/98rig-sealed")
		r.fatal(err, "rig's module")
		in.tree(sealedModule)
		modules += sealedModules
		drivers += sealedDrivers
	}
	// dracut keeps an old image if it fails, and may succeed without a module that it could not
	// install. So the file must be new.
	args := []string{"--force", "--quiet", "--stdlog", "3", "--no-hostonly", "--no-hostonly-cmdline",
		"--conf", "/dev/null", "--kver", version, "--reproducible", "--no-early-microcode", "--nofscks", "--no-compress",
		"--modules", modules, "--omit", "qemu-net nfs iscsi lvm", "--drivers", drivers}
	in.text(args...)
	return r.cached("initrd", what, in, func(out string) {
		var log string
		if i.System != Debian12 {
			log = r.dracutInDebian13(i, args, out)
		} else {
			base := r.dracutBase(i)
			confdir := filepath.Join(base, "empty")
			r.fatal(os.Mkdir(confdir, 0o755), "dracut")
			log = r.run(base, []string{"dracutbasedir=" + base}, "dracut",
				append(args, "--confdir", confdir, "--tmpdir", r.dir, out)...)
		}
		if strings.Contains(log, "' cannot be ") || strings.Contains(log, "can't be installed") {
			r.t.Fatalf("dracut left a module out:\n%s", log)
		}
	})
}

// dracutBase creates a private dracut tree: links to the system's modules, with the own modules next
// to them, so that nothing is installed into /usr.
func (r *Rig) dracutBase(i Initrd) string {
	r.t.Helper()
	base, err := os.MkdirTemp(r.dir, "dracut-")
	r.fatal(err, "dracut tree")
	modules := filepath.Join(base, "modules.d")
	r.writeModules(i, modules)
	for _, folder := range []string{"", "modules.d"} {
		entries, err := os.ReadDir(filepath.Join(dracutTree, folder))
		r.fatal(err, "dracut tree")
		for _, e := range entries {
			to := filepath.Join(base, folder, e.Name())
			if _, err := os.Lstat(to); err != nil {
				r.fatal(os.Symlink(filepath.Join(dracutTree, folder, e.Name()), to), "dracut tree")
			}
		}
	}
	return base
}

// dracutInDebian13 runs dracut where it is at home, and returns its log.
func (r *Rig) dracutInDebian13(i Initrd, args []string, out string) string {
	r.t.Helper()
	dir, err := os.MkdirTemp(r.dir, "debian13-")
	r.fatal(err, "dracut")
	work := filepath.Join(dir, "work")
	r.writeModules(i, filepath.Join(work, "modules.d"))
	log := r.InDebian13(work, "for module in modules.d/*; do rm -rf "+dracutTree+"/$module; done\n"+
		"cp -r modules.d "+dracutTree+"\nmkdir empty\n"+
		"dracut '"+strings.Join(args, "' '")+"' --confdir empty out/initrd\n")
	b, err := os.ReadFile(filepath.Join(work, "out", "initrd"))
	r.fatal(err, "dracut")
	r.fatal(os.WriteFile(out, b, 0o600), "dracut")
	return log
}

// writeModules writes the dracut modules that are not the system's to a new folder.
func (r *Rig) writeModules(i Initrd, to string) {
	r.t.Helper()
	for _, name := range rigModules {
		r.writeGuest("guest/"+name, filepath.Join(to, name))
	}
	if i.System == CoreOS {
		r.writeFiles(map[string]string{"99coreos/units": r.coreOSUnits()}, to)
	}
	if i.Newer {
		r.fatal(os.CopyFS(filepath.Join(to, "30ignition"), os.DirFS(r.newerIgnition())), "Ignition's module")
	}
	if i.Agent == Module {
		module := filepath.Join(to, "90mcs-attest")
		r.fatal(os.CopyFS(module, os.DirFS(filepath.Join(r.repo, "dracut", "90mcs-attest"))), "agent's module")
		agent, err := os.ReadFile(r.Agent())
		r.fatal(err, "agent's module")
		r.fatal(os.WriteFile(filepath.Join(module, "mcs-attest-agent"), agent, 0o755), "agent's module")
	}
}

// writeGuest copies embedded files. They have lost their modes, so a script is recognized by its
// first line.
func (r *Rig) writeGuest(from, to string) {
	r.t.Helper()
	sub, err := fs.Sub(guestFiles, from)
	r.fatal(err, "guest files")
	r.fatal(os.MkdirAll(to, 0o755), "guest files")
	entries, err := fs.ReadDir(sub, ".")
	r.fatal(err, "guest files")
	for _, e := range entries {
		b, err := fs.ReadFile(sub, e.Name())
		r.fatal(err, "guest files")
		r.fatal(os.WriteFile(filepath.Join(to, e.Name()), b, scriptMode(b)), "guest files")
	}
}

// writeFiles writes files to a folder: path inside to content.
func (r *Rig) writeFiles(files map[string]string, to string) {
	r.t.Helper()
	for name, content := range files {
		path := filepath.Join(to, name)
		r.fatal(os.MkdirAll(filepath.Dir(path), 0o755), "%s", name)
		r.fatal(os.WriteFile(path, []byte(content), scriptMode([]byte(content))), "%s", name)
	}
}

func scriptMode(content []byte) os.FileMode {
	if strings.HasPrefix(string(content), "#!") || strings.HasPrefix(string(content), "\x7fELF") {
		return 0o755
	}
	return 0o644
}

// archive packs files as a cpio archive in the kernel's format. The same files give the same bytes.
func (r *Rig) archive(files map[string]string) string {
	r.t.Helper()
	root, err := os.MkdirTemp(r.dir, "cpio-")
	r.fatal(err, "archive")
	r.writeFiles(files, root)
	out := root + ".cpio"
	r.run(root, nil, "sh", "-c", `find . -mindepth 1 -exec touch --date=@0 {} +
		find . -mindepth 1 -print0 | LC_ALL=C sort -z |
		cpio --null --create --format=newc --owner=0:0 --reproducible --quiet > "$1"`, "archive", out)
	return out
}
