package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

func (c *cli) quarantineCommand() *cobra.Command {
	var release bool
	var w operator.Write
	var output string
	cmd := &cobra.Command{
		Use:   "quarantine MACHINE",
		Short: "Stop a machine: it neither attests nor redeems a token",
		Long: `Stop a machine. From then on it neither attests nor redeems a token; the answer is
503, so a machine that is booting waits. Its own bootstrap credential is revoked,
and its certificate signing requests wait. It takes nothing else away that the
machine has already: a config that was fetched, a certificate that was issued.

With --release it goes on.`,
		Example: c.examples(`  PROGRAM quarantine worker-7
  PROGRAM quarantine worker-7 --release`),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.machineNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkDryRun(w); err != nil {
				return err
			}
			b, err := c.open()
			if err != nil {
				return err
			}
			done, err := b.Quarantine(cmd.Context(), args[0], !release, w)
			if err != nil {
				return err
			}
			if len(done) == 0 {
				cmd.PrintErrln(args[0], "is not quarantined")
			}
			return told(cmd, w, output, done...)
		},
	}
	c.where(cmd)
	cmd.Flags().BoolVar(&release, "release", false, "let it go on")
	dryRunFlag(cmd, &w)
	writeOutputFlag(cmd, &output)
	return cmd
}

func (c *cli) reattestCommand() *cobra.Command {
	var lasts time.Duration
	var until string
	var revoke bool
	var w operator.Write
	var output string
	cmd := &cobra.Command{
		Use:   "reattest MACHINE",
		Short: "Let a machine that has joined be provisioned once more",
		Long: `Let a machine that has joined be provisioned once more, with the identity that is
recorded. The grant ends after --for, at most 24 hours from now, and is used up by
one provisioning (three attestations: two first boots and a retry).

With --revoke the grant is taken back.`,
		Example: c.examples(`  PROGRAM reattest worker-7 --for 2h
  PROGRAM reattest worker-7 --revoke`),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.machineNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkDryRun(w); err != nil {
				return err
			}
			var end time.Time
			switch {
			case revoke:
			case until != "":
				var err error
				if end, err = time.Parse(time.RFC3339, until); err != nil {
					return hint(fmt.Errorf("--until %q is not a time", until), "write for example %s", time.Now().Add(2*time.Hour).UTC().Format(time.RFC3339))
				}
			default:
				end = time.Now().Add(lasts)
			}
			b, err := c.open()
			if err != nil {
				return err
			}
			done, err := b.Reattest(cmd.Context(), args[0], end, w)
			if err != nil {
				return err
			}
			if len(done) == 0 {
				cmd.PrintErrln(args[0], "has no grant")
			}
			if !end.IsZero() && output == "" {
				cmd.PrintErrf("%s may attest again until %s\n", args[0], end.UTC().Format(time.RFC3339))
			}
			return told(cmd, w, output, done...)
		},
	}
	c.where(cmd)
	f := cmd.Flags()
	f.DurationVar(&lasts, "for", time.Hour, "how long the grant lasts, at most 24h")
	f.StringVar(&until, "until", "", "when it ends, as RFC 3339 has times")
	f.BoolVar(&revoke, "revoke", false, "take the grant back")
	cmd.MarkFlagsMutuallyExclusive("for", "until", "revoke")
	dryRunFlag(cmd, &w)
	writeOutputFlag(cmd, &output)
	return cmd
}
