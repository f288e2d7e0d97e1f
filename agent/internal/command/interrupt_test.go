// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/command"
)

// firstLine calls said when the first line is written.
type firstLine struct {
	bytes.Buffer
	printed func()
}

func (s *firstLine) Write(p []byte) (int, error) {
	s.printed()
	return s.Buffer.Write(p)
}

// A machine whose metadata service never answers waits until a signal ends it, and delivers
// nothing. With mcs-attest=off it does not wait.
func TestWaitingIsInterrupted(t *testing.T) {
	dir := t.TempDir()
	cmdline := filepath.Join(dir, "cmdline")
	for name, value := range map[string]string{
		"MCS_ATTEST_RUN": filepath.Join(dir, "run"), "MCS_ATTEST_CMDLINE": cmdline,
		"MCS_ATTEST_METADATA":         "http://127.0.0.1:1",
		"MCS_ATTEST_IGNITION_RUNTIME": dir, "MCS_ATTEST_IGNITION_LOCAL": dir, "MCS_ATTEST_IGNITION_SYSTEM": dir,
		"PLATFORM_ID": "aws",
	} {
		t.Setenv(name, value)
	}
	for line, want := range map[string]struct {
		status int
		text   string
	}{
		"mcs-attest=off": {0, "off, by kernel argument"},
		"quiet": {1, "the pointer config cannot be read yet: AWS metadata service, asked for the user data: the " +
			"connection was refused; trying again"},
	} {
		if err := os.WriteFile(cmdline, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		out := &firstLine{printed: cancel}
		status := command.Main(ctx, []string{"attest"}, out, out)
		if status != want.status || !strings.Contains(out.String(), want.text) {
			t.Errorf("%s: status %d\n%s", line, status, out.String())
		}
		if _, err := os.Stat(filepath.Join(dir, "run")); err == nil {
			t.Errorf("%s: something was delivered", line)
		}
	}
}
