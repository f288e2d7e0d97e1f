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
		Short: "Admit a machine that waits for approval",
		Long: `Admit a machine that waits for approval; 'status' lists the ids. Its TPM is genuine,
but only you can tell which machine the TPM is in: run 'explain ID' first.

The TPM belongs to an existing Machine (--machine). Without Machine objects, give the
machine a name with --name, and with --pool a pool other than the requested one. The
command does the same as 'enroll --approve ID'.`,
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
	enrollmentFlags(cmd, e, &o)
	return cmd
}
