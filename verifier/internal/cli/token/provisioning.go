// SPDX-License-Identifier: Apache-2.0

package token

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

func provisioningCommand(e *env.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "provisioning",
		Short: "Manage the provisioning token, a secret that machines without better evidence share",
		Long: `Manage the provisioning token. Any caller that has it can read the config of each pool
whose policy has the token as an alternative. It identifies no machine.
docs/provisioning-token.md describes its limits and its use.`,
	}
	cmd.AddCommand(provisioningCreateCommand(e), provisioningRotateCommand(e), provisioningStatusCommand(e),
		provisioningShowCommand(e), provisioningPointerCommand(e))
	return cmd
}

// provisioner is a backend that keeps the provisioning token.
type provisioner interface {
	Provisioning(context.Context) (tokens provisioning.Tokens, exists bool, err error)
	ChangeProvisioning(context.Context, operator.ChangeProvisioning) error
	ProvisioningSettings(context.Context) (operator.ProvisioningSettings, error)
	Policies(context.Context) (*policy.Set, error)
}

// openProvisioner opens the backend and reads what the commands need of it.
func openProvisioner(cmd *cobra.Command, e *env.Env) (provisioner, operator.ProvisioningSettings, error) {
	b, err := e.Open()
	if err != nil {
		return nil, operator.ProvisioningSettings{}, err
	}
	p, ok := b.(provisioner)
	if !ok {
		return nil, operator.ProvisioningSettings{}, errors.New("there is no provisioning token here")
	}
	s, err := p.ProvisioningSettings(cmd.Context())
	return p, s, err
}

// waitProvisioning waits until the verifier of a folder uses the current token of t.
func waitProvisioning(cmd *cobra.Command, p provisioner, t provisioning.Tokens, patience time.Duration) error {
	return env.WaitInForce(cmd, p, "the provisioning token", patience, true,
		func(s *admin.State) bool { return operator.UsesKeys(s, provisioning.ID(t.Current)) })
}

func noProvisioningToken(where string) error {
	return hint.New(fmt.Errorf("there is no provisioning token (%s)", where),
		"run 'token provisioning create'; without it, machines that need the token wait, unless their policy has "+
			"whenAbsent: Open")
}

// current is the token, or why there is none.
func current(cmd *cobra.Command, p provisioner, s operator.ProvisioningSettings) (provisioning.Tokens, error) {
	tokens, exists, err := p.Provisioning(cmd.Context())
	if err == nil && !exists {
		err = noProvisioningToken(s.Where)
	}
	return tokens, err
}
