package volume

import (
	"bytes"
	"io"
	"slices"
)

const (
	// Both ISO 9660 (ECMA-119, 6.2.1) and UDF (ECMA-167, 2/8.4) leave the first 32 KiB
	// alone and then have descriptors of 2048 bytes, each with its standard's
	// name from the second byte on.
	descriptors    = 32 << 10
	descriptorSize = 2 << 10
	// Few are in use; a hybrid disc has those of ISO 9660 first.
	maxDescriptors = 32

	bootSector = 512
)

// Identify names those of the wanted file systems whose magic bytes are there,
// in the order in which they were asked for.
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

// isFAT looks at the boot sector's end and at the type that every formatter
// writes, at one place for FAT12 and FAT16 and at another for FAT32.
func isFAT(r io.ReaderAt) bool {
	sector := make([]byte, bootSector)
	if _, err := r.ReadAt(sector, 0); err != nil {
		return false
	}
	return sector[510] == 0x55 && sector[511] == 0xAA &&
		(bytes.HasPrefix(sector[54:], []byte("FAT1")) || bytes.HasPrefix(sector[82:], []byte("FAT32")))
}
