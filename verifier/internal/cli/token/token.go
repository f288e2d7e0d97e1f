// SPDX-License-Identifier: Apache-2.0

// Package token has the commands about the keys that sign tokens and seal challenges, and about the
// provisioning token.
package token

import (
	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

// Command is "token".
func Command(e *env.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Manage the keys that sign tokens and seal challenges, and the provisioning token",
	}
	cmd.AddCommand(statusCommand(e), rotateCommand(e), breakGlassCommand(e), provisioningCommand(e))
	return cmd
}
