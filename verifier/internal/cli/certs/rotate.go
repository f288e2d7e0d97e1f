// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/verifier/internal/certfolder"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

func rotateCommand(e *env.Env) *cobra.Command {
	var now, due bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Take the next step of a rotation: a new CA, or a serving certificate signed by it",
		Long: `Take the next step of a rotation. The first makes a new CA and puts it into the
bundle and the pointer configs; what is served stays. The second, at least 25 hours
later, has the serving certificate signed by it: not before every pointer config that
is known here has the new CA. The old CA stays in the bundle until it has expired.

With --due take the steps that the calendar asks for, if any: for a timer. With --now
take the second step at once. Machines fail then, for good, that boot with a pointer
config of before the first step, and those whose clock is further behind than the new
CA is old: to them it is a certificate of the future.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := openKeeper(cmd.Context(), e, nil)
			if err != nil {
				return err
			}
			if due {
				steps, s, err := k.due()
				for _, step := range steps {
					cmd.Println(describeStep(step) + "\n" + k.after(step))
				}
				if err == nil && len(steps) == 0 {
					cmd.Println("nothing is due")
					cmd.Println(nextStep(s))
				}
				return hintKey(err)
			}
			step, s, err := k.Rotate(cmd.Context(), now)
			var early *mcscert.TooEarly
			switch {
			case errors.As(err, &early):
				return hint.New(err, "wait, or add --now if failing those machines is the smaller harm")
			case errors.Is(err, mcscert.ErrNotOurs):
				return hint.New(err, "on OpenShift: oc adm ocp-certificates regenerate-machine-config-server-serving-cert")
			case err != nil:
				return hintKey(err)
			}
			cmd.Println(describeStep(step) + "\n" + k.after(step))
			return printCerts(cmd.OutOrStdout(), s)
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "take the second step at once: machines fail that do not know the new CA yet")
	cmd.Flags().BoolVar(&due, "due", false, "only what the calendar asks for")
	cmd.MarkFlagsMutuallyExclusive("now", "due")
	e.Where(cmd)
	return cmd
}

// hintKey adds what to do about a key that is none.
func hintKey(err error) error {
	if errors.Is(err, certfolder.ErrKey) {
		return hint.New(err, "restore it from where it is kept, or move it away: without one, 'certs rotate' makes a new CA")
	}
	return err
}

func describeStep(s mcscert.Step) string {
	if s == mcscert.StepCA {
		return "a new CA is in the bundle; what is served has not changed"
	}
	return "a new serving certificate is signed by the newest CA"
}
