// SPDX-License-Identifier: Apache-2.0

package wholefile_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/mcs-attest/mcs-attest/verifier/internal/wholefile"
)

// What root creates in the folder of another user belongs to this user; elsewhere it stays root's. Another
// user's files are always his own.
func TestWhatRootCreatesBelongsToTheOwnerOfItsFolder(t *testing.T) {
	for name, owner := range map[string]int{"the verifier's": 65534, "root's": 0} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if os.Geteuid() != 0 {
				owner = os.Geteuid()
			} else if err := os.Chown(dir, owner, owner); err != nil {
				t.Fatal(err)
			}
			folder, file, lock := filepath.Join(dir, "folder"), filepath.Join(dir, "folder", "file"), filepath.Join(dir, "lock")
			for range 2 { // a new one, and one that exists
				if err := wholefile.Mkdir(folder, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := wholefile.Write(file, 0o640, []byte("content")); err != nil {
					t.Fatal(err)
				}
				f, err := wholefile.Open(lock)
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
			for path, mode := range map[string]os.FileMode{folder: 0o700 | os.ModeDir, file: 0o640, lock: 0o600} {
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

// A folder with the name of a file, and one whose parent does not exist, are errors.
func TestMkdir_Errors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := wholefile.Write(file, 0o600, nil); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(dir, "no", "folder")} {
		if err := wholefile.Mkdir(path, 0o700); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
}
