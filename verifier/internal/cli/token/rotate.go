// SPDX-License-Identifier: Apache-2.0

package token

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

func rotateCommand(e *env.Env) *cobra.Command {
	var now bool
	var wait *time.Duration
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Add a new key of each kind; old keys are deleted when they are no longer needed",
		Long: `Add a new key of each kind. The key is published immediately, and used after
keyPublishDelay (10 minutes by default), when every verifier has read it. The old keys
verify what they signed until that expires. The rotation does not affect machines.

With --now the new keys are used immediately and all old keys are deleted: every
existing token, challenge and report ticket becomes invalid. Use it if a key may have
been stolen. Machines that are booting at that time start their attestation again. For
a folder, the command waits until a running verifier uses the new keys.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := e.Open()
			if err != nil {
				return err
			}
			var publish time.Duration
			if !now {
				c, err := b.Configuration(cmd.Context())
				if err != nil {
					return err
				}
				publish = time.Duration(c.KeyPublishDelay)
			}
			var next operator.Keys
			err = b.ChangeKeys(cmd.Context(), func(k operator.Keys) (operator.Keys, error) {
				var err error
				next, err = operator.Rotate(k, time.Now(), publish, now)
				return next, err
			})
			if err != nil {
				return err
			}
			if !now {
				cmd.Printf("new keys are published; they will be used in %v\n", publish)
				return nil
			}
			cmd.Println("wrote new keys; everything signed before is invalid")
			return env.WaitInForce(cmd, b, "the keys", *wait, true,
				func(s *admin.State) bool { return operator.UsesKeys(s, next.IDs()...) })
		},
	}
	e.Where(cmd)
	cmd.Flags().BoolVar(&now, "now", false, "delete the old keys immediately")
	wait = env.WaitFlag(cmd)
	return cmd
}
