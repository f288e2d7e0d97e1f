// SPDX-License-Identifier: Apache-2.0

package token

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

func provisioningCreateCommand(e *env.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make the token, 32 random bytes",
		Long: `Make the token, 32 random bytes, where there is none yet. Pools whose policy is in
mode Enforce and asks for nothing else refuse machines without it from then on:
put it into the pointer configs first, or set mode Audit.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, s, err := openProvisioner(cmd, e)
			if err != nil {
				return err
			}
			err = p.ChangeProvisioning(cmd.Context(), func(_ provisioning.Tokens, exists bool) (provisioning.Tokens, error) {
				if exists {
					return provisioning.Tokens{},
						hint.New(fmt.Errorf("there is a provisioning token (%s)", s.Where),
							"'token provisioning rotate' makes a new one and keeps the old one for a while")
				}
				return provisioning.New(time.Now(), rand.Reader)
			})
			if err != nil {
				return err
			}
			cmd.Println("wrote", s.Where)
			cmd.Println("'token provisioning pointer FILE' puts it into a pointer config, 'token provisioning show " +
				"--reveal' prints it")
			return nil
		},
	}
	e.Where(cmd)
	return cmd
}
