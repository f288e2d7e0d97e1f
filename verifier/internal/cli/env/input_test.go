// SPDX-License-Identifier: Apache-2.0

package env

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A list of which the end is not read would leave machines out without an error.
func TestReadInput_MoreThanTheLimitIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "list")
	for _, size := range []int{maxInput, maxInput + 1} {
		content := bytes.Repeat([]byte("#"), size)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{file, "-"} {
			raw, err := ReadInput(path, bytes.NewReader(content))
			switch {
			case size <= maxInput && (err != nil || len(raw) != size):
				t.Errorf("%s of %d bytes: %d bytes, %v", path, size, len(raw), err)
			case size > maxInput && (err == nil || !strings.Contains(err.Error(), "larger than 16 MiB")):
				t.Errorf("%s of %d bytes: %d bytes, %v", path, size, len(raw), err)
			}
		}
	}
}
