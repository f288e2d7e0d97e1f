// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

func quarantineCommand(e *env.Env) *cobra.Command {
	var release bool
	var w *env.Write
	cmd := &cobra.Command{
		Use:   "quarantine MACHINE",
		Short: "Stop a machine: it neither attests nor redeems a token",
		Long: `Stop a machine. From then on it neither attests nor redeems a token; the answer is
503, so a machine that is booting waits. Its own bootstrap credential is revoked,
and its certificate signing requests wait. It takes nothing else away that the
machine has already: a config that was fetched, a certificate that was issued.

With --release it goes on.`,
		Example: e.Examples(`  PROGRAM quarantine worker-7
  PROGRAM quarantine worker-7 --release`),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: e.MachineNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := e.Open()
			if err != nil {
				return err
			}
			done, err := b.Quarantine(cmd.Context(), args[0], !release, w.Write)
			if err != nil {
				return err
			}
			if len(done) == 0 {
				cmd.PrintErrln(args[0], "is not quarantined")
			}
			return w.Report(cmd, done...)
		},
	}
	e.Where(cmd)
	cmd.Flags().BoolVar(&release, "release", false, "let it go on")
	w = env.WriteFlags(cmd)
	return cmd
}
