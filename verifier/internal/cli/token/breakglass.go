// SPDX-License-Identifier: Apache-2.0

package token

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
	"github.com/mcs-attest/mcs-attest/verifier/internal/service"
)

func breakGlassCommand(e *env.Env) *cobra.Command {
	var pool, name string
	var lifetime time.Duration
	var force bool
	cmd := &cobra.Command{
		Use:   "break-glass --pool POOL --name WHO",
		Short: "Create a token for a machine that cannot attest",
		Long: `Create a token for a machine that cannot attest. Any caller that has the token can
read the full config of one pool, three times, for at most an hour. Put it as the
header "Authorization: Bearer" on the merge source of that machine's pointer config.
If its image has the agent, boot it with the kernel argument mcs-attest=off.

The gate writes an audit line for each use. After the first one, 'status' lists the
token. To revoke it early, run 'token rotate --now'. The command prints the token only
on standard output.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if lifetime <= 0 || lifetime > record.MaxBreakGlass {
				return env.Usagef("lifetime %v: at most %v", lifetime, record.MaxBreakGlass)
			}
			if len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsDNS1123Subdomain(pool)) > 0 {
				return env.Usage(hint.New(errors.New("--name and --pool must be given"),
					"the name is for the audit log: a ticket number, or the requester; lower-case letters, digits, '-' and '.'"))
			}
			b, err := e.Open()
			if err != nil {
				return err
			}
			if err := checkPool(cmd, b, pool, force); err != nil {
				return err
			}
			keys, err := b.Keys(cmd.Context())
			if err != nil {
				return err
			}
			c, err := b.Configuration(cmd.Context())
			if err != nil {
				return err
			}
			now := time.Now()
			var id [12]byte
			_, _ = rand.Read(id[:]) // crypto/rand.Read never fails
			tokenID := hex.EncodeToString(id[:])
			signed, err := keys.Tokens.Sign(now, token.Claims{
				Issuer: c.Issuer(), Audience: token.Audience, Subject: record.BreakGlassNamespace + "/" + name,
				MachineUID: record.BreakGlassUID(tokenID), Pool: pool, ID: tokenID, IssuedAt: now, NotBefore: now,
				Expiry: now.Add(lifetime), Verifier: token.VerifierID{Developer: service.Developer, Build: e.Version},
				Status:  token.Warning,
				Submods: map[string]token.Appraisal{record.BreakGlassNamespace: {Status: token.Warning}},
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "break-glass token %s for pool %s, until %s; do not copy it into tickets or chats\n",
				tokenID, pool, now.Add(lifetime).Format(time.RFC3339))
			_, err = fmt.Fprintln(cmd.OutOrStdout(), string(signed.Expose()))
			return err
		},
	}
	e.Where(cmd)
	f := cmd.Flags()
	e.PoolFlag(cmd, &pool, "the pool whose config it opens")
	f.StringVar(&name, "name", "", "name for the audit log: a ticket number, or the requester")
	f.BoolVar(&force, "force", false, "create it although the pool looks misspelled")
	f.DurationVar(&lifetime, "lifetime", 15*time.Minute, "how long it is valid, at most 1h")
	return cmd
}

// checkPool returns an error if a pool looks misspelled. An administrator in an emergency may lack permissions:
// a pool that cannot be checked is only a warning.
func checkPool(cmd *cobra.Command, b env.Backend, pool string, force bool) error {
	pools, err := b.Pools(cmd.Context())
	if err != nil {
		cmd.PrintErrln("warning: could not check whether the pool exists:", err)
		return nil
	}
	warning, err := operator.CheckPool(pools, pool)
	if err != nil && force {
		warning, err = err.Error(), nil
	}
	if warning != "" {
		cmd.PrintErrln("warning:", warning)
	}
	return err
}
