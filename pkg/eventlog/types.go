// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"crypto"
	_ "crypto/sha256" // for crypto.Hash
	_ "crypto/sha512"
	"fmt"
)

// PCR banks that can be replayed, as TPM_ALG_ID (TPM 2.0 Library, Part 2, 6.3).
const (
	SHA256 uint16 = 0x000B
	SHA384 uint16 = 0x000C
	SHA512 uint16 = 0x000D
)

// sha1Bank is the one known algorithm that is never replayed: a SHA-1 PCR proves nothing against an
// attacker who can create collisions.
const sha1Bank uint16 = 0x0004

// sizes are those of the digests in a log, in bytes (TCG Algorithm Registry, 6.10), also of SM3-256 and SHA-3.
var sizes = map[uint16]int{sha1Bank: 20, SHA256: 32, 0x0012: 32, 0x0027: 32, SHA384: 48, 0x0028: 48, SHA512: 64,
	0x0029: 64}

var hashes = map[uint16]crypto.Hash{SHA256: crypto.SHA256, SHA384: crypto.SHA384, SHA512: crypto.SHA512}

// Size returns the size of a bank's digest in bytes, or 0 if the bank cannot be replayed.
func Size(bank uint16) int {
	if hashes[bank] == 0 {
		return 0
	}
	return sizes[bank]
}

// Hash returns the digest of data in a bank's algorithm, or nil if the bank cannot be replayed.
func Hash(bank uint16, data []byte) []byte {
	if hashes[bank] == 0 {
		return nil
	}
	h := hashes[bank].New()
	h.Write(data)
	return h.Sum(nil)
}

// Extend computes TPM2_PCR_Extend: the digest of the old value followed by digest.
func Extend(bank uint16, pcr, digest []byte) []byte {
	buf := make([]byte, 0, 128)
	return Hash(bank, append(append(buf, pcr...), digest...))
}

// Event types (TCG PC Client Platform Firmware Profile 1.05, 10.4.1) that other packages use. A
// type is only a claim of the log; see the package comment.
const (
	NoAction                   uint32 = 0x00000003
	Separator                  uint32 = 0x00000004
	Action                     uint32 = 0x00000005
	IPL                        uint32 = 0x0000000D
	EFIVariableDriverConfig    uint32 = 0x80000001
	EFIBootServicesApplication uint32 = 0x80000003
	EFIAction                  uint32 = 0x80000007
	HCRTM                      uint32 = 0x80000010
	EFIVariableAuthority       uint32 = 0x800000E0
)

var typeNames = []struct {
	first uint32
	names []string
}{
	{0, []string{"PREBOOT_CERT", "POST_CODE", "UNUSED", "NO_ACTION", "SEPARATOR", "ACTION", "EVENT_TAG",
		"S_CRTM_CONTENTS", "S_CRTM_VERSION", "CPU_MICROCODE", "PLATFORM_CONFIG_FLAGS", "TABLE_OF_DEVICES", "COMPACT_HASH",
		"IPL", "IPL_PARTITION_DATA", "NONHOST_CODE", "NONHOST_CONFIG", "NONHOST_INFO", "OMIT_BOOT_DEVICE_EVENTS",
		"POST_CODE2"}},
	{EFIVariableDriverConfig, []string{"EFI_VARIABLE_DRIVER_CONFIG", "EFI_VARIABLE_BOOT",
		"EFI_BOOT_SERVICES_APPLICATION", "EFI_BOOT_SERVICES_DRIVER", "EFI_RUNTIME_SERVICES_DRIVER", "EFI_GPT_EVENT",
		"EFI_ACTION", "EFI_PLATFORM_FIRMWARE_BLOB", "EFI_HANDOFF_TABLES", "EFI_PLATFORM_FIRMWARE_BLOB2",
		"EFI_HANDOFF_TABLES2", "EFI_VARIABLE_BOOT2", "EFI_GPT_EVENT2"}},
	{HCRTM, []string{"EFI_HCRTM_EVENT"}},
	{EFIVariableAuthority, []string{"EFI_VARIABLE_AUTHORITY", "EFI_SPDM_FIRMWARE_BLOB", "EFI_SPDM_FIRMWARE_CONFIG",
		"EFI_SPDM_DEVICE_POLICY", "EFI_SPDM_DEVICE_AUTHORITY"}},
}

// TypeName returns the name of an event type, or its number in hexadecimal.
func TypeName(t uint32) string {
	for _, r := range typeNames {
		if i := t - r.first; i < uint32(len(r.names)) { // a smaller t wraps around
			return "EV_" + r.names[i]
		}
	}
	return fmt.Sprintf("0x%08x", t)
}
