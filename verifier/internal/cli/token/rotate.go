// SPDX-License-Identifier: Apache-2.0

package token

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

func rotateCommand(e *env.Env) *cobra.Command {
	var now bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Add a new key of each kind; the old ones go once nothing needs them",
		Long: `Add a new key of each kind. It is published at once and used after
keyPublishDelay (10 minutes by default), when every verifier has read it; the old
keys verify what they signed until that has expired. No machine notices.

With --now the new keys are used at once and all old ones are dropped: every
token, challenge and report ticket that is out there becomes worthless. Use it
when a key may have been stolen; machines that boot at that moment begin anew.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := e.Open()
			if err != nil {
				return err
			}
			publish, err := b.PublishDelay(cmd.Context())
			if err != nil && !now {
				return err
			}
			err = b.ChangeKeys(cmd.Context(),
				func(k operator.Keys) (operator.Keys, error) { return operator.Rotate(k, time.Now(), publish, now) })
			if err != nil {
				return err
			}
			if now {
				cmd.Println("new keys are in force; everything signed before is void")
			} else {
				cmd.Printf("new keys are published; they will be used in %v\n", publish)
			}
			return nil
		},
	}
	e.Where(cmd)
	cmd.Flags().BoolVar(&now, "now", false, "drop the old keys at once")
	return cmd
}
