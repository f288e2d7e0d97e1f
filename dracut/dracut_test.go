// SPDX-License-Identifier: Apache-2.0

// Package dracut_test checks the content of the initramfs without booting it. The tests in
// testvm/scenarios boot the units.
package dracut_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	module   = "90mcs-attest"
	ignition = "/usr/lib/dracut/modules.d/30ignition"
)

func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatalf("nothing matches %s", pattern)
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// unpack returns the tree of the archive. image.sh and dracut both use the module's install(), so
// dracut installs the same.
func unpack(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	agent := filepath.Join(dir, "agent")
	write(t, agent, "#!/bin/sh\n")
	run(t, nil, "./image.sh", agent, dir)
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, nil, "sh", "-c", `cd "$1" && zstd -dcq ../mcs-attest-initramfs.cpio.zst | cpio --extract --quiet --make-directories --no-preserve-owner`, "sh", root)
	return root
}

func TestUnits_PassSystemdAnalyzeVerify(t *testing.T) {
	root := unpack(t)
	dir := filepath.Join(root, "usr/lib/systemd/system")
	for _, unit := range append(glob(t, ignition+"/*.service"), glob(t, ignition+"/*.target")...) {
		write(t, filepath.Join(dir, filepath.Base(unit)), read(t, unit))
	}
	// The programs exist only in the initramfs.
	programs := regexp.MustCompile(`/usr/bin/(ignition|mcs-attest-agent)\b`)
	var units []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		write(t, path, programs.ReplaceAllString(read(t, path), "/bin/true"))
		if filepath.Dir(path) == dir && strings.HasSuffix(path, ".service") {
			units = append(units, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	out := run(t, []string{"SYSTEMD_UNIT_PATH=" + dir + ":"}, "systemd-analyze",
		append([]string{"verify", "--man=no", "--recursive-errors=yes"}, units...)...)
	for _, line := range strings.Split(out, "\n") {
		if strings.Contains(line, "mcs-attest") {
			t.Errorf("systemd-analyze: %s", line)
		}
	}
}

// With more than one OnFailure= and OnFailureJobMode=isolate, systemd cannot isolate and PID 1
// freezes. The units of coreos/ignition already have one.
func TestDropIns_AddNoOnFailure(t *testing.T) {
	for _, path := range glob(t, module+"/*.conf") {
		if strings.Contains(read(t, path), "\nOnFailure") {
			t.Errorf("%s has an OnFailure=", path)
		}
	}
	for _, path := range glob(t, module+"/*.service") {
		if n := strings.Count(read(t, path), "\nOnFailure="); n > 1 {
			t.Errorf("%s has %d OnFailure=", path, n)
		}
	}
}

func TestUnits_ReportEveryStageAndDelayOnlyTheFetch(t *testing.T) {
	dir := filepath.Join(unpack(t), "usr/lib/systemd/system")
	for _, stage := range []string{"fetch-offline", "fetch", "kargs", "disks", "mount", "files"} {
		drop := filepath.Join(dir, "ignition-"+stage+".service.d")
		if !strings.Contains(read(t, filepath.Join(drop, "50-mcs-attest-report.conf")),
			"exec /usr/bin/mcs-attest-agent report %n'") {
			t.Errorf("%s does not report", stage)
		}
		_, err := os.Stat(filepath.Join(drop, "50-mcs-attest-fetch.conf"))
		if held := err == nil; held != (stage == "fetch") {
			t.Errorf("%s: held back = %t", stage, held)
		}
	}
}

// A failed command before a shell or on a later boot does not stop the machine. On a first boot it
// does.
func TestUnits_OnlyTheFirstBootRequiresTheAgent(t *testing.T) {
	for file, want := range map[string]string{
		"mcs-attest-shell.conf":    "\nExecStartPre=-/usr/bin/mcs-attest-agent scrub --cap-now\n",
		"mcs-attest-report.conf":   "\nExecStopPost=-/bin/sh -c '[ \"$$SERVICE_RESULT\" = success ] || exec ",
		"mcs-attest-cap.service":   "\nExecStart=/usr/bin/mcs-attest-agent scrub --cap-only\n",
		"mcs-attest-leave.service": "\nExecStart=/usr/bin/mcs-attest-agent scrub --cap-rest\n",
		"mcs-attest-scrub.service": "\nOnFailure=emergency.target\n",
		"mcs-attest.service":       "\nOnFailure=emergency.target\n",
	} {
		if !strings.Contains(read(t, filepath.Join(module, file)), want) {
			t.Errorf("%s lacks %q", file, strings.TrimSpace(want))
		}
	}
	root := unpack(t)
	for link, target := range map[string]string{
		"initrd.target.wants/mcs-attest-cap.service":                   "../mcs-attest-cap.service",
		"initrd-switch-root.service.requires/mcs-attest-leave.service": "../mcs-attest-leave.service",
		"ignition-complete.target.requires/mcs-attest.service":         "../mcs-attest.service",
		"ignition-complete.target.requires/mcs-attest-scrub.service":   "../mcs-attest-scrub.service",
	} {
		got, err := os.Readlink(filepath.Join(root, "usr/lib/systemd/system", link))
		if err != nil || got != target {
			t.Errorf("%s -> %q, %v", link, got, err)
		}
	}
}

// The agent finishes its command after SIGTERM, and a process that waits in the kernel for a TPM ignores SIGKILL, too.
// systemd waits for TimeoutStopSec= after each signal, by default 90 seconds.
func TestUnits_EndSoonAfterTheirTimeLimit(t *testing.T) {
	for _, name := range []string{"90mcs-attest/mcs-attest-cap.service", "90mcs-attest/mcs-attest-leave.service",
		"90mcs-attest/mcs-attest-scrub.service", "root/mcs-attest-cap-root.service"} {
		unit := read(t, name)
		for _, want := range []string{`(?m)^TimeoutStartSec=\d+$`, `(?m)^TimeoutStopSec=5$`} {
			if !regexp.MustCompile(want).MatchString(unit) {
				t.Errorf("%s does not match %s", name, want)
			}
		}
	}
}

// The initramfs must contain the modules for every file system that the agent mounts. Replacements
// for dracut's functions record the requested modules.
func TestModulesForConfigDrivesAreInstalled(t *testing.T) {
	asked := run(t, nil, "bash", "-c", `moddir=`+module+`; instmods() { printf '%s\n' "$@" "hostonly=${hostonly-unset}"; }; hostonly=yes; . "$moddir/module-setup.sh"; installkernel`)
	have := strings.Fields(asked)
	for _, want := range []string{"=drivers/char/tpm", "sr_mod", "cdrom", "virtio_blk", "virtio_scsi", "isofs",
		"udf", "vfat"} {
		if !slices.Contains(have, want) {
			t.Errorf("%s is not asked for", want)
		}
	}
	if slices.Contains(have, "hostonly=yes") {
		t.Error("modules are left out where this host does not need them")
	}
}

// kdump builds the initramfs of the crash kernel with the same configuration of dracut.
func TestModule_InstallsNothingForKdump(t *testing.T) {
	const script = `moddir=` + module + ` initdir=/nonexistent systemdsystemunitdir=/units
		instmods() { echo "instmods $*"; }
		for f in inst_simple inst_binary inst_multiple ln_r mkdir; do eval "$f() { echo $f; }"; done
		. "$moddir/module-setup.sh"
		echo depends $(depends); installkernel; install`
	if got := run(t, []string{"IN_KDUMP=1"}, "bash", "-c", script); got != "depends systemd\n" {
		t.Errorf("with IN_KDUMP=1: %s", got)
	}
	got := run(t, []string{"IN_KDUMP="}, "bash", "-c", script)
	for _, want := range []string{"depends ignition systemd\n", "instmods =drivers/char/tpm\n", "inst_simple\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("without it, the module lacks %q:\n%s", want, got)
		}
	}
}

// A top-level lib/, lib64/, bin/ or sbin/ replaces the symbolic links of a merged /usr, and
// services fail.
func TestArchive_HasNoFilesOutsideUsr(t *testing.T) {
	entries, err := os.ReadDir(unpack(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "usr" {
			t.Errorf("the archive has a top-level %s", e.Name())
		}
	}
}

func TestImages_DependOnlyOnTheirInputs(t *testing.T) {
	agent := filepath.Join(t.TempDir(), "agent")
	write(t, agent, "#!/bin/sh\n")
	first, second := t.TempDir(), t.TempDir()
	run(t, nil, "./image.sh", agent, first)
	// A clone of an account with another umask.
	private := filepath.Join(t.TempDir(), "dracut")
	run(t, nil, "cp", "-r", ".", private)
	run(t, nil, "chmod", "-R", "go=", private)
	run(t, []string{"TZ=Asia/Tokyo", "LC_ALL=C"}, filepath.Join(private, "image.sh"), agent, second)
	for _, name := range []string{"mcs-attest-initramfs.cpio.zst", "mcs-attest-dracut.tar.gz"} {
		if !bytes.Equal([]byte(read(t, filepath.Join(first, name))), []byte(read(t, filepath.Join(second, name)))) {
			t.Errorf("%s differs between two builds", name)
		}
	}
}

// Without a TPM 2.0 there is nothing to cap. A TPM 2.0 without a device is an error.
func TestCapInTheRealRoot_NeedsATPM2(t *testing.T) {
	unit := strings.ReplaceAll(read(t, "root/mcs-attest-cap-root.service"), " \\\n", " ")
	_, script, _ := strings.Cut(unit, "ExecStart=/bin/sh -c '")
	script, _, ok := strings.Cut(script, "'\n")
	if !ok {
		t.Fatal("the unit has no script")
	}
	script = strings.NewReplacer("$$", "$", "sleep 0.1", ":").Replace(script)
	const table, class = "/sys/firmware/acpi/tables/TPM2", "/sys/class/tpm/tpm0"
	for name, c := range map[string]struct {
		files  map[string]string
		failed bool
	}{
		"no TPM":               {nil, false},
		"TPM 1.2":              {map[string]string{class + "/tpm_version_major": "1\n"}, false},
		"TPM 2.0 of the class": {map[string]string{class + "/tpm_version_major": "2\n"}, true},
		"TPM of an old kernel": {map[string]string{class + "/dev": "10:224\n"}, true},
		"TPM 2.0 of the table": {map[string]string{table: ""}, true},
		"one of each":          {map[string]string{table: "", class + "/tpm_version_major": "1\n"}, true},
	} {
		root := t.TempDir()
		for path, content := range c.files {
			write(t, filepath.Join(root, path), content)
		}
		here := strings.NewReplacer("/sys/", root+"/sys/", "/dev/tpmrm0", root+"/dev/tpmrm0").Replace(script)
		out, err := exec.Command("sh", "-c", here).CombinedOutput()
		if (err != nil) != c.failed || strings.Contains(string(out), "error: PCR 11 is not capped") != c.failed {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestTarball_InstallsAModuleThatDracutFinds(t *testing.T) {
	dir := t.TempDir()
	agent := filepath.Join(dir, "agent")
	write(t, agent, "#!/bin/sh\n")
	run(t, nil, "./image.sh", agent, dir)
	run(t, nil, "tar", "-C", dir, "-xzf", filepath.Join(dir, "mcs-attest-dracut.tar.gz"))
	root := filepath.Join(dir, "image")
	run(t, []string{"MAKEFLAGS="}, "make", "-C", filepath.Join(dir, "mcs-attest"), "install", "DESTDIR="+root)
	for path, mode := range map[string]os.FileMode{
		"usr/bin/mcs-attest-agent":                                 0o755,
		"usr/lib/dracut/modules.d/90mcs-attest/module-setup.sh":    0o755,
		"usr/lib/dracut/modules.d/90mcs-attest/mcs-attest.service": 0o644,
		"usr/lib/dracut/dracut.conf.d/50-mcs-attest.conf":          0o644,
		"usr/lib/systemd/system/mcs-attest-cap-root.service":       0o644,
		// A link to the unit enables it.
		"usr/lib/systemd/system/sysinit.target.wants/mcs-attest-cap-root.service": 0o644,
	} {
		info, err := os.Stat(filepath.Join(root, path))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	run(t, nil, filepath.Join(dir, "mcs-attest/boot.sh"), "--help")
	for _, file := range glob(t, module+"/*") {
		if _, err := os.Stat(filepath.Join(root, "usr/lib/dracut/modules.d", file)); err != nil {
			t.Errorf("not installed: %v", err)
		}
	}
}

func TestShellScriptsPassShellcheck(t *testing.T) {
	var scripts []string
	checkScript := func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if info, err := d.Info(); err == nil && info.Mode()&0o111 != 0 && info.Size() < 1<<20 {
			if first, _, _ := strings.Cut(read(t, path), "\n"); strings.HasPrefix(first, "#!") &&
				strings.HasSuffix(first, "sh") {
				scripts = append(scripts, path)
			}
		}
		return nil
	}
	for _, folder := range []string{".", "../testvm"} {
		if err := filepath.WalkDir(folder, checkScript); err != nil {
			t.Fatal(err)
		}
	}
	run(t, nil, "shellcheck", append([]string{"--external-sources"}, scripts...)...)
}
