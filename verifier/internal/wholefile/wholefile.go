// SPDX-License-Identifier: Apache-2.0

// Package wholefile replaces files atomically: a reader, also after a power failure, gets either the
// old or the new content. It also reads files that another process may replace at any time.
package wholefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	leave(tmp, filepath.Dir(path))
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
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

// Read reads a regular file of at most most bytes. It never blocks: what it checks is the open file, so a FIFO
// that replaces the file is an error, too.
func Read(path string, most int64) (fs.FileInfo, []byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, nil, err
	case !info.Mode().IsRegular():
		return nil, nil, errors.New("not a regular file")
	case info.Size() > most:
		return nil, nil, fmt.Errorf("%d bytes, at most %d are read", info.Size(), most)
	}
	raw, err := io.ReadAll(io.LimitReader(f, most+1))
	if int64(len(raw)) > most {
		err = fmt.Errorf("more than %d bytes", most)
	}
	return info, raw, err
}

// MkdirAll creates the folder at path, and those that it is in, if they do not exist. Like a file, each belongs to the
// owner of the folder that it is in.
func MkdirAll(path string, mode os.FileMode) error {
	err := os.Mkdir(path, mode)
	if errors.Is(err, os.ErrNotExist) && filepath.Dir(path) != path {
		if err := MkdirAll(filepath.Dir(path), mode); err != nil {
			return err
		}
		err = os.Mkdir(path, mode)
	}
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
	leave(dir, filepath.Dir(path))
	return dir.Close()
}

// OpenLock opens the file at path for a lock. It creates an empty file if none exists. A file that exists keeps its
// owner, because it may be a link to a file of root.
func OpenLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, os.ErrExist) {
		return os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
	}
	if err != nil {
		return nil, err
	}
	leave(f, filepath.Dir(path))
	return f, nil
}

// leave gives what root created to the owner of its folder. Where that is not possible or permitted, it stays root's.
func leave(f *os.File, folder string) {
	info, err := os.Stat(folder)
	if os.Geteuid() != 0 || err != nil {
		return
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 {
		_ = f.Chown(int(owner.Uid), int(owner.Gid))
	}
}

func syncFolder(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
