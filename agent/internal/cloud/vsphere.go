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

// vsphere has no evidence of its own: the TPM is endorsed by vCenter. It knows
// the virtual machine's UUID from the firmware's tables.
type vsphere struct{ paths paths.Paths }

func newVSphere(p paths.Paths) (platform, error) { return &vsphere{p}, nil }

func (*vsphere) kinds() []evidence.Kind { return nil }

func (*vsphere) gather(_ context.Context, kind evidence.Kind, _ evidence.Binding,
	_ *mcsattestv1.CloudChallenge) (document, token []byte, err error) {
	return nil, nil, notMine(kind)
}

func (v *vsphere) look(context.Context) (string, error) {
	serial, _ := os.ReadFile(v.paths.SMBIOSSerial)
	uuid, err := os.ReadFile(v.paths.SMBIOSUUID)
	if id, ok := vsphereID(string(serial), string(uuid)); ok {
		return id, nil
	}
	if err == nil {
		err = errors.New("neither serial number nor UUID is a virtual machine's")
	}
	return "", fmt.Errorf("the firmware's tables: %w", err)
}

// vsphereID is "vsphere://" and the BIOS UUID as vCenter and OpenShift write it.
//
// VMware puts the UUID's bytes, in order, into the serial number
// ("VMware-42 2e 49 56 ad 22 11 39-6d 72 59 cc 8f 26 bc 90"). Where the serial
// number is the host's own, there is the UUID in the system table; since SMBIOS
// 2.6 its first three fields are little endian, and the kernel prints them so.
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

// isUUID: 16 bytes that are not all zero or all one, as firmware fills in.
func isUUID(raw []byte) bool {
	filler := func(b byte) bool { return !slices.ContainsFunc(raw, func(x byte) bool { return x != b }) }
	return len(raw) == 16 && !filler(0x00) && !filler(0xff)
}

func formatUUID(raw []byte) string {
	return fmt.Sprintf("vsphere://%x-%x-%x-%x-%x", raw[0:4], raw[4:6], raw[6:8], raw[8:10], raw[10:16])
}
