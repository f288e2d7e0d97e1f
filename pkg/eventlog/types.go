// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"crypto/sha256"
	"crypto/sha512"
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

// digestSize returns the size of an algorithm's digest in bytes, or 0 if it is unknown (TCG
// Algorithm Registry, 6.10).
func digestSize(alg uint16) int {
	switch alg {
	case sha1Bank:
		return 20
	case SHA256, 0x0012, 0x0027: // SM3-256, SHA3-256
		return 32
	case SHA384, 0x0028: // SHA3-384
		return 48
	case SHA512, 0x0029: // SHA3-512
		return 64
	}
	return 0
}

// Size returns the size of a bank's digest in bytes, or 0 if the bank cannot be replayed.
func Size(bank uint16) int {
	switch bank {
	case SHA256, SHA384, SHA512:
		return digestSize(bank)
	}
	return 0
}

// Hash returns the digest of data in a bank's algorithm, or nil if the bank cannot be replayed.
func Hash(bank uint16, data []byte) []byte {
	switch bank {
	case SHA256:
		d := sha256.Sum256(data)
		return d[:]
	case SHA384:
		d := sha512.Sum384(data)
		return d[:]
	case SHA512:
		d := sha512.Sum512(data)
		return d[:]
	}
	return nil
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

var typeNames = map[uint32]string{
	0x00000000:                 "EV_PREBOOT_CERT",
	0x00000001:                 "EV_POST_CODE",
	0x00000002:                 "EV_UNUSED",
	NoAction:                   "EV_NO_ACTION",
	Separator:                  "EV_SEPARATOR",
	Action:                     "EV_ACTION",
	0x00000006:                 "EV_EVENT_TAG",
	0x00000007:                 "EV_S_CRTM_CONTENTS",
	0x00000008:                 "EV_S_CRTM_VERSION",
	0x00000009:                 "EV_CPU_MICROCODE",
	0x0000000A:                 "EV_PLATFORM_CONFIG_FLAGS",
	0x0000000B:                 "EV_TABLE_OF_DEVICES",
	0x0000000C:                 "EV_COMPACT_HASH",
	IPL:                        "EV_IPL",
	0x0000000E:                 "EV_IPL_PARTITION_DATA",
	0x0000000F:                 "EV_NONHOST_CODE",
	0x00000010:                 "EV_NONHOST_CONFIG",
	0x00000011:                 "EV_NONHOST_INFO",
	0x00000012:                 "EV_OMIT_BOOT_DEVICE_EVENTS",
	0x00000013:                 "EV_POST_CODE2",
	EFIVariableDriverConfig:    "EV_EFI_VARIABLE_DRIVER_CONFIG",
	0x80000002:                 "EV_EFI_VARIABLE_BOOT",
	EFIBootServicesApplication: "EV_EFI_BOOT_SERVICES_APPLICATION",
	0x80000004:                 "EV_EFI_BOOT_SERVICES_DRIVER",
	0x80000005:                 "EV_EFI_RUNTIME_SERVICES_DRIVER",
	0x80000006:                 "EV_EFI_GPT_EVENT",
	EFIAction:                  "EV_EFI_ACTION",
	0x80000008:                 "EV_EFI_PLATFORM_FIRMWARE_BLOB",
	0x80000009:                 "EV_EFI_HANDOFF_TABLES",
	0x8000000A:                 "EV_EFI_PLATFORM_FIRMWARE_BLOB2",
	0x8000000B:                 "EV_EFI_HANDOFF_TABLES2",
	0x8000000C:                 "EV_EFI_VARIABLE_BOOT2",
	0x8000000D:                 "EV_EFI_GPT_EVENT2",
	HCRTM:                      "EV_EFI_HCRTM_EVENT",
	EFIVariableAuthority:       "EV_EFI_VARIABLE_AUTHORITY",
	0x800000E1:                 "EV_EFI_SPDM_FIRMWARE_BLOB",
	0x800000E2:                 "EV_EFI_SPDM_FIRMWARE_CONFIG",
	0x800000E3:                 "EV_EFI_SPDM_DEVICE_POLICY",
	0x800000E4:                 "EV_EFI_SPDM_DEVICE_AUTHORITY",
}

// TypeName returns the name of an event type, or its number in hexadecimal.
func TypeName(t uint32) string {
	if n, ok := typeNames[t]; ok {
		return n
	}
	return fmt.Sprintf("0x%08x", t)
}
