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
	var uki, boot, name string
	cmd := &cobra.Command{
		Use:   "refvals (--uki FILE | --boot DIR) --name NAME",
		Short: "Compute reference values from an OS image, or from a machine's firmware",
		Long: `Compute reference values from an OS image, and put the output into
reference-values/. They are computed from the image, never from a machine. Only the
values of firmware come from a machine: see 'refvals firmware'.

--uki reads a unified kernel image: the values that systemd-stub measures into PCR 11,
and the image's Authenticode digest. A policy with the profile secure-boot and these
reference values accepts only this image.

--boot reads the files of an image that boots with shim and GRUB: the folder that is
mounted at /boot. The EFI system partition is in its folder efi, or in the same folder. The
output has a document for each entry that loads a kernel and an initramfs: of grub.cfg,
and of loader/entries. It is for the profile release. The profile secure-boot needs no
reference values for such an image, because its PCR 11 stays zero.`,
		Example: `  mcs-attest-verifier refvals --uki fedora-coreos-43.efi --name fcos-43 > reference-values/fcos-43.yaml
  mcs-attest-verifier refvals --boot /mnt/image/boot --name debian-12 > reference-values/debian-12.yaml`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&uki, "uki", "", "unified kernel image to read")
	cmd.Flags().StringVar(&boot, "boot", "", "folder to read, with shim, GRUB, its configuration, kernel and initramfs")
	cmd.Flags().StringVar(&name, "name", "", "name of the document, by which a policy can select it")
	cmd.MarkFlagsOneRequired("uki", "boot")
	cmd.MarkFlagsMutuallyExclusive("uki", "boot")
	if err := cmd.MarkFlagRequired("name"); err != nil {
		panic(err) // a programming mistake: the flag is defined above
	}
	output := env.OutputOf(cmd, env.YAML, env.JSON, env.Name)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		values, err := referenceValues(name, uki, boot)
		if err != nil {
			return err
		}
		for i, v := range values {
			if i > 0 && output.Is(env.YAML) {
				fmt.Fprintln(cmd.OutOrStdout(), "---")
			}
			if err := output.Print(cmd.OutOrStdout(), v, []string{v.Metadata.Name}, nil); err != nil {
				return err
			}
		}
		return nil
	}
	cmd.AddCommand(firmwareCommand())
	return cmd
}

// referenceValues computes the documents from a unified kernel image, or else from boot files.
func referenceValues(name, uki, boot string) ([]measuredboot.ReferenceValues, error) {
	if uki == "" {
		root, err := os.OpenRoot(boot) // a link in the image must not lead to a file of this host
		if err != nil {
			return nil, fmt.Errorf("read image: %w", err)
		}
		defer root.Close()
		values, err := measuredboot.FromBootFiles(name, root.FS())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", boot, err)
		}
		return values, nil
	}
	f, err := os.Open(uki)
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	values, err := measuredboot.FromUKI(name, f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", uki, err)
	}
	return []measuredboot.ReferenceValues{*values}, nil
}
