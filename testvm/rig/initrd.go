// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"embed"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
)

//go:embed all:guest
var guestFiles embed.FS

// ignitionModule is Debian's dracut module with its Ignition.
const ignitionModule = "/usr/lib/dracut/modules.d/30ignition"

const dracutTree = "/usr/lib/dracut"

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
	Agent Delivery
	// Newer uses the Ignition of testvm/ignition instead of Debian's 2.14.
	Newer bool
	// Sealed adds what seals and opens a volume of [Rig.NewVolume], and systemd-pcrphase.
	Sealed bool
	// Extra is appended as a separate archive: path to content.
	Extra map[string]string
	// Compress makes it smaller and slower to unpack. Under OVMF, which hashes every byte, that is
	// faster.
	Compress bool
}

// dracutModules is the shortest list that starts a network and Ignition.
const dracutModules = "bash systemd systemd-initrd dracut-systemd systemd-sysctl systemd-modules-load " +
	"systemd-udevd systemd-tmpfiles systemd-journald systemd-sysusers base udev-rules rootfs-block fs-lib " +
	"dbus dbus-daemon systemd-networkd network kernel-network-modules ignition shutdown kernel-modules " +
	"qemu url-lib rig"

const sealedModules, sealedDrivers = " rig-sealed", " dm_crypt xts"

const dracutDrivers = "virtio_pci virtio_net virtio_blk virtio_rng qemu_fw_cfg efivarfs vfat " +
	"nls_cp437 nls_ascii ext4 crc32c_generic overlay af_packet"

// Kernel returns the newest installed cloud kernel and its version.
func (r *Rig) Kernel() (path, version string) {
	r.t.Helper()
	found, err := filepath.Glob("/boot/vmlinuz-*-cloud-amd64")
	r.fatal(err, "kernel")
	if len(found) == 0 {
		r.t.Fatalf("no /boot/vmlinuz-*-cloud-amd64\nhint: make deps (package linux-image-cloud-amd64)")
	}
	sort.Strings(found)
	path = found[len(found)-1]
	return path, strings.TrimPrefix(filepath.Base(path), "vmlinuz-")
}

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
	joined, err := os.CreateTemp(r.dir, "initrd-")
	r.fatal(err, "initramfs")
	defer joined.Close()
	for _, p := range append([]string{path}, more...) {
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
	_, version := r.Kernel()
	rigModule, err := fs.Sub(guestFiles, "guest/99rig")
	r.fatal(err, "rig's module")
	ignition := ignitionModule
	if i.Newer {
		ignition = r.newerIgnition()
	}
	modules, drivers := dracutModules, dracutDrivers
	what := "initramfs with dracut and Ignition"
	in := r.inputs("initrd").text(version, dracutModules, dracutDrivers).tree(rigModule).
		file(filepath.Join(ignition, "ignition")).file("/usr/bin/dracut")
	agentModule := filepath.Join(r.repo, "dracut", "90mcs-attest")
	var agent string
	if i.Agent == Module {
		agent = r.Agent()
		in.file(agent).tree(os.DirFS(agentModule))
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
	compress := "--no-compress"
	if i.Compress {
		compress = "--compress=zstd -3 -q -T0"
	}
	in.text(modules, compress)
	return r.cached("initrd", what, in, func(out string) {
		base := r.dracutBase(ignition, agentModule, agent)
		confdir := filepath.Join(base, "empty")
		r.fatal(os.Mkdir(confdir, 0o755), "dracut")
		// dracut keeps an old image if it fails, and may succeed without a module that it could not
		// install. So the file must be new.
		log := r.run(base, []string{"dracutbasedir=" + base}, "dracut", "--force", "--quiet", "--stdlog", "3",
			"--no-hostonly", "--no-hostonly-cmdline", "--conf", "/dev/null", "--confdir", confdir,
			"--kver", version, "--reproducible", "--no-early-microcode", "--nofscks", compress,
			"--tmpdir", r.dir, "--modules", modules, "--omit", "qemu-net nfs iscsi lvm", "--drivers", drivers, out)
		if strings.Contains(log, "cannot be found or installed") || strings.Contains(log, "can't be installed") {
			r.t.Fatalf("dracut left a module out:\n%s", log)
		}
	})
}

// dracutBase creates a private dracut tree: links to the system's modules, with this project's
// modules next to them, so that nothing is installed into /usr.
func (r *Rig) dracutBase(ignition, agentModule, agent string) string {
	r.t.Helper()
	base, err := os.MkdirTemp(r.dir, "dracut-")
	r.fatal(err, "dracut tree")
	modules := filepath.Join(base, "modules.d")
	r.fatal(os.Mkdir(modules, 0o755), "dracut tree")
	link := func(from, to, except string) {
		entries, err := os.ReadDir(from)
		r.fatal(err, "dracut tree")
		for _, e := range entries {
			if e.Name() != except {
				r.fatal(os.Symlink(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())), "dracut tree")
			}
		}
	}
	link(dracutTree, base, "modules.d")
	link(filepath.Join(dracutTree, "modules.d"), modules, "30ignition")
	r.fatal(os.Symlink(ignition, filepath.Join(modules, "30ignition")), "dracut tree")
	for _, own := range []string{"98rig-sealed", "99rig"} {
		r.writeGuest("guest/"+own, filepath.Join(modules, own))
	}
	if agent != "" {
		to := filepath.Join(modules, "90mcs-attest")
		r.fatal(os.Mkdir(to, 0o755), "dracut tree")
		link(agentModule, to, "")
		r.fatal(os.Symlink(agent, filepath.Join(to, "mcs-attest-agent")), "dracut tree")
	}
	return base
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
	for name, content := range files {
		path := filepath.Join(root, name)
		r.fatal(os.MkdirAll(filepath.Dir(path), 0o755), "archive")
		r.fatal(os.WriteFile(path, []byte(content), scriptMode([]byte(content))), "archive")
	}
	out := root + ".cpio"
	r.run(root, nil, "sh", "-c", `find . -mindepth 1 -exec touch --date=@0 {} +
		find . -mindepth 1 -print0 | LC_ALL=C sort -z |
		cpio --null --create --format=newc --owner=0:0 --reproducible --quiet > "$1"`, "archive", out)
	return out
}
