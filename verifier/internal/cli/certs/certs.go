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
		Short: "Manage the Machine Config Server's CA and serving certificate",
		Long: `Manage the CA that the pointer configs name, and the serving certificate that it
signed. Both are valid for ten years and are renewed after eight.

On OpenShift 4.19 and later, the machine-config-operator renews them in a cluster
with MachineSets; 'certs status' shows whether it does. In other clusters the verifier
renews them if its configuration has the section "certificates". In a folder these
commands renew them.

A rotation has two steps. First a new CA is added to the bundle, and the bundle to the
pointer configs. Later the new CA signs the serving certificate. Machines can boot
throughout. docs/certificates.md describes both steps.`,
	}
	cmd.AddCommand(statusCommand(e), initCommand(e), rotateCommand(e), pointerCommand(e))
	return cmd
}
