// SPDX-License-Identifier: Apache-2.0

// Package certs has the commands about the Machine Config Server's CA and serving certificate.
package certs

import (
	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

// Command is "certs".
func Command(e *env.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "The Machine Config Server's CA and serving certificate",
		Long: `The CA that the pointer configs name, and the serving certificate that it signed.
Both are valid for ten years and renewed after eight.

On OpenShift the machine-config-operator renews them where there are MachineSets,
since 4.19; 'certs status' says whether it does. Elsewhere the verifier does, if its
configuration has certificates:, and in a folder these commands do.

A rotation has two steps, and machines boot through both: a new CA goes into the
bundle, and with the bundle into the pointer configs; later the serving certificate
is signed by it. docs/certificates.md tells it in full.`,
	}
	cmd.AddCommand(statusCommand(e), initCommand(e), rotateCommand(e), pointerCommand(e))
	return cmd
}
