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
		Short: "Deny a machine attestation and the use of its token",
		Long: `Deny a machine attestation and the use of its token. The answer is HTTP status 503, so
a machine that is booting waits. The verifier revokes the machine's own bootstrap
credential, and its certificate signing requests wait. The machine keeps what it
already has: the config that it fetched, and the certificate that was issued to it.

--release ends the quarantine. For a folder, the command waits until a running verifier
has read the change.`,
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
			return env.WaitInForce(cmd, b, args[0], *wait, true, func(s *admin.State) bool {
				m, err := operator.Machine(s, e.Namespace, args[0])
				return err == nil && m.Quarantined == !release
			})
		},
	}
	e.Where(cmd)
	cmd.Flags().BoolVar(&release, "release", false, "end the quarantine")
	wait = env.WaitFlag(cmd)
	w = env.WriteFlags(cmd)
	return cmd
}
