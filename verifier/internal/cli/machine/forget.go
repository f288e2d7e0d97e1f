// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

func forgetCommand(e *env.Env) *cobra.Command {
	var w *env.Write
	cmd := &cobra.Command{
		Use:   "forget MACHINE",
		Short: "Delete the enrollments and the record of a machine",
		Long: `Delete the enrollments and the record of a machine that is retired, or whose TPM moves
to another machine. Afterwards its TPM cannot attest until you enroll it again. The
command prints what it does not delete, and why.

It does not delete a Machine. In a cluster it also does not delete the record of a
Machine, which is deleted with the Machine. It rejects a machine that is quarantined:
release it first. For a replaced TPM, 'enroll --replace' is sufficient.`,
		Example:           e.Examples(`  PROGRAM forget rack7-u12`),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: e.MachineNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := e.Open()
			if err != nil {
				return err
			}
			done, left, err := b.Forget(cmd.Context(), args[0], w.Write)
			for _, text := range left {
				cmd.PrintErrln(text)
			}
			if reportErr := w.Report(cmd, done...); err == nil {
				err = reportErr
			}
			if err == nil && len(done)+len(left) == 0 {
				cmd.PrintErrln("there is nothing to delete for", args[0])
			}
			return err
		},
	}
	e.Where(cmd)
	w = env.WriteFlags(cmd)
	return cmd
}
