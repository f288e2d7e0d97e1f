// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"bytes"
	"io"
	"slices"
)

const (
	// In ISO 9660 (ECMA-119, 6.2.1) and UDF (ECMA-167, 2/8.4) the first 32 KiB are unused.
	// Descriptors of 2048 bytes follow, each with the name of its standard from the second byte on.
	descriptors    = 32 << 10
	descriptorSize = 2 << 10
	// A disc has few descriptors. On a hybrid disc those of ISO 9660 come first.
	maxDescriptors = 32

	bootSector = 512
)

// Identify returns those of the wanted file systems whose magic bytes are present, in the order of
// wanted.
func Identify(r io.ReaderAt, wanted []string) []string {
	has := map[string]bool{FAT: isFAT(r)}
	for i := range maxDescriptors {
		name := make([]byte, 5)
		if _, err := r.ReadAt(name, descriptors+int64(i)*descriptorSize+1); err != nil {
			break
		}
		switch string(name) {
		case "CD001":
			has[ISO9660] = true
		case "NSR02", "NSR03":
			has[UDF] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(wanted), func(w string) bool { return !has[w] })
}

// isFAT checks the end of the boot sector and the type, which every formatter writes. FAT12 and
// FAT16 have it at one offset, FAT32 at another.
func isFAT(r io.ReaderAt) bool {
	sector := make([]byte, bootSector)
	if _, err := r.ReadAt(sector, 0); err != nil {
		return false
	}
	return sector[510] == 0x55 && sector[511] == 0xAA &&
		(bytes.HasPrefix(sector[54:], []byte("FAT1")) || bytes.HasPrefix(sector[82:], []byte("FAT32")))
}
