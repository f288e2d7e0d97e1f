// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/verifier/internal/agents"
)

func TestOpen(t *testing.T) {
	write := func(names ...string) string {
		dir := t.TempDir()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("the same"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	f, err := agents.Open(write("mcs-attest-agent-amd64", "mcs-attest-agent-arm64", "mcs-attest-agent-vax", "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	if got, err := f.Hashes("amd64", "arm64"); err != nil || len(got) != 2 || got["amd64"] != got["arm64"] ||
		len(got["amd64"]) != 64 {
		t.Errorf("%v %v", got, err)
	}
	if got, err := f.Hashes("amd64", "s390x"); err == nil {
		t.Errorf("an architecture without a file: %v", got)
	}
	empty := write()
	if err := os.WriteFile(filepath.Join(empty, "mcs-attest-agent-amd64"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	folder := write()
	if err := os.Mkdir(filepath.Join(folder, "mcs-attest-agent-amd64"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{
		"no folder": filepath.Join(empty, "none"), "no agent": write("other"), "an empty file": empty, "a folder": folder,
	} {
		if _, err := agents.Open(dir); err == nil || !strings.Contains(err.Error(), "open the agents: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
