// SPDX-License-Identifier: Apache-2.0

package token

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

func provisioningPointerCommand(e *env.Env) *cobra.Command {
	var urlParameter, force bool
	var origins []string
	cmd := &cobra.Command{
		Use:   "pointer FILE",
		Short: "Print a pointer config with the current token in it",
		Long: `Print a pointer config ("-" is standard input) with the current token on every source
that refers to this verifier and whose pool's policy lists the token. The command
changes no other field, and a second run changes nothing. The output contains the
token: keep it where only the machines and you can read it.

If a source has a bearer token other than the current or the previous provisioning
token, that token is a third party's, and the command fails. --force replaces it, as is
needed after 'rotate --now', and adds the token for any pool.

In specification 3.1 and later the token is a header. Older specifications have no
headers; --url-parameter puts the token into the URL, which Ignition logs. The pool's
policy must allow this (spec.provisioningToken.urlParameter).`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, s, err := openProvisioner(cmd, e)
			if err != nil {
				return err
			}
			raw, err := env.ReadInput(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			tokens, err := current(cmd, p, s)
			if err != nil {
				return err
			}
			if len(origins) == 0 {
				origins = s.Origins
			}
			policies := &policy.Set{}
			if !force {
				if policies, err = p.Policies(cmd.Context()); err != nil {
					return hint.New(err, "correct the policy, or add --force to put the token into any pool's pointer config")
				}
			}
			out, err := pointer.Provision(raw, pointer.Provisioning{
				Token: tokens.Current, Origins: origins,
				Pool: func(pool string) (accepts, inURL bool) {
					of, err := policies.For(pool)
					return force || err == nil && slices.Contains(of.Kinds(), evidence.ProvisioningToken), urlParameter
				},
				Ours: func(token secret.Bytes) bool {
					return force || tokens.Check(time.Now(), token.Expose()) != provisioning.None
				},
			})
			if left, ok := errors.AsType[*pointer.Unchanged](err); ok {
				return hint.New(fmt.Errorf("%s: %s", args[0], left.Why),
					"the verifier's origins are %v; --origin names another, --url-parameter is for specifications without "+
						"headers, --force is for any pool and over any bearer token", origins)
			}
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(out)
			return err
		},
	}
	e.Where(cmd)
	f := cmd.Flags()
	f.BoolVar(&urlParameter, "url-parameter", false, "put the token into the URL if the specification has no headers")
	f.BoolVar(&force, "force", false, "accept any pool, and replace any bearer token")
	f.StringSliceVar(&origins, "origin", nil,
		"https://HOST:PORT of the sources (repeatable; default: the verifier's own origins)")
	return cmd
}
