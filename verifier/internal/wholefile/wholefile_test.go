// SPDX-License-Identifier: Apache-2.0

package wholefile_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// What root creates in the folder of another user belongs to this user; elsewhere it stays root's. Without root, the
// test shows only the modes.
func TestWhatRootCreatesBelongsToTheOwnerOfItsFolder(t *testing.T) {
	for name, owner := range map[string]int{"the verifier's": 65534, "root's": 0} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if os.Geteuid() != 0 {
				owner = os.Geteuid()
			} else if err := os.Chown(dir, owner, owner); err != nil {
				t.Fatal(err)
			}
			outer, lock := filepath.Join(dir, "outer"), filepath.Join(dir, "lock")
			folder, file := filepath.Join(outer, "folder"), filepath.Join(outer, "folder", "file")
			for range 2 { // a new one, and one that exists
				if err := wholefile.MkdirAll(folder, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := wholefile.Write(file, 0o640, []byte("content")); err != nil {
					t.Fatal(err)
				}
				f, err := wholefile.OpenLock(lock)
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
			for path, mode := range map[string]os.FileMode{
				outer: 0o700 | os.ModeDir, folder: 0o700 | os.ModeDir, file: 0o640, lock: 0o600,
			} {
				info, err := os.Lstat(path)
				if err != nil {
					t.Fatal(err)
				}
				if got := int(info.Sys().(*syscall.Stat_t).Uid); got != owner || info.Mode() != mode {
					t.Errorf("%s has the owner %d and the mode %v, want %d and %v", path, got, info.Mode(), owner, mode)
				}
			}
		})
	}
}

// A lock that exists keeps its owner: the owner of the folder could make it a second name of a file of root.
func TestOpenLock_DoesNotGiveAwayAFileThatExists(t *testing.T) {
	dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(secret, filepath.Join(dir, "hard")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, "symbolic")); err != nil {
		t.Fatal(err)
	}
	f, err := wholefile.OpenLock(filepath.Join(dir, "hard"))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if f, err := wholefile.OpenLock(filepath.Join(dir, "symbolic")); err == nil {
		f.Close()
		t.Error("it follows a symbolic link")
	}
	info, err := os.Stat(secret)
	if err != nil {
		t.Fatal(err)
	}
	if got := int(info.Sys().(*syscall.Stat_t).Uid); got != os.Geteuid() {
		t.Errorf("the file belongs to %d now", got)
	}
}

// A folder with the name of a file, and one in a file, are errors.
func TestMkdirAll_Errors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := wholefile.Write(file, 0o600, nil); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "folder")} {
		if err := wholefile.MkdirAll(path, 0o700); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
}

// A FIFO without a writer must not block a reader that follows a folder.
func TestRead_OnlyRegularFilesOfLimitedSize(t *testing.T) {
	dir := t.TempDir()
	fifo, file := filepath.Join(dir, "fifo"), filepath.Join(dir, "file")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path, want string
		most       int64
	}{
		"a FIFO":                          {fifo, "not a regular file", 7},
		"a folder":                        {dir, "not a regular file", 7},
		"a device":                        {os.DevNull, "not a regular file", 7},
		"a file that is too large":        {file, "7 bytes, at most 6 are read", 6},
		"a file that states another size": {"/proc/self/status", "more than 6 bytes", 6},
	} {
		got := make(chan error, 1)
		go func() {
			_, _, err := wholefile.Read(c.path, c.most)
			got <- err
		}()
		select {
		case err := <-got:
			if err == nil || err.Error() != c.want {
				t.Errorf("%s: %v, expected %q", name, err, c.want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s blocks the reader", name)
		}
	}
	info, raw, err := wholefile.Read(file, 7)
	if err != nil || string(raw) != "content" || info.Size() != 7 {
		t.Errorf("%q, %v, %v", raw, info, err)
	}
}
