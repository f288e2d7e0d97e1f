// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// userIgn reads a user.ign that another component stored, such as the installer on metal or a PXE
// image. Ignition 2.14 reads only the system's folder; 2.27 also reads the other folders, which
// take precedence.
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
