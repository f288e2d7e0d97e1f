// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
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
			return quarantine(cmd, e, b, args[0], release, w, *wait)
		},
	}
	e.Where(cmd)
	cmd.Flags().BoolVar(&release, "release", false, "end the quarantine")
	wait = env.WaitFlag(cmd)
	w = env.WriteFlags(cmd)
	return cmd
}

func quarantine(cmd *cobra.Command, e *env.Env, b env.Backend, name string, release bool, w *env.Write,
	patience time.Duration) error {
	done, err := b.Quarantine(cmd.Context(), name, !release, w.Write)
	if err != nil {
		return partly(cmd, w, done, release, err)
	}
	if len(done) == 0 {
		if err := notQuarantined(cmd.Context(), e, b, name); err != nil {
			return err
		}
		cmd.PrintErrln(name, "is not quarantined")
	}
	if err := w.Report(cmd, done...); err != nil || len(done) == 0 || w.Dry() {
		return err
	}
	return env.WaitInForce(cmd, b, name, patience, true, func(s *admin.State) bool {
		m, err := operator.Machine(s, e.Namespace, name)
		return err == nil && m.Quarantined == !release
	})
}

// releaseTime is how long a verifier may take to notice an earlier release.
const releaseTime = 5 * time.Second

// notQuarantined returns an error if a machine is quarantined by its record, although none of its enrollments says so.
func notQuarantined(ctx context.Context, e *env.Env, b env.Backend, name string) error {
	var m admin.Machine
	released := func(ctx context.Context) (bool, error) {
		s, err := b.Find(ctx, name)
		if err == nil {
			m, err = operator.Machine(s, e.Namespace, name)
		}
		if err != nil || !m.Quarantined {
			return err == nil, err
		}
		// A verifier that starts ends it, if it can read the whole folder.
		_, ok := b.(*operator.Folder)
		return ok && !s.Serving && len(s.Problems) == 0, nil
	}
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, releaseTime, true, released)
	if !wait.Interrupted(err) || ctx.Err() != nil {
		return err
	}
	return hint.New(fmt.Errorf("%s is quarantined by its record, although no enrollment of it says so", m.Name),
		"a verifier ends this quarantine when it can read everything: correct the problems that 'status' shows. After a "+
			"restore, run 'quarantine %s', and then with --release", m.Name)
}

// partly returns err after it reported what was written before err. Only a command that clears a field writes more than
// one object; a quarantine is either written or not.
func partly(cmd *cobra.Command, w *env.Write, done []operator.Written, clears bool, err error) error {
	if !clears {
		return err
	}
	return errors.Join(w.Report(cmd, done...), err)
}
