// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
)

func checkCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "Check what machines must prove"}
	var references []string
	check := &cobra.Command{
		Use:   "check FILE...",
		Short: "Check AttestationPolicies before they are used",
		Long: `Check AttestationPolicies before they are used: each file by itself, and then all
files as one set, as if they were together in a folder or a cluster. Two policies
for one pool are therefore an error, also in different files: check files that are
alternatives to each other one at a time.

With --reference-values, also check that the reference values that a policy selects
exist, and that they have what its profile needs: an image for release, and an image
and a firmware set for strict.

For each error it prints the file, the line, and a hint. The exit status is 1 if a
policy cannot be used.`,
		Example: `  mcs-attest-verifier policy check policies/*.yaml
  mcs-attest-verifier policy check policies/*.yaml --reference-values debian-12.yaml,r750-bios-2.3.5.yaml`,
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
			var known []measuredboot.ReferenceValues
			for _, name := range references {
				raw, err := os.ReadFile(name)
				if err != nil {
					return fmt.Errorf("read reference values: %w", err)
				}
				parsed, found := folder.ParseReferences(name, raw)
				known, problems = append(known, parsed...), append(problems, found...)
			}
			if len(references) > 0 {
				problems = append(problems, policy.CheckReferences(known, files...)...)
			}
			for _, p := range problems {
				cmd.Println(p.Error())
			}
			if manifest.Failed(problems) {
				return errors.New("the policies have errors")
			}
			cmd.Printf("%d file(s) without errors\n", len(files))
			return nil
		},
	}
	check.Flags().StringSliceVar(&references, "reference-values", nil, "file with reference values of these policies")
	cmd.AddCommand(check)
	return cmd
}
