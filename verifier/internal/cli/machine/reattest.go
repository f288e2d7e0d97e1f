// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

func reattestCommand(e *env.Env) *cobra.Command {
	var lasts time.Duration
	var until string
	var revoke bool
	var w *env.Write
	var wait *time.Duration
	cmd := &cobra.Command{
		Use:   "reattest MACHINE",
		Short: "Allow a machine that has joined to be provisioned once more",
		Long: `Allow a machine that has joined to be provisioned once more, with the identity in its
record. The grant ends after --for, at most 24 hours from now. It is used up by one
provisioning, which is three attestations: two first boots and a retry.

The grant does not cover the kubelet's certificate. Delete the old Node first, or
approve the machine's certificate signing request by hand.

--revoke revokes the grant. For a folder, the command waits until a running verifier
has read the change.`,
		Example: e.Examples(`  PROGRAM reattest worker-7 --for 2h
  PROGRAM reattest worker-7 --revoke`),
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: e.MachineNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			var end time.Time
			switch {
			case revoke:
			case until != "":
				var err error
				if end, err = time.Parse(time.RFC3339, until); err != nil {
					return env.Usage(hint.New(fmt.Errorf("--until %q is not a time", until), "write it like %s",
						time.Now().Add(2*time.Hour).UTC().Format(time.RFC3339)))
				}
			default:
				end = time.Now().Add(lasts)
			}
			if err := operator.CheckGrant(end, time.Now()); err != nil {
				return env.Usage(err)
			}
			b, err := e.Open()
			if err != nil {
				return err
			}
			return reattest(cmd, e, b, args[0], end, w, *wait)
		},
	}
	e.Where(cmd)
	f := cmd.Flags()
	f.DurationVar(&lasts, "for", time.Hour, "how long the grant lasts, at most 24h")
	f.StringVar(&until, "until", "", "time at which the grant ends, in RFC 3339")
	f.BoolVar(&revoke, "revoke", false, "revoke the grant")
	cmd.MarkFlagsMutuallyExclusive("for", "until", "revoke")
	wait = env.WaitFlag(cmd)
	w = env.WriteFlags(cmd)
	return cmd
}

// reattest grants one more attestation until end, or revokes the grant if end is zero.
func reattest(cmd *cobra.Command, e *env.Env, b env.Backend, name string, end time.Time, w *env.Write,
	wait time.Duration) error {
	done, err := b.Reattest(cmd.Context(), name, end, w.Write)
	if err != nil {
		return partly(cmd, w, done, end.IsZero(), err)
	}
	if len(done) == 0 {
		cmd.PrintErrln(name, "has no grant")
	}
	if !end.IsZero() && w.Output.Is("") && !w.Dry() {
		cmd.PrintErrf("%s may attest again until %s\n", name, end.UTC().Format(time.RFC3339))
	}
	if err := w.Report(cmd, done...); err != nil || len(done) == 0 || w.Dry() {
		return err
	}
	return env.WaitInForce(cmd, b, name, wait, true, func(s *admin.State) bool {
		m, err := operator.Machine(s, e.Namespace, name)
		return err == nil && granted(m, end)
	})
}

// granted reports whether a machine has the grant until end, or none if end is zero. Of two grants the later counts.
func granted(m admin.Machine, end time.Time) bool {
	if end.IsZero() {
		return m.Reattest == nil
	}
	return m.Reattest != nil && !m.Reattest.Before(end.Truncate(time.Second))
}
