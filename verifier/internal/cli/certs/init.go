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
		Short: "Create the CA and the serving certificate if they do not exist",
		Long: `Create the CA and the serving certificate if they do not exist.

In a cluster, run this once as an administrator: it creates the objects that the
verifier then updates, because the verifier's account may not create Secrets. An
existing serving certificate does not change. Its CA stays in the bundle beside the
new one, so machines can still boot. The command fails if the machine-config-operator
renews the certificates.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			defer env.UntilSignal(cmd)() // the set of files becomes complete
			k, err := openKeeper(cmd.Context(), e, hosts)
			if err != nil {
				return err
			}
			made, s, err := k.init(cmd.Context(), force)
			if errors.Is(err, mcscert.ErrNotOurs) {
				if s.Case == mcscert.CaseOperatorToCome {
					return hint.New(err, "if the cluster is older than 4.19, add --force")
				}
				return hint.New(err, "'certs status' shows them; to let the verifier renew them, set certificates.rotate: Always")
			}
			if err != nil {
				return hintKey(err)
			}
			cmd.Println(made)
			return printCerts(cmd.OutOrStdout(), s)
		},
	}
	cmd.Flags().StringSliceVar(&hosts, "hostname", nil,
		"host name or address for the serving certificate (repeatable; default: from the configuration)")
	cmd.Flags().BoolVar(&force, "force", false,
		"create them although MachineSets exist, for which a machine-config-operator since 4.19 would create them")
	e.Where(cmd)
	return cmd
}
