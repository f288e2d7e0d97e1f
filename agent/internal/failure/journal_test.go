// SPDX-License-Identifier: Apache-2.0

package failure_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/failure"
)

// journalctl adds a fake journalctl to PATH. It prints the lines of the requested transport.
func journalctl(t *testing.T, syslog, stdout string) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"syslog": syslog, "stdout": stdout} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	script := "#!/bin/sh\nfor a; do case $a in _TRANSPORT=*) exec cat " + dir + "/${a#*=};; esac; done\nexit 1\n"
	if err := os.WriteFile(filepath.Join(dir, "journalctl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// Output of Debian's Ignition 2.14 when its files stage fails.
const debianFiles = `INFO     : Ignition Debian 2.14.0+ds1-1+b6
INFO     : Stage: files
files failed
Full config:
{
  "ignition": {
    "config": {
    "version": "3.4.0-experimental"
  },
  "storage": {
    "files": [
      {
        "contents": {
          "source": "data:;base64,c4n4ry"
ERROR    : files: createFilesystemsFiles: createFiles: op(3): [failed] writing file "/sysroot/etc/x"
CRITICAL : Ignition failed: failed to create files: not a directory
`

// Attack T57: the config that a failing stage prints is not sent, but the cause is.
func TestAttack_T57_ConfigOnStandardOutput(t *testing.T) {
	journalctl(t, "disks: op(1): [failed] wiping\n", debianFiles+strings.Repeat("c4n4ry", 100000)+"\n")
	got, err := failure.ReadJournal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := "disks: op(1): [failed] wiping\n" +
		"ERROR    : files: createFilesystemsFiles: createFiles: op(3): [failed] writing file \"/sysroot/etc/x\"\n" +
		"CRITICAL : Ignition failed: failed to create files: not a directory"
	if got != want {
		t.Errorf("have %q", got)
	}
}

func TestJournalIsBounded(t *testing.T) {
	journalctl(t, strings.Repeat("a warning\n", 10000)+"the reason\n", "")
	got, err := failure.ReadJournal(t.Context())
	if err != nil || strings.Count(got, "\n") > 50 || !strings.HasSuffix(got, "the reason") {
		t.Errorf("%d lines, error %v", strings.Count(got, "\n"), err)
	}
}

func TestNoJournalctl(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := failure.ReadJournal(t.Context()); err == nil {
		t.Error("no error")
	}
}
