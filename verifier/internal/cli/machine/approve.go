// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

func approveCommand(e *env.Env) *cobra.Command {
	var o enrollOptions
	cmd := &cobra.Command{
		Use:   "approve ID",
		Short: "Let a machine in that waits: say whose its TPM is",
		Long: `Let a machine in that waits for approval ('status' lists them by id). Its TPM is
genuine; whose machine it is in, only you know: look at 'explain ID' first.

It belongs to an existing Machine (--machine), or becomes one of a pool's where
there are no Machines (--name, and --pool if it shall not be the one it asked for).
The same as 'enroll --approve ID'.`,
		Example: e.Examples(`  PROGRAM explain 3f2a9c01d4e5b6a7
  PROGRAM approve 3f2a9c01d4e5b6a7 --machine openshift-machine-api/worker-7
  PROGRAM approve 3f2a9c01d4e5b6a7 --name rack7-u12`),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: e.WaitingNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.approve = args[0]
			return enroll(cmd, e, o)
		},
	}
	e.Where(cmd)
	enrollmentFlags(cmd, &o)
	return cmd
}
