// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// A verifier that serves would write on into the file that the backup replaced, and lose it at its next start.
func TestBackup_RejectsTheRecordDatabaseAsItsFile(t *testing.T) {
	dir := t.TempDir()
	config, records := filepath.Join(dir, "mcs-attest.yaml"), filepath.Join(dir, "state", "records.db")
	if err := os.WriteFile(config, []byte("origins: [\"https://mcs.test:22623\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Dir(records), 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(records)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(records)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link.db")
	if err := os.Symlink(filepath.Dir(records), filepath.Join(dir, "s")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(records, link); err != nil {
		t.Fatal(err)
	}
	run := func(file string) error {
		cmd := backupCommand()
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetOut(new(strings.Builder))
		cmd.SetArgs([]string{"--config", config, "--force", file})
		return cmd.ExecuteContext(t.Context())
	}
	for _, file := range []string{records, filepath.Join(dir, "s", "records.db"), link} {
		if err := run(file); err == nil || !strings.Contains(err.Error(), "is the record database itself") {
			t.Errorf("%s: %v", file, err)
		}
	}
	if after, err := os.Stat(records); err != nil || !os.SameFile(before, after) {
		t.Errorf("the records were replaced: %v", err)
	}
	if err := run(filepath.Join(dir, "backup.db")); err != nil {
		t.Error(err)
	}
}
