// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
)

func checkCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "What machines must prove"}
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE...",
		Short: "Check AttestationPolicies before they are used",
		Long: `Check AttestationPolicies before they are used: each file by itself, and all of
them together. Says the file, the line, what is wrong and what would be right.
Exit status 1 if something is.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var files []policy.File
			for _, name := range args {
				raw, err := os.ReadFile(name)
				if err != nil {
					return fmt.Errorf("read policy: %w", err)
				}
				files = append(files, policy.File{Name: name, Raw: raw})
			}
			problems := policy.Check(files...)
			for _, p := range problems {
				cmd.Println(p.Error())
			}
			if manifest.Failed(problems) {
				return errors.New("the policies cannot be used as they are")
			}
			cmd.Printf("%d file(s) are fine\n", len(files))
			return nil
		},
	})
	return cmd
}
