// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/verifier/internal/ocilayout"
)

// ukis are where container images have unified kernel images (bootc; systemd's kernel-install).
var ukis = []string{"boot/EFI/Linux/*.efi", "boot/EFI/Linux/*/*.efi", "usr/lib/modules/*/*.efi"}

// loaders are where container images have shim and GRUB for the EFI system partition (bootupd, its later
// layout, and OSTree), and modules where they have kernels and their initramfs.
var (
	loaders = []string{"usr/lib/bootupd/updates/EFI/*/*.[eE][fF][iI]", "usr/lib/efi/*/*/EFI/*/*.[eE][fF][iI]",
		"usr/lib/ostree-boot/efi/EFI/*/*.[eE][fF][iI]"}
	modules = []string{"usr/lib/modules/*/vmlinuz", "usr/lib/modules/*/initramfs.img"}
)

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}

// fromOCI computes the documents of a container image: one for each unified kernel image, or, if boot is the
// folder with what the installer writes to /boot, one for each entry.
func fromOCI(ctx context.Context, name, layout, boot string) (out []measuredboot.ReferenceValues, err error) {
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
	patterns := ukis
	if boot != "" {
		patterns = slices.Concat(loaders, modules)
	}
	wanted := func(p string) bool { return matches(patterns, p) }
	if err := ocilayout.Extract(ctx, in.FS(), root, wanted); err != nil {
		return nil, err
	}
	if boot == "" {
		return fromUKIs(name, root)
	}
	out, err = fromBoot(ctx, name, boot, func(files fs.FS) fs.FS { return installed{image: root.FS(), boot: files} })
	if err != nil {
		return nil, err
	}
	for _, r := range out {
		for _, c := range r.Loads[:2] { // the kernel and its initramfs
			if inImage(path.Base(c.Name)) == "" {
				return nil, fmt.Errorf("an entry loads %s, which no container image has. "+
					"Expected vmlinuz-VERSION and initramfs-VERSION.img", c.Name)
			}
		}
	}
	return out, nil
}

// inImage returns the path of a kernel or an initramfs in the container image for its name in /boot, or "".
func inImage(base string) string {
	if version, ok := strings.CutPrefix(base, "vmlinuz-"); ok {
		return path.Join("usr/lib/modules", version, "vmlinuz")
	}
	version, ok := strings.CutPrefix(base, "initramfs-")
	if version, img := strings.CutSuffix(version, ".img"); ok && img {
		return path.Join("usr/lib/modules", version, "initramfs.img")
	}
	return ""
}

// fromUKIs computes one document for each unified kernel image.
func fromUKIs(name string, root *os.Root) (out []measuredboot.ReferenceValues, err error) {
	var names []string
	for _, pattern := range ukis {
		found, err := fs.Glob(root.FS(), pattern)
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	if len(names) == 0 {
		return nil, errors.New("no unified kernel image in /boot/EFI/Linux and /usr/lib/modules. For an image that " +
			"boots with GRUB, also give the folder with grub.cfg and loader/entries, with --boot")
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

// installed is a container image as its installer copies it to a disk: the files of boot, and the folder usr
// of the image. The boot loaders are only those of the image, and so are kernels and their initramfs.
type installed struct{ image, boot fs.FS }

const usr = "usr"

// Open opens a kernel or an initramfs of the image by the name that the installer gives it.
func (i installed) Open(name string) (fs.File, error) {
	if own := inImage(path.Base(name)); own != "" {
		return i.image.Open(own)
	}
	if strings.HasPrefix(name+"/", usr+"/") {
		return i.image.Open(name)
	}
	return i.boot.Open(name)
}

// ReadDir returns the files of a folder.
func (i installed) ReadDir(name string) ([]fs.DirEntry, error) {
	if strings.HasPrefix(name+"/", usr+"/") {
		return fs.ReadDir(i.image, name)
	}
	all, err := fs.ReadDir(i.boot, name)
	all = slices.DeleteFunc(all, func(d fs.DirEntry) bool {
		return strings.EqualFold(path.Ext(d.Name()), ".efi") || name == "." && d.Name() == usr
	})
	if own, statErr := fs.Stat(i.image, usr); name == "." && statErr == nil {
		all = append(all, fs.FileInfoToDirEntry(own))
	}
	return all, err
}
