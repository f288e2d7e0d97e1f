// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/spf13/cobra"

	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/env"
	"github.com/mcs-attest/mcs-attest/verifier/internal/ocilayout"
)

func refvalsCommand() *cobra.Command {
	var from source
	var name string
	cmd := &cobra.Command{
		Use:   "refvals (--uki FILE | --oci LAYOUT | --boot DIR) --name NAME",
		Short: "Compute reference values from an OS image, or from a machine's firmware",
		Long: `Compute reference values from an OS image, and put the output into
reference-values/. They are computed from the image, never from a machine. Only the
values of firmware come from a machine: see 'refvals firmware'.

--uki reads a unified kernel image: the values that systemd-stub measures into PCR 11,
and the image's Authenticode digest. A policy with the profile secure-boot and these
reference values accepts only this image.

--oci reads the unified kernel images in a container image: those in /boot/EFI/Linux and
/usr/lib/modules. LAYOUT is a folder that 'skopeo copy' writes with the transport oci:. A
container image that boots with GRUB has no loader entries. Install it to a disk, and use
--boot.

--boot reads the files of an image that boots with shim and GRUB: the folder that is
mounted at /boot. The EFI system partition is in its folder efi, or in the same folder. The
output has a document for each entry that loads a kernel and an initramfs: of grub.cfg,
and of loader/entries. It is for the profile release. The profile secure-boot needs no
reference values for such an image, because its PCR 11 stays zero.`,
		Example: `  mcs-attest-verifier refvals --uki fedora-coreos-43.efi --name fcos-43 > reference-values/fcos-43.yaml
  mcs-attest-verifier refvals --boot /mnt/image/boot --name debian-12 > reference-values/debian-12.yaml`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&from.uki, "uki", "", "unified kernel image to read")
	cmd.Flags().StringVar(&from.oci, "oci", "", "OCI image layout to read, with unified kernel images")
	cmd.Flags().StringVar(&from.boot, "boot", "", "folder to read, with shim, GRUB, its files, kernel and initramfs")
	cmd.Flags().StringVar(&name, "name", "", "name of the document, by which a policy can select it")
	cmd.MarkFlagsOneRequired("uki", "oci", "boot")
	cmd.MarkFlagsMutuallyExclusive("uki", "oci", "boot")
	if err := cmd.MarkFlagRequired("name"); err != nil {
		panic(err) // a programming mistake: the flag is defined above
	}
	output := env.OutputOf(cmd, env.YAML, env.JSON, env.Name)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		values, err := from.referenceValues(name)
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

// source is an image; one field is set.
type source struct{ uki, oci, boot string }

// referenceValues computes the documents of the image.
func (s source) referenceValues(name string) ([]measuredboot.ReferenceValues, error) {
	switch {
	case s.uki != "":
		f, err := os.Open(s.uki)
		if err != nil {
			return nil, fmt.Errorf("read image: %w", err)
		}
		return fromUKI(name, f)
	case s.oci != "":
		values, err := fromOCI(name, s.oci)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.oci, err)
		}
		return values, nil
	}
	root, err := os.OpenRoot(s.boot) // a link in the image must not lead to a file of this host
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	defer root.Close()
	values, err := measuredboot.FromBootFiles(name, root.FS())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.boot, err)
	}
	return values, nil
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

// ukis are where container images have unified kernel images (bootc; systemd's kernel-install).
var ukis = []string{"boot/EFI/Linux/*.efi", "boot/EFI/Linux/*/*.efi", "usr/lib/modules/*/*.efi"}

func isUKI(name string) bool {
	return slices.ContainsFunc(ukis, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}

// fromOCI computes one document for each unified kernel image of a container image.
func fromOCI(name, layout string) (out []measuredboot.ReferenceValues, err error) {
	dir, err := os.MkdirTemp("", "refvals-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	in, err := os.OpenRoot(layout)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if err := ocilayout.Extract(in.FS(), root, isUKI); err != nil {
		return nil, err
	}
	var names []string
	for _, pattern := range ukis {
		found, err := fs.Glob(root.FS(), pattern)
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	if len(names) == 0 {
		return nil, errors.New("no unified kernel image in /boot/EFI/Linux and /usr/lib/modules. " +
			"For an image that boots with GRUB, install it to a disk and use --boot")
	}
	for i, n := range names {
		f, err := root.Open(n)
		if err != nil {
			return nil, err
		}
		document := name
		if len(names) > 1 {
			document = fmt.Sprintf("%s-%d", name, i+1)
		}
		values, err := fromUKI(document, f)
		if err != nil {
			return nil, err
		}
		out = append(out, values...)
	}
	return out, nil
}
