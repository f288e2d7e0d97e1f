// SPDX-License-Identifier: Apache-2.0

package fipsmode_test

import (
	"crypto/fips140"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/fipsmode"
)

// file is in the environment of the program that TestMain plays.
const file = "MCS_ATTEST_TEST_FIPS_ENABLED"

func TestMain(m *testing.M) {
	path, ok := os.LookupEnv(file)
	if !ok {
		os.Exit(m.Run())
	}
	if err := fipsmode.FollowKernel(path); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Print(fips140.Enabled(), " ", os.Getenv("GODEBUG"), " ", os.Args[1:])
}

func TestFIPS_AgentFollowsTheKernel(t *testing.T) {
	dir := t.TempDir()
	kernel := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	on, off := kernel("on", "1\n"), kernel("off", "0\n")
	for name, v := range map[string]struct{ file, godebug, want string }{
		"the kernel is in FIPS mode":       {on, "", "true fips140=on [attest -x]"},
		"another setting stays":            {on, "tlsmlkem=0", "true tlsmlkem=0,fips140=on [attest -x]"},
		"an administrator switches it off": {on, "fips140=off", "false fips140=off [attest -x]"},
		"the kernel is not":                {off, "", "false  [attest -x]"},
		"the program is, the kernel not":   {off, "fips140=on", "true fips140=on [attest -x]"},
		"a kernel without FIPS mode":       {filepath.Join(dir, "none"), "", "false  [attest -x]"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "attest", "-x")
			cmd.Env = append(os.Environ(), file+"="+v.file, "GODEBUG="+v.godebug)
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != v.want {
				t.Errorf("%q %v, want %q", out, err, v.want)
			}
		})
	}
	t.Run("an unreadable answer stops it", func(t *testing.T) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), file+"="+dir)
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("it goes on: %s", out)
		}
	})
}
