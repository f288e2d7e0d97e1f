// SPDX-License-Identifier: Apache-2.0

// Package sealed boots machines with a root file system that systemd-cryptenroll sealed to PCRs 7 and 11.
package sealed

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func policy(profile string) string {
	return `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: default
spec:
  pools: ["*"]
  tpm2:
    profile: ` + profile + "\n"
}

// printRoot runs in the real root.
const printRoot = `#!/bin/sh
while read -r device folder rest; do
    [ "$folder" != / ] || echo "rig: root on $device"
done < /proc/mounts
`

// wantFirstBoot requires that the root file system was open before the agent capped PCR 11, or recorded it,
// and before Ignition wrote to it. From then on only the TPM can open it.
func wantFirstBoot(t *testing.T, r *rig.Rig, v *rig.Verifier, vm rig.VM) *rig.Node {
	t.Helper()
	node := r.Boot(vm)
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
	wantUnlocked(t, node, "systemd-cryptsetup@root.service", "mcs-attest-scrub.service", "sysroot.mount")
	r.WantSealed(vm.SealedRoot, 7, 11)
	return node
}

// wantLaterBoot requires that the TPM opened the root file system of the first boot before the agent
// capped PCR 11, or recorded it.
func wantLaterBoot(t *testing.T, r *rig.Rig, vm rig.VM) *rig.Node {
	t.Helper()
	vm.LaterBoot = true
	node := r.Boot(vm)
	node.WantProvisioned() // Ignition wrote it on the first boot
	wantUnlocked(t, node, "systemd-cryptsetup@root.service", "sysroot.mount", "mcs-attest-cap.service")
	return node
}

func wantUnlocked(t *testing.T, node *rig.Node, units ...string) {
	t.Helper()
	if !node.Said(`^rig: root on /dev/mapper/root$`) {
		t.Errorf("the root file system is not the encrypted one:\n%s", node.Console())
	}
	node.WantOrder(units...)
}

// The root opens on both boots, and the agent then caps PCR 11, which is zero until then.
func TestSealedRootOpensThroughShimAndGRUB(t *testing.T) {
	t.Parallel()
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{Policy: policy("secure-boot")})
	initrd := rig.Initrd{Sealed: true}
	first := rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), SecureBoot: true,
		SealedRoot: r.NewSealedRoot(map[string]string{"etc/rig-realroot": printRoot}),
		GRUB:       &rig.GRUB{Initrd: initrd, Cmdline: rig.OpenSealed + " " + rig.Seal("7+11")}}
	later := first
	later.GRUB = &rig.GRUB{Initrd: initrd, Cmdline: rig.OpenSealed}
	zero := make([]byte, 32)
	want := fmt.Sprintf("%x", eventlog.Extend(eventlog.SHA256, zero, measuredboot.CapDigest(eventlog.SHA256)))
	for _, node := range []*rig.Node{wantFirstBoot(t, r, v, first), wantLaterBoot(t, r, later)} {
		if got := strings.ToLower(node.PCR11()); got != want {
			t.Errorf("PCR 11 in the real root is %s, not capped", got)
		}
	}
}

// openInEachPhase opens the volume in the real root of an image with rig.phases, while systemd's units
// extend PCR 11. No image has a signature for the last phase.
const openInEachPhase = printRoot + `
grep -q rig.phases /proc/cmdline || exit 0
busybox mount -t efivarfs efivarfs /sys/firmware/efi/efivars
for phase in leave-initrd sysinit ready shutdown; do
    [ $phase = leave-initrd ] || /lib/systemd/systemd-pcrphase $phase
    if /sbin/cryptsetup open --test-passphrase --token-only /dev/vda; then
        echo "rig: phase $phase opens"
    else
        echo "rig: phase $phase does not open"
    fi
done
`

// In a measured unified kernel image with systemd-pcrphase, the agent does not extend PCR 11: it has
// the value that systemd-measure predicts for the phase leave-initrd. The verifier accepts the phase
// enter-initrd. The key of a root file system that is sealed to the image's signatures is available in
// each signed phase. The image of each boot is another one, and all have the same key.
func TestUnifiedKernelImageWithPhasesIsLeftToSystemd(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{Policy: policy("secure-boot"), Stopped: true})
	image := rig.UKI{Initrd: rig.Initrd{Sealed: true}, Cmdline: rig.OpenSealed + " " + rig.Seal("7"), SignPCR11: true}
	v.Write("reference-values/good.yaml", v.Tool("refvals", "--name", "good", "--uki", r.BuildUKI(image)))
	v.Start()
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	library := "/lib/x86_64-linux-gnu/"
	files := r.Programs("/sbin/cryptsetup", "/lib/systemd/systemd-pcrphase",
		library+"cryptsetup/libcryptsetup-token-systemd-tpm2.so", library+"libtss2-esys.so.0",
		library+"libtss2-rc.so.0", library+"libtss2-mu.so.0", library+"libtss2-tcti-device.so.0")
	files["etc/rig-realroot"] = openInEachPhase
	vm := rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), UKI: &image, SecureBoot: true,
		SealedRoot: r.NewSealedRoot(files)}
	first := wantFirstBoot(t, r, v, vm)
	if got, want := strings.ToLower(first.PCR11()), r.LeftInitrd(image); got != want {
		t.Errorf("PCR 11 in the real root is %s, want %s", got, want)
	}

	laterImage := image
	laterImage.Cmdline = rig.OpenSealed + " rig.phases"
	vm.UKI = &laterImage
	last := wantLaterBoot(t, r, vm)
	for _, line := range []string{"leave-initrd opens", "sysinit opens", "ready opens", "shutdown does not open"} {
		if !last.Said("^rig: phase " + line) {
			t.Errorf("the console does not have %q:\n%s", line, last.Console())
		}
	}
}
