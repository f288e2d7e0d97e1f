// SPDX-License-Identifier: Apache-2.0

// Package wholefile replaces files atomically: a reader, also after a power failure, gets either the
// old or the new content.
package wholefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Write replaces the file at path. The content is on the disk before the file gets its name, and the name is on the
// disk when Write returns: a power failure after that undoes no quarantine.
func Write(path string, mode os.FileMode, content []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(tmp.Name()) // has no effect after a successful rename
	_, err = tmp.Write(content)
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

func syncFolder(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
