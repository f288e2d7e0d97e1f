// SPDX-License-Identifier: Apache-2.0

// Package sealed boots machines with a volume that systemd-cryptenroll sealed to PCRs 7 and 11.
package sealed

import (
	"fmt"
	"maps"
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

// printVolumes runs in the real root.
const printVolumes = "#!/bin/sh\nfor name in /sys/block/dm-*/dm/name; do echo \"rig: volume $(cat $name)\"; done\n"

func wantOpen(t *testing.T, node *rig.Node) {
	t.Helper()
	if !node.Said(`^rig: volume sealed`) {
		t.Errorf("the volume is not open:\n%s", node.Console())
	}
}

// firstAndLaterBoot requires that the volume opens on both boots, and that the agent then caps PCR 11,
// which is zero until then.
func firstAndLaterBoot(t *testing.T, r *rig.Rig, v *rig.Verifier, first, later rig.VM) {
	t.Helper()
	node := r.Boot(first)
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
	again := r.Boot(later)
	again.Wait()
	zero := make([]byte, 32)
	want := fmt.Sprintf("%x", eventlog.Extend(eventlog.SHA256, zero, measuredboot.CapDigest(eventlog.SHA256)))
	for _, n := range []*rig.Node{node, again} {
		wantOpen(t, n)
		if got := strings.ToLower(n.PCR11()); got != want {
			t.Errorf("PCR 11 in the real root is %s, not capped", got)
		}
	}
}

func TestSealedVolumeOpensBeforeTheCapOnFirstAndLaterBoots(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{})
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	first := rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Initrd: rig.Initrd{Sealed: true}, Volume: r.NewVolume(),
		Cmdline: rig.OpenSealed + " " + rig.Seal("7+11"), Root: map[string]string{"etc/rig-realroot": printVolumes}}
	later := first
	later.LaterBoot, later.Cmdline = true, rig.OpenSealed
	firstAndLaterBoot(t, r, v, first, later)
}

func TestSealedVolumeOpensThroughShimAndGRUB(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{Policy: policy("secure-boot")})
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	initrd := rig.Initrd{Sealed: true}
	first := rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), SecureBoot: true, Volume: r.NewVolume(),
		GRUB: &rig.GRUB{Initrd: initrd, Cmdline: rig.OpenSealed + " " + rig.Seal("7+11")},
		Root: map[string]string{"etc/rig-realroot": printVolumes}}
	later := first
	later.LaterBoot, later.GRUB = true, &rig.GRUB{Initrd: initrd, Cmdline: rig.OpenSealed}
	firstAndLaterBoot(t, r, v, first, later)
}

// openInEachPhase opens the volume in the real root, while systemd's units extend PCR 11. No image
// has a signature for the last phase.
const openInEachPhase = printVolumes + `
busybox mount -t efivarfs efivarfs /sys/firmware/efi/efivars
for phase in leave-initrd sysinit ready shutdown; do
    [ $phase = leave-initrd ] || /lib/systemd/systemd-pcrphase $phase
    if /sbin/cryptsetup open --test-passphrase --token-only /dev/vdb; then
        echo "rig: phase $phase opens"
    else
        echo "rig: phase $phase does not open"
    fi
done
`

// In a measured unified kernel image with systemd-pcrphase, the agent does not extend PCR 11: it has
// the value that systemd-measure predicts for the phase leave-initrd. The verifier accepts the phase
// enter-initrd. The key of a volume that is sealed to the image's signatures is available in each
// signed phase. The images of the first and of the later boots differ, but have the same key.
func TestUnifiedKernelImageWithPhasesIsLeftToSystemd(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{Policy: policy("secure-boot"), Stopped: true})
	image := rig.UKI{Initrd: rig.Initrd{Sealed: true}, Cmdline: rig.OpenSealed + " " + rig.Seal("7"), SignPCR11: true}
	v.Write("reference-values/good.yaml", v.Tool("refvals", "--name", "good", "--uki", r.BuildUKI(image)))
	v.Start()
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	first := rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), UKI: &image, SecureBoot: true, Volume: r.NewVolume(),
		Root: map[string]string{"etc/rig-realroot": printVolumes}}
	node := r.Boot(first)
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
	wantOpen(t, node)
	if got, want := strings.ToLower(node.PCR11()), r.LeftInitrd(image); got != want {
		t.Errorf("PCR 11 in the real root is %s, want %s", got, want)
	}

	laterImage := image
	laterImage.Cmdline = rig.OpenSealed
	later := first
	later.LaterBoot, later.UKI = true, &laterImage
	for range 2 {
		again := r.Boot(later)
		again.Wait()
		wantOpen(t, again)
	}
	library := "/lib/x86_64-linux-gnu/"
	later.Root = r.Programs("/sbin/cryptsetup", "/lib/systemd/systemd-pcrphase",
		library+"cryptsetup/libcryptsetup-token-systemd-tpm2.so", library+"libtss2-esys.so.0",
		library+"libtss2-rc.so.0", library+"libtss2-mu.so.0", library+"libtss2-tcti-device.so.0")
	maps.Copy(later.Root, map[string]string{"etc/rig-realroot": openInEachPhase})
	again := r.Boot(later)
	again.Wait()
	wantOpen(t, again)
	for _, line := range []string{"leave-initrd opens", "sysinit opens", "ready opens", "shutdown does not open"} {
		if !again.Said("^rig: phase " + line) {
			t.Errorf("the console does not have %q:\n%s", line, again.Console())
		}
	}
}
