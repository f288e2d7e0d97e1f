// SPDX-License-Identifier: Apache-2.0

// Package isoimage reads the files of a live or installation image, for commands that compute reference values from
// an image. Such an image has two file systems, and both are read in place:
//
//   - ISO 9660 with the names of Rock Ridge has the kernel, its initramfs, and the configuration of GRUB.
//   - The EFI system partition, which El Torito names, has shim and GRUB. It is a FAT file system. Its files are in
//     the folder efi, as if it were mounted there.
//
// The image is hostile. The number of files, of bytes that are read for their names, and of bytes of all files is
// bounded. What this package does not support is an error, because a missing file would make the reference values
// wrong.
package isoimage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// partition is the folder of the EFI system partition.
const partition = "efi"

// Limits on an image. Those of operating systems have up to a few thousand files.
const (
	maxFiles       = 1 << 14
	maxDirectories = 16 << 20 // bytes of all directories
	maxDepth       = 32
	maxContent     = 4 // times the image, because two names can have the same content
)

// Open returns the files of an image of size bytes. They are read from r when they are opened.
func Open(r io.ReaderAt, size int64) (fs.FS, error) {
	root := newFolder(".")
	v := &volume{budget: &budget{files: maxFiles, bytes: maxDirectories, content: maxContent * size}, r: r, size: size}
	catalog, err := v.read(root)
	if err != nil {
		return nil, fmt.Errorf("ISO 9660: %w", err)
	}
	at, err := v.partition(catalog)
	if err != nil {
		return nil, fmt.Errorf("boot catalog: %w", err)
	}
	efi := newFolder(partition)
	if err := root.add(efi); err != nil {
		return nil, err
	}
	if err := readFAT(v.budget, io.NewSectionReader(r, at, size-at), efi); err != nil {
		return nil, fmt.Errorf("EFI system partition: %w", err)
	}
	return tree{root}, nil
}

// The boot catalog of El Torito ("El Torito" Bootable CD-ROM Format Specification 1.0, 2.0 to 2.5; UEFI 2.10, 13.3.2).
const (
	elTorito      = "\x00CD001\x01EL TORITO SPECIFICATION"
	catalogEntry  = 32
	catalogSector = 0x47 // in the boot record
	maxCatalog    = 64   // entries, in one sector
	platformEFI   = 0xEF
	bootable      = 0x88
	sectionHeader = 0x90
	lastHeader    = 0x91
)

// partition returns the position of the EFI system partition. The number of sectors in the catalog is too small for
// large partitions, so the file system has its own.
func (v *volume) partition(catalog int64) (int64, error) {
	if catalog == 0 {
		return 0, errors.New("the image has none, so no machine boots it")
	}
	sector, err := v.sector(catalog)
	if err != nil {
		return 0, err
	}
	if sector[0] != 1 || sector[30] != 0x55 || sector[31] != 0xAA {
		return 0, errors.New("not that of El Torito")
	}
	var found []int64
	platform := sector[1]
	for i := 1; i < maxCatalog; i++ {
		e := sector[i*catalogEntry:][:catalogEntry]
		switch e[0] {
		case sectionHeader, lastHeader:
			platform = e[1]
		case bootable:
			if platform == platformEFI {
				found = append(found, int64(binary.LittleEndian.Uint32(e[8:]))*sectorSize)
			}
		}
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("%d images for EFI, expected 1", len(found))
	}
	if found[0] >= v.size {
		return 0, errors.New("the image for EFI is outside of the image")
	}
	return found[0], nil
}

// budget limits what is read for the names of files, and the content of all files.
type budget struct {
	files, bytes int
	content      int64
}

func (b *budget) spend(files, bytes int, content int64) error {
	b.files -= files
	b.bytes -= bytes
	b.content -= content
	switch {
	case b.files < 0:
		return fmt.Errorf("more than %d files", maxFiles)
	case b.bytes < 0:
		return fmt.Errorf("the directories have more than %d bytes", maxDirectories)
	case b.content < 0:
		return errors.New("the files have more bytes than the image")
	}
	return nil
}

// checkName reports a name that no file can have here.
func checkName(name string) error {
	if !fs.ValidPath(name) || name == "." || strings.ContainsAny(name, "/\\\x00") {
		return fmt.Errorf("the file name %q is not supported", name)
	}
	return nil
}
