// SPDX-License-Identifier: Apache-2.0

// Package setup has the commands that make a verifier's folder, and that keep it: init, backup, restore
// and anchors.
package setup

import "github.com/spf13/cobra"

// Commands are the commands of this noun.
func Commands() []*cobra.Command {
	return []*cobra.Command{initCommand(), anchorsCommand(), backupCommand(), restoreCommand()}
}
