// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// System is the distribution that a machine's kernel, initramfs and boot stub are of.
type System int

const (
	// Debian12 is this host: systemd 252, dracut 059 with systemd-networkd, Linux 6.1.
	Debian12 System = iota
	// Debian13 has systemd 257, dracut 106 with NetworkManager, and Linux 6.12.
	Debian13
	// CoreOS is Debian 13 with what [CoreOSDisk] boots.
	CoreOS
)

// debian13Packages are the packages of the second system, with what they depend on.
var debian13Packages = []string{
	"curl", "dbus", "dracut-core", "dracut-network", "ignition", "iproute2", "kmod", "linux-image-cloud-amd64",
	"network-manager", "ostree-boot", "systemd-boot-efi", "tpm2-tools", "zstd",
}

// debian13Excludes are paths that no test needs. Without its hooks, the kernel's package builds no
// initramfs of its own.
var debian13Excludes = []string{
	"/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*", "/etc/kernel/*.d/*",
}

const (
	debian13Tree = "tree.tar"
	dpkgStatus   = "var/lib/dpkg/status"
)

// Debian13 returns a folder with a root file system of Debian 13 as tree.tar. Next to it are the files
// that are used outside, at their paths: the kernel, the boot stub and dpkg's status.
//
// The result in the cache is used as long as the lists of packages and paths do not change, without
// access to the archive. To get the archive's current versions, delete the folder debian13 of the cache.
func (r *Rig) Debian13() string {
	r.t.Helper()
	in := r.inputs("debian13").text(debian13Packages...).text(debian13Excludes...)
	return r.cached("debian13", "Debian 13 from its packages (some minutes, once)", in, func(out string) {
		r.fatal(os.Mkdir(out, 0o755), "Debian 13")
		tree := filepath.Join(out, debian13Tree)
		args := []string{"--variant=essential", "--include=" + strings.Join(debian13Packages, ",")}
		for _, path := range debian13Excludes {
			args = append(args, "--dpkgopt=path-exclude="+path)
		}
		r.run(out, nil, "mmdebstrap", append(append(args, "trixie", tree), r.debianMirror()...)...)
		r.run(out, nil, "tar", "--extract", "--file", tree, "--wildcards", "./boot/vmlinuz-*", "."+efiStub, "./"+dpkgStatus)
	})
}

// debianMirror returns the mirror that this host's apt has Debian from, and nothing if apt does not know
// it. Then mmdebstrap uses Debian's own.
func (r *Rig) debianMirror() []string {
	r.t.Helper()
	uris := strings.Fields(r.run(r.dir, nil, "apt-get", "indextargets", "--format", "$(REPO_URI)",
		"Created-By: Packages", "Origin: Debian", "Label: Debian", "Component: main"))
	return uris[:min(1, len(uris))]
}

// InDebian13 runs a shell script as root of a new Debian 13, in /work, and returns what it prints. /work
// is a copy of the folder work, which must have that name; /work/out is copied back to the folder.
func (r *Rig) InDebian13(work, script string) string {
	r.t.Helper()
	if filepath.Base(work) != "work" {
		r.t.Fatalf("InDebian13: the folder is %s", work)
	}
	script = "set -e\ncd /work\nmkdir out\n" + script
	r.fatal(os.WriteFile(filepath.Join(work, "script"), []byte(script), 0o644), "Debian 13")
	return r.run(r.dir, nil, "mmdebstrap", "--quiet", "--variant=custom", "--format=null", "--skip=setup,update,cleanup",
		fmt.Sprintf("--setup-hook=tar-in '%s' /", filepath.Join(r.Debian13(), debian13Tree)),
		fmt.Sprintf("--customize-hook=copy-in '%s' /", work),
		`--customize-hook=chroot "$1" sh /work/script`,
		fmt.Sprintf("--customize-hook=copy-out /work/out '%s'", work),
		"trixie", "-")
}

// root returns the folder that has the system's kernel and boot stub at their paths.
func (r *Rig) root(s System) string {
	r.t.Helper()
	if s != Debian12 {
		return r.Debian13()
	}
	return "/"
}

// Kernel returns the newest cloud kernel of a system, and its version.
func (r *Rig) Kernel(s System) (path, version string) {
	r.t.Helper()
	pattern := filepath.Join(r.root(s), "boot/vmlinuz-*-cloud-amd64")
	found, err := filepath.Glob(pattern)
	r.fatal(err, "kernel")
	if len(found) == 0 {
		r.t.Fatalf("no %s\nhint: make deps (package linux-image-cloud-amd64)", pattern)
	}
	path = found[len(found)-1] // Glob sorts
	return path, strings.TrimPrefix(filepath.Base(path), "vmlinuz-")
}
