package platform

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// userIgn is a user.ign that something else put in place: the installer on
// metal, a PXE image. Ignition 2.14 knows the system's folder alone, 2.27 also
// the others, which then win.
func userIgn(_ context.Context, m Machine) (UserData, error) {
	for _, dir := range []string{m.Paths.IgnitionRuntime, m.Paths.IgnitionLocal, m.Paths.IgnitionSystem} {
		file := filepath.Join(dir, "user.ign")
		raw, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return UserData{}, fmt.Errorf("reading Ignition's own config: %w", err)
		}
		return UserData{raw, file}, nil
	}
	return UserData{}, ErrNone
}
