// SPDX-License-Identifier: Apache-2.0

// Package paths names every file that the agent accesses outside its own process. Each path can be
// set by an environment variable, so that tests need no root and a distribution can use other
// locations.
package paths

import (
	"os"
	"path/filepath"

	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
)

// Paths are the files and folders; [Default] fills them.
type Paths struct {
	Run          string // the agent's own folder
	Cmdline      string // the kernel command line
	Initrd       string // exists in an initramfs
	IgnitionJSON string // the config that Ignition caches between stages
	// The folders in which Ignition searches for user.ign and base.d, in order of precedence.
	IgnitionRuntime string
	IgnitionLocal   string
	IgnitionSystem  string
	FwCfg           string // qemu's firmware configuration in sysfs
	Metadata        string // the cloud's metadata service: a URL, not a file
	Disks           string // udev's links to block devices by the label of their file system
	Drives          string // the folder with the CD-ROM drives, sr0 and so on
	TPM             string // a TPM character device, or the socket of a software TPM
	TPMSysfs        string // the TPM's folder in sysfs, which lists the PCR banks
	TPMTable        string // the ACPI table of a TPM 2.0, which exists before its driver is loaded
	EventLog        string // the firmware's event log
	Phase           string // exists while systemd-pcrphase-initrd.service is active
	BootID          string
	SMBIOSUUID      string
	SMBIOSSerial    string
	Network         string // sysfs, one folder for each link
	Boot            string // where the boot partition is mounted
	FirstBoot       string // the folder in which a pre-approved config has the agent's files
	// A pointer config in the image with a provisioning token, for machines whose own pointer
	// config cannot contain one.
	ProvisioningToken string
	// Contains the only resource for which the agent requests managed identity tokens. Without the
	// file: the built-in one.
	AzureTokenResource string
}

var table = []struct {
	env, standard string
	field         func(*Paths) *string
}{
	{"MCS_ATTEST_RUN", "/run/mcs-attest", func(p *Paths) *string { return &p.Run }},
	{"MCS_ATTEST_CMDLINE", "/proc/cmdline", func(p *Paths) *string { return &p.Cmdline }},
	{"MCS_ATTEST_INITRD", "/etc/initrd-release", func(p *Paths) *string { return &p.Initrd }},
	{"MCS_ATTEST_IGNITION_JSON", "/run/ignition.json", func(p *Paths) *string { return &p.IgnitionJSON }},
	{"MCS_ATTEST_IGNITION_RUNTIME", "/run/ignition", func(p *Paths) *string { return &p.IgnitionRuntime }},
	{"MCS_ATTEST_IGNITION_LOCAL", "/etc/ignition", func(p *Paths) *string { return &p.IgnitionLocal }},
	{"MCS_ATTEST_IGNITION_SYSTEM", "/usr/lib/ignition", func(p *Paths) *string { return &p.IgnitionSystem }},
	{"MCS_ATTEST_FW_CFG", "/sys/firmware/qemu_fw_cfg", func(p *Paths) *string { return &p.FwCfg }},
	{"MCS_ATTEST_METADATA", "http://169.254.169.254", func(p *Paths) *string { return &p.Metadata }},
	{"MCS_ATTEST_DISKS", "/dev/disk/by-label", func(p *Paths) *string { return &p.Disks }},
	{"MCS_ATTEST_DRIVES", "/dev", func(p *Paths) *string { return &p.Drives }},
	{"MCS_ATTEST_TPM", "/dev/tpmrm0", func(p *Paths) *string { return &p.TPM }},
	{"MCS_ATTEST_TPM_SYSFS", "/sys/class/tpm/tpm0", func(p *Paths) *string { return &p.TPMSysfs }},
	{"MCS_ATTEST_TPM_TABLE", "/sys/firmware/acpi/tables/TPM2", func(p *Paths) *string { return &p.TPMTable }},
	{"MCS_ATTEST_EVENT_LOG", "/sys/kernel/security/tpm0/binary_bios_measurements",
		func(p *Paths) *string { return &p.EventLog }},
	{"MCS_ATTEST_PHASE", "/run/mcs-attest-phase", func(p *Paths) *string { return &p.Phase }},
	{"MCS_ATTEST_BOOT_ID", "/proc/sys/kernel/random/boot_id", func(p *Paths) *string { return &p.BootID }},
	{"MCS_ATTEST_SMBIOS_UUID", "/sys/class/dmi/id/product_uuid", func(p *Paths) *string { return &p.SMBIOSUUID }},
	{"MCS_ATTEST_SMBIOS_SERIAL", "/sys/class/dmi/id/product_serial", func(p *Paths) *string { return &p.SMBIOSSerial }},
	{"MCS_ATTEST_NETWORK", "/sys/class/net", func(p *Paths) *string { return &p.Network }},
	{"MCS_ATTEST_BOOT", "/boot", func(p *Paths) *string { return &p.Boot }},
	{"MCS_ATTEST_FIRSTBOOT", firstboot.Dir, func(p *Paths) *string { return &p.FirstBoot }},
	{"MCS_ATTEST_PROVISIONING_TOKEN", "/etc/mcs-attest/provisioning-token",
		func(p *Paths) *string { return &p.ProvisioningToken }},
	{"MCS_ATTEST_AZURE_TOKEN_RESOURCE", "/etc/mcs-attest/azure-token-resource",
		func(p *Paths) *string { return &p.AzureTokenResource }},
}

// Default returns the standard paths, each overridden by its environment variable.
func Default() Paths {
	var p Paths
	for _, row := range table {
		*row.field(&p) = row.standard
		if v := os.Getenv(row.env); v != "" {
			*row.field(&p) = v
		}
	}
	return p
}

// Variables returns the environment variables with their defaults.
func Variables() map[string]string {
	out := map[string]string{}
	for _, row := range table {
		out[row.env] = row.standard
	}
	return out
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
