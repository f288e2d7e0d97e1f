// SPDX-License-Identifier: Apache-2.0

package delivery_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/delivery"
	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
)

func testPaths(t *testing.T) paths.Paths {
	dir := t.TempDir()
	return paths.Paths{
		Run:             filepath.Join(dir, "mcs-attest"),
		IgnitionRuntime: filepath.Join(dir, "run"),
		IgnitionSystem:  filepath.Join(dir, "usr"),
	}
}

// environment reads the environment file as the drop-in of Ignition's unit does.
func environment(t *testing.T, p paths.Paths) map[string]string {
	t.Helper()
	out := map[string]string{}
	for line := range strings.Lines(read(t, p.Own("ignition.env"))) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		out[key] = value
	}
	return out
}

func read(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestWrite(t *testing.T) {
	p := testPaths(t)
	for dir, content := range map[string]string{p.IgnitionRuntime: "runtime", p.IgnitionSystem: "system"} {
		if err := os.MkdirAll(filepath.Join(dir, "base.d"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "base.d", "10.ign"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Twice, because a restarted service finds its own files.
	for range 2 {
		if err := delivery.Write(p, delivery.Delivery{Pointer: []byte("pointer"), MaskedCmdline: "quiet\n"}); err != nil {
			t.Fatal(err)
		}
	}
	env := environment(t, p)
	for name, base := range map[string]string{
		"IGNITION_SYSTEM_CONFIG_DIR":         "system",  // the only folder of Ignition 2.14
		"IGNITION_SYSTEM_RUNTIME_CONFIG_DIR": "runtime", // Ignition 2.27 and later
	} {
		if got := read(t, filepath.Join(env[name], "user.ign")); got != "pointer" {
			t.Errorf("%s: user.ign is %q", name, got)
		}
		if got := read(t, filepath.Join(env[name], "base.d", "10.ign")); got != base {
			t.Errorf("%s: base.d is the one of %q", name, got)
		}
		if _, err := os.ReadDir(filepath.Join(env[name], "base.platform.d")); !os.IsNotExist(err) {
			t.Errorf("%s: base.platform.d: %v; Ignition goes on only if it does not exist", name, err)
		}
	}
	if got := read(t, p.Own("cmdline")); got != "quiet\n" {
		t.Errorf("cmdline %q", got)
	}
	err := filepath.WalkDir(p.Run, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if d.Type() != fs.ModeSymlink && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", file, info.Mode())
		}
		if strings.Contains(d.Name(), "tmp") {
			t.Errorf("%s was left", file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := delivery.Remove(p); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(p.Run)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if got := read(t, filepath.Join(p.IgnitionSystem, "base.d", "10.ign")); got != "system" {
		t.Error("Ignition's own base config was deleted")
	}
	if err := delivery.Remove(p); err != nil {
		t.Errorf("removing again: %v", err)
	}
}

// An empty user.ign would make Ignition provision an empty machine.
func TestWrite_RejectsAnEmptyConfig(t *testing.T) {
	p := testPaths(t)
	if err := delivery.Write(p, delivery.Delivery{}); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat(p.Own("ignition.env")); err == nil {
		t.Error("ignition.env exists")
	}
}

func TestPrepare_RestrictsAFolderThatOthersCanRead(t *testing.T) {
	p := testPaths(t)
	if err := os.MkdirAll(p.Run, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := delivery.Write(p, delivery.Delivery{Pointer: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(p.Run); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}
