// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const inside = "MCS_ATTEST_VOLUME_TEST_INSIDE"

// The test uses the kernel's mount in a mount namespace that ends with the test. With root it also
// mounts a real device with unexpected content; without root the namespace allows only a tmpfs.
// testvm/scenarios/configdrive uses a real CD-ROM.
func TestKernelMount(t *testing.T) {
	if os.Getenv(inside) == "" {
		again(t)
		return
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	unmount, err := kernelMount("none", "tmpfs", dir)
	if err != nil {
		t.Fatal(err)
	}
	const want = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC
	if flags := mountFlags(t, dir); flags&want != want {
		t.Errorf("mount flags %#x", flags)
	}
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing: %v", err)
	}
	// Another process has the folder open during the unmount.
	other, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unmount(); err != nil {
		t.Error(err)
	}
	_ = other.Close()
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err != nil {
		t.Errorf("it is still mounted: %v", err)
	}
	if _, err := kernelMount("none", "nosuchfs", dir); err == nil || !strings.Contains(err.Error(), "module") {
		t.Errorf("a file system that the kernel does not have: %v", err)
	}
	if _, err := os.Stat("/dev/loop-control"); err == nil && os.Getenv(inside) == "root" {
		mountDevice(t)
	}
}

func again(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	who := "root"
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		who = "user"
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	cmd := exec.Command(program, "-test.run=^TestKernelMount$", "-test.count=1")
	cmd.Env = append(os.Environ(), inside+"="+who)
	cmd.SysProcAttr = attr
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func mountFlags(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Flags
}

// mountDevice mounts ext4, which every kernel has, in place of a config drive's file system, and
// reads it with the same code.
func mountDevice(t *testing.T) {
	work := t.TempDir()
	tree, image := filepath.Join(work, "tree"), filepath.Join(work, "image")
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	for _, err := range []error{
		os.Mkdir(tree, 0o755),
		os.WriteFile(filepath.Join(tree, "user-data"), []byte("from the device"), 0o644),
		os.Symlink("/proc/self/environ", filepath.Join(tree, "out")),
		unix.Mknod(filepath.Join(tree, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	run("mkfs.ext4", "-q", "-d", tree, image, "2M")
	device := run("losetup", "--find", "--show", "--read-only", image)
	defer run("losetup", "--detach", device)
	dir := filepath.Join(work, "mounted")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	unmount, err := kernelMount(device, "ext4", dir)
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	v := &Volume{dir, root, unmount}
	if raw, err := v.ReadFile("user-data"); err != nil || string(raw) != "from the device" {
		t.Errorf("have %q and error %v", raw, err)
	}
	for _, name := range []string{"out", "null", "lost+found"} {
		if raw, err := v.ReadFile(name); err == nil {
			t.Errorf("%s was read: %d bytes", name, len(raw))
		}
	}
	if !v.Has("user-data") || v.Has("out") || v.Has("nothing") {
		t.Error("Has is wrong")
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mount point is left: %v", err)
	}
}
