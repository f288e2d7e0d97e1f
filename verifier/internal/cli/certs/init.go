// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

func initCommand(e *env.Env) *cobra.Command {
	var hosts []string
	var force bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make CA and serving certificate where there are none",
		Long: `Make CA and serving certificate where there are none.

In a cluster it makes the objects that the verifier then keeps; the verifier's own
account may not make Secrets. Run it once, as an administrator. What is served stays,
and the CA that issued it goes into the bundle beside the new one, so that no machine
notices. It refuses where the machine-config-operator renews.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := openKeeper(cmd.Context(), e, hosts)
			if err != nil {
				return err
			}
			made, s, err := k.init(cmd.Context(), force)
			if errors.Is(err, mcscert.ErrNotOurs) {
				if s.Case == mcscert.CaseOperatorToCome {
					return hint.New(err, "if the cluster is older than 4.19, add --force")
				}
				return hint.New(err, "'certs status' shows them; certificates.rotate: Always takes them over")
			}
			if err != nil {
				return hintKey(err)
			}
			cmd.Println(made)
			return printCerts(cmd.OutOrStdout(), s)
		},
	}
	cmd.Flags().StringSliceVar(&hosts, "hostname", nil,
		"host name or address of the serving certificate (repeatable; default: those of the configuration)")
	cmd.Flags().BoolVar(&force, "force", false,
		"also where there are MachineSets, so that a machine-config-operator since 4.19 would do it")
	e.Where(cmd)
	return cmd
}
