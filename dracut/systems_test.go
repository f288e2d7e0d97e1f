// SPDX-License-Identifier: Apache-2.0

package dracut_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	systemUnits = "/lib/systemd/system"
	dracutUnits = "/usr/lib/dracut/modules.d/98dracut-systemd"
)

// initrdUnits are systemd's own units that dracut installs, by the target that wants them.
var initrdUnits = map[string]string{
	"": "basic.target sysinit.target sockets.target paths.target slices.target timers.target local-fs.target " +
		"local-fs-pre.target remote-fs.target remote-fs-pre.target swap.target network.target network-online.target " +
		"cryptsetup-pre.target initrd.target initrd-fs.target initrd-root-device.target initrd-root-fs.target " +
		"initrd-usr-fs.target initrd-switch-root.target initrd-switch-root.service initrd-cleanup.service " +
		"initrd-parse-etc.service initrd-udevadm-cleanup-db.service emergency.target emergency.service rescue.target " +
		"rescue.service shutdown.target umount.target final.target systemd-fsck-root.service systemd-networkd.service " +
		"systemd-networkd.socket systemd-udev-settle.service",
	"sockets.target": "systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-journald.socket " +
		"systemd-journald-dev-log.socket",
	"sysinit.target": "systemd-udevd.service systemd-udev-trigger.service systemd-journald.service cryptsetup.target " +
		"systemd-modules-load.service systemd-sysctl.service systemd-tmpfiles-setup.service " +
		"systemd-tmpfiles-setup-dev.service systemd-sysusers.service kmod-static-nodes.service",
	"initrd.target":             "systemd-pcrphase-initrd.service",
	"initrd-root-device.target": "remote-cryptsetup.target",
}

// system is a tree of units, as the initramfs of an operating system has it.
type system struct {
	t   *testing.T
	dir string
}

// newSystem creates the tree of an operating system: the host's units of systemd and dracut, a root
// volume that systemd-cryptsetup opens, Ignition, the units of testdata, and this project's.
func newSystem(t *testing.T, first bool, testdata ...string) *system {
	t.Helper()
	s := &system{t, t.TempDir()}
	for target, names := range initrdUnits {
		for _, name := range strings.Fields(names) {
			write(t, filepath.Join(s.dir, name), read(t, filepath.Join(systemUnits, name)))
			if target != "" {
				s.link(target+".wants", name)
			}
		}
	}
	for _, path := range glob(t, dracutUnits+"/dracut-*.service") {
		write(t, filepath.Join(s.dir, filepath.Base(path)), read(t, path))
		if name := filepath.Base(path); !strings.Contains(name, "shutdown") && !strings.Contains(name, "emergency") {
			s.link("initrd.target.wants", name)
		}
	}
	s.add("initrd-root-fs.target", "sysroot.mount", "DefaultDependencies=no", "Before=initrd-root-fs.target",
		"Requires=initrd-root-device.target", "After=initrd-root-device.target")
	s.add("cryptsetup.target", "systemd-cryptsetup@root.service", "DefaultDependencies=no", "After=cryptsetup-pre.target",
		"Before=cryptsetup.target")
	// Of systemd 261 (units/systemd-pcrosseparator.service.in).
	s.add("sysinit.target", "systemd-pcrosseparator.service", "DefaultDependencies=no",
		"Conflicts=shutdown.target initrd-switch-root.target", "After=tpm2.target",
		"Before=sysinit.target shutdown.target initrd-switch-root.target")
	for _, path := range append(glob(t, ignition+"/*.service"), glob(t, ignition+"/*.target")...) {
		write(t, filepath.Join(s.dir, filepath.Base(path)), read(t, path))
	}
	if first {
		s.link("initrd.target.requires", "ignition-complete.target")
		s.link("ignition-complete.target.requires", "ignition-diskful.target")
		for _, stage := range []string{"fetch-offline", "fetch", "kargs", "disks", "mount", "files"} {
			s.link("ignition-complete.target.requires", "ignition-"+stage+".service")
		}
	}
	for _, name := range testdata {
		for line := range strings.Lines(read(t, filepath.Join("testdata", name+".txt"))) {
			f := strings.Fields(line)
			if f[0] == "#" {
				continue
			}
			for i := range f {
				f[i] = strings.ReplaceAll(f[i], ",", " ")
			}
			s.add(f[1], f[0], f[2:]...)
		}
	}
	own := filepath.Join(unpack(t), "usr/lib/systemd/system")
	err := filepath.WalkDir(own, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(own, path)
		if err == nil && d.Type()&os.ModeSymlink != 0 {
			s.link(filepath.Dir(name), filepath.Base(name))
			return nil
		}
		write(t, filepath.Join(s.dir, name), strings.ReplaceAll(read(t, path), "/usr/bin/mcs-attest-agent", "/bin/true"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// link makes a target or unit depend on a unit. The folder is named like "initrd.target.wants".
func (s *system) link(folder, name string) {
	s.t.Helper()
	path := filepath.Join(s.dir, folder, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Symlink("../"+name, path); err != nil && !errors.Is(err, fs.ErrExist) {
		s.t.Fatal(err)
	}
}

// add creates a unit that target requires; "-" is no target.
func (s *system) add(target, name string, directives ...string) {
	s.t.Helper()
	kind := "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n"
	if strings.HasSuffix(name, ".mount") {
		where := "/" + strings.ReplaceAll(strings.TrimSuffix(name, ".mount"), "-", "/")
		kind = "[Mount]\nWhat=/dev/disk/by-label/root\nWhere=" + where + "\n"
	}
	write(s.t, filepath.Join(s.dir, name), "[Unit]\n"+strings.Join(directives, "\n")+"\n"+kind)
	if target != "-" {
		s.link(target+".requires", name)
	}
}

// cycles returns the ordering cycles of the transaction that starts the initramfs.
func (s *system) cycles() []string {
	s.t.Helper()
	cmd := exec.Command("systemd-analyze", "verify", "--man=no",
		filepath.Join(s.dir, "initrd.target"))
	cmd.Env = append(os.Environ(), "SYSTEMD_IN_INITRD=1", "SYSTEMD_UNIT_PATH="+s.dir)
	out, _ := cmd.CombinedOutput() // it also complains about units that only an initramfs has
	var cycles []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "cycle") {
			cycles = append(cycles, strings.TrimSpace(line))
		}
	}
	return cycles
}

// ordered reports whether both units are in the transaction and first starts before second. The
// opposite order must then be a cycle.
func (s *system) ordered(first, second string) bool {
	s.t.Helper()
	drop := filepath.Join(s.dir, first+".d", "99-opposite.conf")
	write(s.t, drop, "[Unit]\nAfter="+second+"\n")
	cycles := s.cycles()
	if err := os.Remove(drop); err != nil {
		s.t.Fatal(err)
	}
	return len(cycles) > 0
}

var systems = map[string][]string{
	"Debian": nil, "Fedora CoreOS": {"fcos"}, "RHCOS": {"fcos", "rhcos"}, "Flatcar": {"flatcar"},
}

func TestSystems_HaveNoOrderingCycle(t *testing.T) {
	for name, testdata := range systems {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, cycle := range newSystem(t, true, testdata...).cycles() {
				t.Error(cycle)
			}
		})
	}
	t.Run("a later boot", func(t *testing.T) {
		for _, cycle := range newSystem(t, false).cycles() {
			t.Error(cycle)
		}
	})
}

func TestSystems_AgentAttestsBeforeIgnitionFetchesAndCapsBeforeTheRealRoot(t *testing.T) {
	for name, testdata := range systems {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t, true, testdata...)
			for _, pair := range [][2]string{
				{"ignition-fetch-offline.service", "mcs-attest.service"},
				{"systemd-pcrphase-initrd.service", "mcs-attest.service"},
				{"systemd-pcrosseparator.service", "mcs-attest.service"},
				{"systemd-udev-trigger.service", "mcs-attest.service"},
				{"mcs-attest.service", "ignition-fetch.service"},
				{"ignition-fetch.service", "mcs-attest-scrub.service"},
				{"mcs-attest-scrub.service", "ignition-kargs.service"},
				{"mcs-attest-scrub.service", "ignition-disks.service"},
				{"mcs-attest-cap.service", "initrd.target"},
			} {
				if !s.ordered(pair[0], pair[1]) {
					t.Errorf("%s does not start before %s", pair[0], pair[1])
				}
			}
		})
	}
}

// A volume that is sealed to PCR 11 must be unlocked before the cap, on each boot.
func TestSystems_SealedRootIsOpenBeforeTheCap(t *testing.T) {
	for _, first := range []bool{true, false} {
		s := newSystem(t, first)
		for _, before := range []string{"systemd-cryptsetup@root.service", "cryptsetup.target", "sysroot.mount",
			"initrd-fs.target", "systemd-pcrphase-initrd.service"} {
			if !s.ordered(before, "mcs-attest-cap.service") {
				t.Errorf("first boot %t: %s does not start before mcs-attest-cap.service", first, before)
			}
		}
	}
}
