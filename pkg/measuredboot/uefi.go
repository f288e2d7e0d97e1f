// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"encoding/binary"
	"unicode/utf16"
)

// guid is an EFI_GUID in its memory layout (UEFI 2.10, appendix A).
type guid [16]byte

// Vendors of the variables that are measured into PCR 7.
var (
	// EFI_GLOBAL_VARIABLE 8be4df61-93ca-11d2-aa0d-00e098032b8c (UEFI 2.10, 3.3)
	globalVariable = guid{0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c}
	// EFI_IMAGE_SECURITY_DATABASE_GUID d719b2cb-3d3a-4596-a3bc-dad00e67656f (UEFI 2.10, 32.4.1)
	imageSecurityDatabase = guid{0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67,
		0x65, 0x6f}
	// SHIM_LOCK_GUID 605dab50-e046-4300-abb6-3dd810dd8b23 (shim, README.tpm)
	shimLock = guid{0x50, 0xab, 0x5d, 0x60, 0x46, 0xe0, 0x00, 0x43, 0xab, 0xb6, 0x3d, 0xd8, 0x10, 0xdd, 0x8b, 0x23}
)

// variable is a UEFI_VARIABLE_DATA (TCG PC Client Platform Firmware Profile 1.05, 10.2.6).
type variable struct {
	vendor guid
	name   string
	data   []byte // a slice of the event's data
}

// longestName limits the name of a variable; the longest known name has 14 characters.
const longestName = 64

// parseVariable reads event data that is exactly one variable: its two lengths cover every byte,
// and the name is short, printable ASCII without a NUL. The value is not parsed; signature lists
// are only compared.
func parseVariable(data []byte) (variable, bool) {
	const fixed = 16 + 8 + 8
	if len(data) < fixed {
		return variable{}, false
	}
	var v variable
	copy(v.vendor[:], data)
	chars := binary.LittleEndian.Uint64(data[16:])
	size := binary.LittleEndian.Uint64(data[24:])
	rest := data[fixed:]
	if chars == 0 || chars > longestName || uint64(len(rest)) < 2*chars || uint64(len(rest))-2*chars != size {
		return variable{}, false
	}
	var name [longestName]uint16
	for i := range chars {
		c := binary.LittleEndian.Uint16(rest[2*i:])
		if c < 0x21 || c > 0x7E {
			return variable{}, false
		}
		name[i] = c
	}
	v.name = string(utf16.Decode(name[:chars]))
	v.data = rest[2*chars:]
	return v, true
}
