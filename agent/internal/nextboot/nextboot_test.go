// SPDX-License-Identifier: Apache-2.0

package nextboot_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mcs-attest/mcs-attest/agent/internal/nextboot"
)

func newBoot(t *testing.T) nextboot.Boot {
	t.Helper()
	dir := t.TempDir()
	b := nextboot.Boot{Dir: filepath.Join(dir, "boot"), Marker: filepath.Join(dir, "etc", "staged"), BootID: "one",
		Mounted: func(string) (bool, error) { return true, nil }}
	if err := os.Mkdir(b.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return b
}

// list returns the files of the boot partition, as paths below it.
func list(t *testing.T, b nextboot.Boot) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(b.Dir, func(path string, d os.DirEntry, err error) error {
		if path != b.Dir && err == nil {
			name, _ := filepath.Rel(b.Dir, path)
			all = append(all, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestStage_WritesTheConfigBeforeTheFlag(t *testing.T) {
	b := newBoot(t)
	if err := b.Prepare(); err != nil {
		t.Fatal(err)
	}
	if got := list(t, b); len(got) != 0 || b.Staged() || b.StagedEarlier() {
		t.Fatalf("before: %v", got)
	}
	if err := b.Stage([]byte("a secret")); err != nil {
		t.Fatal(err)
	}
	if got := list(t, b); !slices.Equal(got, []string{"ignition", "ignition/config.ign", "ignition.firstboot"}) {
		t.Errorf("%v", got)
	}
	for name, want := range map[string]string{"ignition": "drwx------", "ignition/config.ign": "-rw-------"} {
		if info, err := os.Stat(filepath.Join(b.Dir, name)); err != nil || info.Mode().String() != want {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	// GRUB executes the flag's content.
	if raw, err := os.ReadFile(filepath.Join(b.Dir, "ignition.firstboot")); err != nil || len(raw) != 0 {
		t.Errorf("the flag has %q, %v", raw, err)
	}
	if !b.Staged() || b.StagedEarlier() {
		t.Error("not staged by this boot")
	}
	if b.BootID = "two"; !b.StagedEarlier() {
		t.Error("the next boot does not see that an earlier boot staged a config")
	}
	if err := errors.Join(b.Clear(), b.Clear()); err != nil {
		t.Fatal(err)
	}
	if got := list(t, b); len(got) != 0 || b.Staged() || b.StagedEarlier() {
		t.Errorf("after: %v", got)
	}
}

// A crash after any step leaves no flag without a full config, and nothing that Clear does not remove.
func TestStage_CrashAfterEachStep(t *testing.T) {
	crash := errors.New("power loss")
	for _, at := range []string{"folder", "temporary", "config", "flag", "flush", "marker"} {
		t.Run(at, func(t *testing.T) {
			b := newBoot(t)
			b.Step = func(name string) error {
				got := list(t, b)
				flagged := slices.Contains(got, "ignition.firstboot")
				config, _ := os.ReadFile(filepath.Join(b.Dir, "ignition", "config.ign"))
				staged := slices.Contains([]string{"flag", "flush", "marker"}, name)
				if flagged != staged || flagged && string(config) != "a secret" {
					t.Errorf("after %s: %v, config %q", name, got, config)
				}
				if name == at {
					return crash
				}
				return nil
			}
			if err := b.Stage([]byte("a secret")); !errors.Is(err, crash) {
				t.Fatal(err)
			}
			b.BootID = "two"
			if err := b.Clear(); err != nil {
				t.Fatal(err)
			}
			if got := list(t, b); len(got) != 0 || b.StagedEarlier() {
				t.Errorf("left: %v", got)
			}
			b.Step = nil
			if err := b.Stage([]byte("another one")); err != nil || !b.Staged() {
				t.Errorf("again: %v", err)
			}
		})
	}
}

func TestStage_RejectsAnEmptyConfig(t *testing.T) {
	b := newBoot(t)
	if err := b.Stage(nil); err == nil || len(list(t, b)) != 0 {
		t.Errorf("%v %v", err, list(t, b))
	}
}

func TestPrepare_FailsBeforeAnythingIsUsed(t *testing.T) {
	b := newBoot(t)
	b.Dir = filepath.Join(b.Dir, "none")
	if err := b.Prepare(); err == nil {
		t.Error("a folder that does not exist")
	}
}

// GRUB and Ignition read only the boot partition, not a folder of the root file system.
func TestPrepare_RequiresAMount(t *testing.T) {
	b := newBoot(t)
	b.Mounted = nil
	if err := b.Prepare(); !errors.Is(err, nextboot.ErrNotMounted) || len(list(t, b)) != 0 {
		t.Errorf("a folder of the root file system: %v", err)
	}
	b.Dir = "/proc"
	if err := b.Prepare(); err == nil || errors.Is(err, nextboot.ErrNotMounted) {
		t.Errorf("a mount: %v", err)
	}
}

// Without the boot partition, Clear cannot see a config on it.
func TestClear_DoesNotForgetAConfigOnAPartitionThatIsNotMounted(t *testing.T) {
	b := newBoot(t)
	if err := b.Stage([]byte("a secret")); err != nil {
		t.Fatal(err)
	}
	partition := b.Dir
	b.Dir += "-empty"
	if err := os.Mkdir(b.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b.Mounted = func(dir string) (bool, error) { return dir == partition, nil }
	if err := b.Clear(); !errors.Is(err, nextboot.ErrNotMounted) {
		t.Errorf("not mounted: %v", err)
	}
	b.Dir = partition
	if err := b.Clear(); err != nil || len(list(t, b)) != 0 {
		t.Errorf("mounted: %v, left %v", err, list(t, b))
	}
	b.Dir += "-empty"
	if err := b.Clear(); err != nil {
		t.Errorf("a machine that staged nothing: %v", err)
	}
}

// On CoreOS, coreos-ignition-firstboot-complete.service has removed everything before, in a mount namespace of its own.
// For all others the partition stays read-only. There, to remove a file that does not exist fails with EROFS.
func TestClear_OfNothingOnAReadOnlyPartition(t *testing.T) {
	b := newBoot(t)
	err := errors.Join(b.Stage([]byte("a secret")), os.RemoveAll(filepath.Join(b.Dir, "ignition")),
		os.Remove(filepath.Join(b.Dir, "ignition.firstboot")),
		unix.Mount(b.Dir, b.Dir, "", unix.MS_BIND, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(b.Dir, 0); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", b.Dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := b.Clear(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(b.Marker); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the marker: %v", err)
	}
}

// Files of others stay.
func TestClear_KeepsForeignFiles(t *testing.T) {
	b := newBoot(t)
	foreign := filepath.Join(b.Dir, "ignition", "foreign")
	if err := errors.Join(os.Mkdir(filepath.Dir(foreign), 0o700), os.WriteFile(foreign, nil, 0o600), b.Stage([]byte("c")),
		b.Clear()); err != nil {
		t.Fatal(err)
	}
	if got := list(t, b); !slices.Equal(got, []string{"ignition", "ignition/foreign"}) {
		t.Errorf("%v", got)
	}
}

// The boot partition is not encrypted.
func TestClear_OverwritesTheConfig(t *testing.T) {
	b := newBoot(t)
	crash := errors.New("power loss")
	for _, at := range []string{"temporary", "marker"} {
		b.Step = func(name string) error {
			if name == at {
				return crash
			}
			return nil
		}
		if err := b.Stage([]byte("a secret")); !errors.Is(err, crash) {
			t.Fatal(err)
		}
		blocks := filepath.Join(t.TempDir(), "blocks")
		for _, name := range []string{".mcs-attest.tmp", "config.ign"} {
			_ = os.Link(filepath.Join(b.Dir, "ignition", name), blocks)
		}
		if err := b.Clear(); err != nil {
			t.Fatal(err)
		}
		if raw, err := os.ReadFile(blocks); err != nil || string(raw) != "\x00\x00\x00\x00\x00\x00\x00\x00" {
			t.Errorf("after a crash with %s, the disk has %q, %v", at, raw, err)
		}
	}
}

func TestRetry_OnlyInOneBoot(t *testing.T) {
	b := newBoot(t)
	if err := b.Stage([]byte("a secret")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		boot string
		want bool
	}{{"two", true}, {"two", true}, {"three", false}, {"three", false}} {
		b.BootID = c.boot
		if got, err := b.Retry(); got != c.want || err != nil || !b.StagedEarlier() {
			t.Errorf("in boot %s: %v, %v", c.boot, got, err)
		}
	}
	if err := b.Clear(); err != nil {
		t.Fatal(err)
	}
	if err := b.Stage([]byte("a secret")); err != nil {
		t.Fatal(err)
	}
	// A crash can leave an empty marker.
	if err := os.WriteFile(b.Marker, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for boot, want := range []bool{true, false} {
		b.BootID = "another one" + strings.Repeat("!", boot)
		if got, err := b.Retry(); got != want || err != nil {
			t.Errorf("with another config: %v, %v", got, err)
		}
	}
	b.BootID = "another one"
	if err := os.Remove(filepath.Join(b.Dir, "ignition.firstboot")); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Retry(); got || err != nil {
		t.Errorf("without the flag: %v, %v", got, err)
	}
}

// A power cut while Retry writes the marker must not delete the id of the boot that staged the config.
func TestRetry_DoesNotChangeTheMarkerInPlace(t *testing.T) {
	b := newBoot(t)
	first := b.Marker + "-first"
	if err := errors.Join(b.Stage([]byte("a secret")), os.Link(b.Marker, first)); err != nil {
		t.Fatal(err)
	}
	b.BootID = "two"
	if again, err := b.Retry(); !again || err != nil {
		t.Fatal(again, err)
	}
	old, err := os.ReadFile(first)
	current, currentErr := os.ReadFile(b.Marker)
	if errors.Join(err, currentErr) != nil || string(old) != "one" || string(current) != "one\ntwo" {
		t.Errorf("the old file has %q, the current one %q, %v, %v", old, current, err, currentErr)
	}
}

// GRUB does not read the journal of a file system. debugfs does not either.
func TestStage_TheBootLoaderSeesTheFlagAfterAPowerLoss(t *testing.T) {
	if _, err := os.Stat("/dev/loop-control"); err != nil || os.Geteuid() != 0 {
		t.Skip("mounting a file system requires root and loop devices")
	}
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		return string(out)
	}
	// The mount ends with this thread.
	runtime.LockOSThread()
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Fatal(err)
	}
	b := newBoot(t)
	image := filepath.Join(t.TempDir(), "image")
	run("mkfs.ext4", "-q", image, "64M")
	run("mount", "-o", "loop", image, b.Dir)
	defer func() { run("umount", b.Dir) }()
	secret := bytes.Repeat([]byte("the pull secret "), 1<<12)
	b.Network = filepath.Join(filepath.Dir(b.Dir), "network")
	if err := b.KeepNetwork([]string{"ignition.firstboot", "ip=ens3:dhcp"}); err != nil {
		t.Fatal(err)
	}
	after := func(step string) (names, flag string, remnants int) {
		t.Helper()
		disk := filepath.Join(t.TempDir(), "disk")
		run("cp", "--sparse=always", image, disk)
		raw, err := os.ReadFile(disk)
		if err != nil {
			t.Fatalf("after %s: %v", step, err)
		}
		return run("debugfs", "-R", "ls -p /", disk), run("debugfs", "-R", "cat /ignition.firstboot", disk),
			bytes.Count(raw, secret[:16])
	}
	if err := b.Stage(secret); err != nil {
		t.Fatal(err)
	}
	names, flag, n := after("Stage")
	if !strings.Contains(names, "ignition.firstboot") || !strings.Contains(flag, `"ip=ens3:dhcp"`) || n == 0 {
		t.Errorf("after Stage, the disk has the config %d times, the flag %q, and\n%s", n, flag, names)
	}
	if err := b.Clear(); err != nil {
		t.Fatal(err)
	}
	if names, _, n = after("Clear"); strings.Contains(names, "ignition.firstboot") || n != 0 {
		t.Errorf("after Clear, the disk has the config %d times, and\n%s", n, names)
	}
	if err := os.WriteFile(filepath.Join(b.Dir, "thawed"), nil, 0o600); err != nil {
		t.Error(err)
	}
}
