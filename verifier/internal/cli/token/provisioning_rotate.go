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
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Make a new token; the old one stays valid for the grace",
		Long: `Make a new token; the old one stays valid for the grace (provisioningToken.grace of
the configuration, an hour by default), so that machines under way come in. In
that time, put the new one into the pointer configs.

It does not rotate twice within one grace: the machines that carry the older token
would be locked out. With --now every older token is void at once; use it when one
was stolen.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if grace < 0 || grace > provisioning.MaxGrace {
				return env.Usagef("grace %v: at most %v", grace, provisioning.MaxGrace)
			}
			p, s, err := openProvisioner(cmd, e)
			if err != nil {
				return err
			}
			if grace != 0 {
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
				cmd.Println("a new token is in force; every older one is void")
			} else {
				cmd.Printf("a new token is in force; the old one is valid until %s\n", next.PreviousExpires.Format(time.RFC3339))
			}
			return nil
		},
	}
	e.Where(cmd)
	cmd.Flags().BoolVar(&now, "now", false, "void every older token at once")
	cmd.Flags().DurationVar(&grace, "grace", 0,
		"how long the old token stays valid, at most 168h (default: the configuration's)")
	cmd.MarkFlagsMutuallyExclusive("now", "grace")
	return cmd
}
