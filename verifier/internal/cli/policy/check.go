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
		Long: `Check AttestationPolicies before they are used: each file by itself, and then all
files as one set, as if they were together in a folder or a cluster. Two policies
for one pool are therefore an error, also in different files: check files that are
alternatives to each other one at a time.

It prints the file, the line, what is wrong and what is right. The exit status is 1
if a policy cannot be used.`,
		Example: `  mcs-attest-verifier policy check policies/*.yaml`,
		Args:    cobra.MinimumNArgs(1),
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
