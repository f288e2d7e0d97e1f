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
	var wait *time.Duration
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create the token, 32 random bytes",
		Long: `Create the token, 32 random bytes, if it does not exist. From then on a pool whose
policy requires only the token in mode Enforce rejects machines without it. To avoid
this, use mode Audit until the pointer configs have the token. For a folder, the command
waits until a running verifier uses the token.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, s, err := openProvisioner(cmd, e)
			if err != nil {
				return err
			}
			var created provisioning.Tokens
			err = p.ChangeProvisioning(cmd.Context(), func(_ provisioning.Tokens, exists bool) (provisioning.Tokens, error) {
				if exists {
					return provisioning.Tokens{},
						hint.New(fmt.Errorf("there is a provisioning token (%s)", s.Where),
							"run 'token provisioning rotate' to create a new one; the old one stays valid for the grace period")
				}
				var err error
				created, err = provisioning.New(time.Now(), rand.Reader)
				return created, err
			})
			if err != nil {
				return err
			}
			cmd.Println("wrote", s.Where)
			cmd.Println("run 'token provisioning pointer FILE' to put it into a pointer config, or 'token provisioning show " +
				"--reveal' to print it")
			return waitProvisioning(cmd, p, created, *wait)
		},
	}
	e.Where(cmd)
	wait = env.WaitFlag(cmd)
	return cmd
}
