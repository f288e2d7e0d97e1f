// Package wholefile writes a file as a whole or not at all: whoever reads it
// meanwhile, or after a power cut, sees the old content or the new.
package wholefile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Write replaces the file at path. Its content is on the disk before it has its name.
func Write(path string, mode os.FileMode, content []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(tmp.Name()) // gone already when all went well
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
