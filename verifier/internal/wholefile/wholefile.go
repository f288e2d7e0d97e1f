// SPDX-License-Identifier: Apache-2.0

// Package wholefile replaces files atomically: a reader, also after a power failure, gets either the
// old or the new content.
package wholefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Write replaces the file at path. The content is on the disk before the file gets its name, and the name is on the
// disk when Write returns: a power failure after that undoes no quarantine. What root writes belongs to the owner of
// the folder, because a verifier that runs as this user reads it.
func Write(path string, mode os.FileMode, content []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(tmp.Name()) // has no effect after a successful rename
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(mode), leave(tmp, filepath.Dir(path)), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Mkdir creates the folder at path if it does not exist. Like a file, it belongs to the owner of the folder that it
// is in.
func Mkdir(path string, mode os.FileMode) error {
	err := os.Mkdir(path, mode)
	if errors.Is(err, os.ErrExist) {
		if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("create folder: %w", err)
	}
	dir, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("create folder: %w", err)
	}
	return errors.Join(leave(dir, filepath.Dir(path)), dir.Close())
}

// Open opens the file at path, which stays empty, for a lock. It creates the file if it does not exist.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := leave(f, filepath.Dir(path)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// leave gives what root created to the owner of its folder. Without the capability to do so, it stays root's.
func leave(f *os.File, folder string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid == 0 {
		return nil
	}
	if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil && !errors.Is(err, os.ErrPermission) {
		return err
	}
	return nil
}

func syncFolder(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
