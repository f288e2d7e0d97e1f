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
		Long: `Print a pointer config ("-" is standard input) with the current token on every
source that leads to this verifier and whose pool's policy lists the token, and
with nothing else changed. Doing it again changes nothing. The output holds the
token: keep it where only the machines and you can read it.

A source that shows another bearer token than the current or the previous
provisioning token is somebody else's, and the config is left alone. With --force
it is replaced, as after 'rotate --now', and pools do not matter.

Specification 3.1 and later carry it as a header. Older ones have no headers;
--url-parameter puts it into the URL, where Ignition logs it. The pool's policy has
to allow that (spec.provisioningToken.urlParameter).`,
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
					return hint.New(err, "mend the policy, or add --force to put the token into any pool's pointer config")
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
			var left *pointer.Unchanged
			if errors.As(err, &left) {
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
	f.BoolVar(&urlParameter, "url-parameter", false, "put the token into the URL where the specification has no headers")
	f.BoolVar(&force, "force", false, "for any pool, and in place of any bearer token")
	f.StringSliceVar(&origins, "origin", nil,
		"https://HOST:PORT of the sources (repeatable; default: the verifier's own origins)")
	return cmd
}
