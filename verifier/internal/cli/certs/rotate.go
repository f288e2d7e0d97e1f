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
	var force mcscert.Force
	var due bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Take the next step of a rotation: a new CA, or a serving certificate signed by it",
		Long: `Take the next step of a rotation. The first step creates a new CA and adds it to the
bundle and to the pointer configs; the serving certificate does not change. The
second step, at least 25 hours later, signs a serving certificate with the new CA. It
waits until every pointer config that the verifier reads has the new CA. The old CA
stays in the bundle until it expires.

--due takes only the steps that are due, for use in a timer. --now takes the second
step immediately. A machine then fails permanently if its pointer config is older than
the first step. So does a machine whose clock is behind by more than the age of the
new CA, because it considers the certificate not yet valid.

--new-ca takes the first step, also between the two steps. It is for a stolen key of
the newest CA, which must not sign in the second step.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			defer env.UntilSignal(cmd)() // a step becomes complete
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
			step, s, err := k.Rotate(cmd.Context(), force)
			var early *mcscert.TooEarly
			switch {
			case errors.As(err, &early):
				return hint.New(err, "wait, or add --now if failing those machines is the smaller harm")
			case errors.Is(err, mcscert.ErrNotOurs):
				return hint.New(err, "the machine-config-operator renews them when they are due; "+
					"docs/certificates.md says how to replace them earlier")
			case err != nil:
				return hintKey(err)
			}
			cmd.Println(describeStep(step) + "\n" + k.after(step))
			return printCerts(cmd.OutOrStdout(), s)
		},
	}
	cmd.Flags().BoolVar(&force.Serving, "now", false, "take the second step immediately; machines without the new CA fail")
	cmd.Flags().BoolVar(&force.CA, "new-ca", false, "create a new CA, also if the newest one has not signed yet")
	cmd.Flags().BoolVar(&due, "due", false, "take only the steps that are due")
	cmd.MarkFlagsMutuallyExclusive("now", "due", "new-ca")
	e.Where(cmd)
	return cmd
}

// hintKey adds what to do about a key that is none.
func hintKey(err error) error {
	if errors.Is(err, certfolder.ErrKey) {
		return hint.New(err, "restore it from its copy, or move it away: without a key, 'certs rotate' creates a new CA")
	}
	return err
}

func describeStep(s mcscert.Step) string {
	if s == mcscert.StepCA {
		return "a new CA is in the bundle; the serving certificate has not changed"
	}
	return "a new serving certificate is signed by the newest CA"
}
