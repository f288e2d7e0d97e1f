// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

func quarantineCommand(e *env.Env) *cobra.Command {
	var release bool
	var w *env.Write
	var wait *time.Duration
	cmd := &cobra.Command{
		Use:   "quarantine MACHINE",
		Short: "Stop a machine: it neither attests nor redeems a token",
		Long: `Stop a machine. From then on it neither attests nor redeems a token; the answer is
503, so a machine that is booting waits. Its own bootstrap credential is revoked,
and its certificate signing requests wait. It takes nothing else away that the
machine has already: a config that was fetched, a certificate that was issued.

With --release it goes on. Of a folder, quarantine waits until a serving verifier
has read it.`,
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
			if err := w.Report(cmd, done...); err != nil || len(done) == 0 || w.DryRun != operator.DryRunNone {
				return err
			}
			return waitInForce(cmd, b, args[0], *wait, true, func(s *admin.State) bool {
				m, err := operator.Machine(s, e.Namespace, args[0])
				return err == nil && m.Quarantined == !release
			})
		},
	}
	e.Where(cmd)
	cmd.Flags().BoolVar(&release, "release", false, "let it go on")
	wait = waitFlag(cmd)
	w = env.WriteFlags(cmd)
	return cmd
}
