// SPDX-License-Identifier: Apache-2.0

package token

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

func provisioningShowCommand(e *env.Env) *cobra.Command {
	var reveal bool
	cmd := &cobra.Command{
		Use:   "show --reveal",
		Short: "Print the current token",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, s, err := openProvisioner(cmd, e)
			if err != nil {
				return err
			}
			tokens, err := current(cmd, p, s)
			if err != nil {
				return err
			}
			if !reveal {
				return hint.New(errors.New("the token would be on the screen and in any recording of it"),
					"add --reveal, or run 'token provisioning status' to see the token's name instead")
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), string(tokens.Current.Expose()))
			return err
		},
	}
	e.Where(cmd)
	cmd.Flags().BoolVar(&reveal, "reveal", false, "print the secret")
	return cmd
}
