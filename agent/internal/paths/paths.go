// SPDX-License-Identifier: Apache-2.0

// Package paths names every file that the agent accesses outside its own process. Each path can be
// set by an environment variable, so that tests need no root and a distribution can use other
// locations.
package paths

import (
	"cmp"
	"os"
	"path/filepath"
	"reflect"
)

// Paths are the files and folders; [Default] fills them.
type Paths struct {
	// the agent's own folder
	Run string `env:"MCS_ATTEST_RUN" default:"/run/mcs-attest"`
	// the kernel command line
	Cmdline string `env:"MCS_ATTEST_CMDLINE" default:"/proc/cmdline"`
	// exists in an initramfs
	Initrd string `env:"MCS_ATTEST_INITRD" default:"/etc/initrd-release"`
	// Ignition, which is asked for its version
	Ignition string `env:"MCS_ATTEST_IGNITION" default:"/usr/bin/ignition"`
	// the config that Ignition caches between stages
	IgnitionJSON string `env:"MCS_ATTEST_IGNITION_JSON" default:"/run/ignition.json"`
	// The folders in which Ignition searches for user.ign and base.d, in order of precedence.
	IgnitionRuntime string `env:"MCS_ATTEST_IGNITION_RUNTIME" default:"/run/ignition"`
	IgnitionLocal   string `env:"MCS_ATTEST_IGNITION_LOCAL" default:"/etc/ignition"`
	IgnitionSystem  string `env:"MCS_ATTEST_IGNITION_SYSTEM" default:"/usr/lib/ignition"`
	// qemu's firmware configuration in sysfs
	FwCfg string `env:"MCS_ATTEST_FW_CFG" default:"/sys/firmware/qemu_fw_cfg"`
	// the cloud's metadata service: a URL, not a file
	Metadata string `env:"MCS_ATTEST_METADATA" default:"http://169.254.169.254"`
	// udev's links to block devices by the label of their file system
	Disks string `env:"MCS_ATTEST_DISKS" default:"/dev/disk/by-label"`
	// the folder with the CD-ROM drives, sr0 and so on
	Drives string `env:"MCS_ATTEST_DRIVES" default:"/dev"`
	// a TPM character device, or the socket of a software TPM
	TPM string `env:"MCS_ATTEST_TPM" default:"/dev/tpmrm0"`
	// the TPM's folder in sysfs, which lists the PCR banks
	TPMSysfs string `env:"MCS_ATTEST_TPM_SYSFS" default:"/sys/class/tpm/tpm0"`
	// the ACPI table of a TPM 2.0, which exists before its driver is loaded
	TPMTable string `env:"MCS_ATTEST_TPM_TABLE" default:"/sys/firmware/acpi/tables/TPM2"`
	// the firmware's event log
	EventLog string `env:"MCS_ATTEST_EVENT_LOG" default:"/sys/kernel/security/tpm0/binary_bios_measurements"`
	// exists while systemd-pcrphase-initrd.service is active
	Phase        string `env:"MCS_ATTEST_PHASE" default:"/run/mcs-attest-phase"`
	BootID       string `env:"MCS_ATTEST_BOOT_ID" default:"/proc/sys/kernel/random/boot_id"`
	SMBIOSUUID   string `env:"MCS_ATTEST_SMBIOS_UUID" default:"/sys/class/dmi/id/product_uuid"`
	SMBIOSSerial string `env:"MCS_ATTEST_SMBIOS_SERIAL" default:"/sys/class/dmi/id/product_serial"`
	// sysfs, one folder for each link
	Network string `env:"MCS_ATTEST_NETWORK" default:"/sys/class/net"`
	// where the boot partition is mounted
	Boot string `env:"MCS_ATTEST_BOOT" default:"/boot"`
	// the folder in which a pre-approved config has the agent's files
	FirstBoot string `env:"MCS_ATTEST_FIRSTBOOT" default:"/etc/mcs-attest/firstboot"`
	// A pointer config in the image with a provisioning token, for machines whose own pointer
	// config cannot contain one.
	ProvisioningToken string `env:"MCS_ATTEST_PROVISIONING_TOKEN" default:"/etc/mcs-attest/provisioning-token"`
	// Contains the only resource for which the agent requests managed identity tokens. Without the
	// file: the built-in one.
	AzureTokenResource string `env:"MCS_ATTEST_AZURE_TOKEN_RESOURCE" default:"/etc/mcs-attest/azure-token-resource"`
}

// Default returns the standard paths, each overridden by its environment variable.
func Default() Paths {
	var p Paths
	for field, value := range reflect.ValueOf(&p).Elem().Fields() {
		value.SetString(cmp.Or(os.Getenv(field.Tag.Get("env")), field.Tag.Get("default")))
	}
	return p
}

// Exists reports whether a path exists, also as a link that leads nowhere.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Own returns the path of a file in the agent's own folder.
func (p Paths) Own(elem ...string) string {
	return filepath.Join(append([]string{p.Run}, elem...)...)
}
