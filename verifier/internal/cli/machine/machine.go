// SPDX-License-Identifier: Apache-2.0

// Package machine has the commands about machines: status, explain, enroll, approve, forget,
// quarantine, reattest and rehearse.
package machine

import (
	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

// Commands are the commands of this noun.
func Commands(e *env.Env) []*cobra.Command {
	return []*cobra.Command{
		statusCommand(e), explainCommand(e), enrollCommand(e), approveCommand(e), forgetCommand(e), quarantineCommand(e),
		reattestCommand(e), rehearseCommand(e),
	}
}
