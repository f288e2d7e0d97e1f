// SPDX-License-Identifier: Apache-2.0

package command

import (
	"path/filepath"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/agent/internal/platform"
)

// Attack T75: nothing sets the clock of a system that runs, or of a machine whose kernel arguments
// forbid it.
func TestAttack_T75_ClockIsOnlySetInTheInitramfs(t *testing.T) {
	initramfs, realRoot := paths.Paths{Initrd: t.TempDir()}, paths.Paths{Initrd: filepath.Join(t.TempDir(), "none")}
	for name, c := range map[string]struct {
		paths   paths.Paths
		cmdline string
		want    bool
	}{
		"initramfs":               {initramfs, "quiet", true},
		"initramfs, other word":   {initramfs, "mcs-attest.clock=on", true},
		"initramfs, forbidden":    {initramfs, "mcs-attest.clock=off", false},
		"real root":               {realRoot, "quiet", false},
		"real root, even allowed": {realRoot, "mcs-attest.clock=on", false},
	} {
		t.Run(name, func(t *testing.T) {
			a := &agent{paths: c.paths}
			if got := a.clock(platform.ParseCmdline(c.cmdline), nil) != nil; got != c.want {
				t.Errorf("may set the clock: %v", got)
			}
		})
	}
}
