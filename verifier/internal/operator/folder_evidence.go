// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

// KeptEvidence returns the saved evidence of the first of these correlation IDs that has some.
func (f *Folder) KeptEvidence(ids ...string) ([]byte, error) {
	dir := f.Config.Path("state", "evidence")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the folder of evidence: %w", err)
	}
	for _, id := range ids {
		for _, e := range entries {
			if id == "" || !strings.HasSuffix(e.Name(), "-"+id+".json") {
				continue
			}
			raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return nil, fmt.Errorf("read evidence: %w", err)
			}
			return raw, nil
		}
	}
	return nil, hint.New(fmt.Errorf("%s has no evidence of this machine", dir),
		"set keepEvidence in the configuration, and let the machine attest again")
}
