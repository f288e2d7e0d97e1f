// SPDX-License-Identifier: Apache-2.0

package token

import (
	"crypto/rand"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

func provisioningRotateCommand(e *env.Env) *cobra.Command {
	var now bool
	var grace time.Duration
	var wait *time.Duration
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Create a new token; the old one stays valid for the grace period",
		Long: `Create a new token. The old one stays valid for the grace period, so that machines that
are booting can finish. The grace period is provisioningToken.grace of the
configuration, one hour by default. In that time, put the new token into the pointer
configs.

A second rotation within a grace period fails, because it would lock out the machines
that have the older token. With --now all older tokens become invalid immediately; use
it if a token was stolen. For a folder, the command waits until a running verifier
uses the new token.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			own := cmd.Flags().Changed("grace")
			switch {
			case own && grace == 0:
				return env.Usage(hint.New(errors.New("a grace of 0"), "use --now, if the old token must end immediately"))
			case grace < 0 || grace > provisioning.MaxGrace:
				return env.Usagef("grace %v: at most %v", grace, provisioning.MaxGrace)
			}
			p, s, err := openProvisioner(cmd, e)
			if err != nil {
				return err
			}
			if own {
				s.Grace = grace
			}
			var next provisioning.Tokens
			err = p.ChangeProvisioning(cmd.Context(),
				func(tokens provisioning.Tokens, exists bool) (provisioning.Tokens, error) {
					if !exists {
						return tokens, noProvisioningToken(s.Where)
					}
					var err error
					if now {
						next, err = tokens.Replace(time.Now(), rand.Reader)
						return next, err
					}
					next, err = tokens.Rotate(time.Now(), rand.Reader, s.Grace)
					if errors.Is(err, provisioning.ErrRotating) {
						return next, hint.New(err, "wait until then, or add --now if a token was stolen")
					}
					return next, err
				})
			if err != nil {
				return err
			}
			if now {
				cmd.Println("wrote a new token; every older one is void")
			} else {
				cmd.Printf("wrote a new token; the old one is valid until %s\n", next.PreviousExpires.Format(time.RFC3339))
			}
			return waitProvisioning(cmd, p, next, *wait)
		},
	}
	e.Where(cmd)
	cmd.Flags().BoolVar(&now, "now", false, "invalidate all older tokens immediately")
	cmd.Flags().DurationVar(&grace, "grace", 0,
		"how long the old token stays valid, at most 168h (default: from the configuration)")
	cmd.MarkFlagsMutuallyExclusive("now", "grace")
	wait = env.WaitFlag(cmd)
	return cmd
}
