// SPDX-License-Identifier: Apache-2.0

package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
)

// The gate is asked for the version that Ignition will request. Where that is unknown, it is asked for several.
func TestAccept_IsThatOfTheIgnitionInTheInitramfs(t *testing.T) {
	program := filepath.Join(t.TempDir(), "ignition")
	for printed, want := range map[string]string{
		"Ignition Debian 2.14.0+ds1-1+b6": "3.3.0",
		"Ignition 2.16.2":                 "3.4.0",
		"Ignition 2.21.0":                 "3.5.0",
		"Ignition v2.25.1-dirty":          "3.5.0",
		"Ignition 2.26.0":                 "3.6.0",
		"Ignition 2.31.0":                 "3.6.0",
		"Ignition 2.15.0":                 "",
		"Ignition 2.19.0":                 "",
		"Ignition 0.35.0":                 "",
		"Ignition 3.0.0":                  "",
		"Ignition was not stamped":        "",
	} {
		script := "#!/bin/sh\n[ \"$*\" = --version ] && echo '" + printed + "'\n"
		if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		a := &agent{paths: paths.Paths{Initrd: program, Ignition: program}}
		got := a.accept(t.Context())
		if want == "" && got != "" || want != "" &&
			got != strings.Replace("application/vnd.coreos.ignition+json;version=X, */*;q=0.1", "X", want, 1) {
			t.Errorf("%s: %q", printed, got)
		}
	}
	for what, p := range map[string]paths.Paths{
		"no Ignition":   {Initrd: program, Ignition: program + "-none"},
		"the real root": {Initrd: program + "-none", Ignition: program},
	} {
		if got := (&agent{paths: p}).accept(t.Context()); got != "" {
			t.Errorf("%s: %q", what, got)
		}
	}
}
