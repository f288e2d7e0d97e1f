// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/isoimage"
)

func refvalsCommand() *cobra.Command {
	var from source
	var name string
	cmd := &cobra.Command{
		Use:   "refvals (--uki FILE | --oci LAYOUT [--boot DIR] | --boot DIR | --iso FILE) --name NAME",
		Short: "Compute reference values from an OS image, or from a machine's firmware",
		Long: `Compute reference values from an OS image. Write the output to a temporary file, and
rename it with mv to a file in reference-values/, so that the verifier never reads a part
of it. Reference values are computed from the image, never from a machine. Only the values
of firmware come from a machine: see 'refvals firmware'.

--uki reads a unified kernel image: the values that systemd-stub measures into PCR 11,
and the image's Authenticode digest. A policy with the profile secure-boot and these
reference values accepts only this image.

--oci reads the unified kernel images in a container image: those in /boot/EFI/Linux and
/usr/lib/modules. LAYOUT is a folder that 'skopeo copy' writes with the transport oci:.

--boot reads the files of an image that boots with shim and GRUB: the folder that is
mounted at /boot. The EFI system partition is in its folder efi, or in the same folder. The
output has a document for each entry that loads a kernel and an initramfs: of grub.cfg,
and of loader/entries. It is for the profile release. The profile secure-boot needs no
reference values for such an image, because its PCR 11 stays zero.

Both together are for a container image that boots with GRUB. Shim, GRUB, kernel and
initramfs are those of the container image. DIR has what the installer writes to /boot:
grub.cfg, loader/entries, and archives that were added to the initramfs.

--iso reads a live or installation image that boots with shim and GRUB: its ISO 9660 file
system, and its EFI system partition. Customize the image first: its kernel arguments and
its Ignition config are measured.`,
		Example: `  mcs-attest-verifier refvals --uki fedora-coreos-43.efi --name fcos-43 > fcos-43.new
  mv fcos-43.new reference-values/fcos-43.yaml
  mcs-attest-verifier refvals --boot /mnt/image/boot --name debian-12 > debian-12.new
  mv debian-12.new reference-values/debian-12.yaml`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&from.uki, "uki", "", "unified kernel image to read")
	cmd.Flags().StringVar(&from.oci, "oci", "", "OCI image layout to read, with unified kernel images or with --boot")
	cmd.Flags().StringVar(&from.boot, "boot", "", "folder to read, with shim, GRUB, its files, kernel and initramfs")
	cmd.Flags().StringVar(&from.iso, "iso", "", "live or installation image to read, with shim and GRUB")
	cmd.Flags().StringVar(&name, "name", "", "name of the document, by which a policy can select it")
	cmd.MarkFlagsOneRequired("uki", "oci", "boot", "iso")
	cmd.MarkFlagsMutuallyExclusive("uki", "oci", "iso")
	cmd.MarkFlagsMutuallyExclusive("boot", "iso")
	cmd.MarkFlagsMutuallyExclusive("uki", "boot")
	if err := cmd.MarkFlagRequired("name"); err != nil {
		panic(err) // a programming mistake: the flag is defined above
	}
	output := env.OutputOf(cmd, env.YAML, env.JSON, env.Name)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if from.oci != "" {
			defer env.UntilSignal(cmd)() // it deletes what it extracted
		}
		values, err := from.referenceValues(cmd.Context(), name)
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

// source is an image. One field is set, or oci and boot.
type source struct{ uki, oci, boot, iso string }

// referenceValues computes the documents of the image.
func (s source) referenceValues(ctx context.Context, name string) ([]measuredboot.ReferenceValues, error) {
	switch {
	case s.uki != "":
		f, err := os.Open(s.uki)
		if err != nil {
			return nil, fmt.Errorf("read image: %w", err)
		}
		return fromUKI(name, f)
	case s.oci != "":
		values, err := fromOCI(ctx, name, s.oci, s.boot)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.oci, err)
		}
		return values, nil
	case s.iso != "":
		values, err := fromISO(ctx, name, s.iso)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.iso, err)
		}
		return values, nil
	}
	values, err := fromBoot(ctx, name, s.boot, func(boot fs.FS) fs.FS { return boot })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.boot, err)
	}
	return values, nil
}

// fromBoot computes the documents of a folder with the files of /boot, which files can replace.
func fromBoot(ctx context.Context, name, dir string,
	files func(boot fs.FS) fs.FS) ([]measuredboot.ReferenceValues, error) {
	root, err := os.OpenRoot(dir) // a link in the image must not lead to a file of this host
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	defer root.Close()
	return measuredboot.FromBootFiles(ctx, name, files(root.FS()))
}

// fromISO computes the documents of a live or installation image.
func fromISO(ctx context.Context, name, file string) ([]measuredboot.ReferenceValues, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	files, err := isoimage.Open(f, info.Size())
	if err != nil {
		return nil, err
	}
	return measuredboot.FromBootFiles(ctx, name, files)
}

// fromUKI closes the file.
func fromUKI(name string, f *os.File) ([]measuredboot.ReferenceValues, error) {
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	values, err := measuredboot.FromUKI(name, f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return []measuredboot.ReferenceValues{*values}, nil
}
