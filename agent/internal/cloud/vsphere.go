// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/agent/internal/paths"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
)

// vsphere has no cloud evidence: vCenter endorses the TPM. It reads the virtual machine's UUID from
// the SMBIOS tables.
type vsphere struct{ paths paths.Paths }

func newVSphere(p paths.Paths) (platform, error) { return &vsphere{p}, nil }

func (*vsphere) kinds() []evidence.Kind { return nil }

func (*vsphere) gather(_ context.Context, kind evidence.Kind, _ evidence.Binding,
	_ *mcsattestv1.CloudChallenge) (document, token []byte, err error) {
	return nil, nil, unsupported(kind)
}

func (v *vsphere) lookup(context.Context) (string, error) {
	serial, _ := os.ReadFile(v.paths.SMBIOSSerial)
	uuid, err := os.ReadFile(v.paths.SMBIOSUUID)
	if id, ok := vsphereID(string(serial), string(uuid)); ok {
		return id, nil
	}
	if err == nil {
		err = errors.New("neither the serial number nor the UUID belongs to a virtual machine")
	}
	return "", fmt.Errorf("reading the SMBIOS tables: %w", err)
}

// vsphereID returns "vsphere://" and the BIOS UUID in the form that vCenter and OpenShift use.
//
// VMware writes the bytes of the UUID, in order, into the serial number ("VMware-42 2e 49 56 ad 22
// 11 39-6d 72 59 cc 8f 26 bc 90"). If the serial number is the host's own, the UUID is in the
// system table. Since SMBIOS 2.6 the first three fields of that UUID are little endian, and the
// kernel prints them so.
func vsphereID(serial, uuid string) (string, bool) {
	if s, ok := strings.CutPrefix(strings.TrimSpace(serial), "VMware-"); ok {
		if raw, err := hex.DecodeString(strings.NewReplacer(" ", "", "-", "").Replace(s)); err == nil && isUUID(raw) {
			return formatUUID(raw), true
		}
	}
	uuid = strings.TrimSpace(uuid)
	if len(uuid) != 36 || uuid[8] != '-' || uuid[13] != '-' || uuid[18] != '-' || uuid[23] != '-' {
		return "", false
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(uuid, "-", ""))
	if err != nil || !isUUID(raw) {
		return "", false
	}
	slices.Reverse(raw[0:4])
	slices.Reverse(raw[4:6])
	slices.Reverse(raw[6:8])
	return formatUUID(raw), true
}

// isUUID reports whether raw has 16 bytes that are not all the same, as unset firmware fields are.
func isUUID(raw []byte) bool {
	filler := func(b byte) bool { return !slices.ContainsFunc(raw, func(x byte) bool { return x != b }) }
	return len(raw) == 16 && !filler(0x00) && !filler(0xff)
}

func formatUUID(raw []byte) string {
	return fmt.Sprintf("vsphere://%x-%x-%x-%x-%x", raw[0:4], raw[4:6], raw[6:8], raw[8:10], raw[10:16])
}
