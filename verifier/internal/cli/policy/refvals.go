// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
)

func refvalsCommand() *cobra.Command {
	var uki, name string
	cmd := &cobra.Command{
		Use:   "refvals --uki FILE --name NAME",
		Short: "Compute reference values from an OS image",
		Long: `Compute reference values from a unified kernel image: the values that systemd-stub
measures into PCR 11, and the image's Authenticode digest. Put the output into
reference-values/. A policy with the profile secure-boot and these reference values
accepts only this image. Images that boot with GRUB need no reference values for
secure-boot, because their PCR 11 stays zero.`,
		Example: `  mcs-attest-verifier refvals --uki fedora-coreos-43.efi --name fcos-43 > reference-values/fcos-43.yaml`,
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVar(&uki, "uki", "", "unified kernel image to read")
	cmd.Flags().StringVar(&name, "name", "", "name of the document, by which a policy can select it")
	for _, f := range []string{"uki", "name"} {
		if err := cmd.MarkFlagRequired(f); err != nil {
			panic(err) // a programming mistake: the flag is defined above
		}
	}
	output := env.OutputOf(cmd, env.YAML, env.JSON, env.Name)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := os.Open(uki)
		if err != nil {
			return fmt.Errorf("read image: %w", err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return fmt.Errorf("read image: %w", err)
		}
		values, err := measuredboot.FromUKI(name, f, info.Size())
		if err != nil {
			return fmt.Errorf("%s: %w", uki, err)
		}
		return output.Print(cmd.OutOrStdout(), values, []string{name}, nil)
	}
	return cmd
}
