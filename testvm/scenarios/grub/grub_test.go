// SPDX-License-Identifier: Apache-2.0

// Package grub boots Debian's shim, GRUB and signed kernel through OVMF under Secure Boot with
// Microsoft's keys, as most machines boot.
package grub

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

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

// release returns a verifier with the profile release and the reference values of the good image, which
// were computed from its files.
func release(t *testing.T, image rig.GRUB) (*rig.Rig, *rig.Verifier, *rig.TPM) {
	t.Helper()
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{Policy: policy("release"), Stopped: true, Extra: "\nkeepEvidence: 1\n"})
	v.Write("reference-values/good.yaml", v.Tool("refvals", "--name", "good", "--boot", r.BootFiles(image)))
	v.Start()
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	return r, v, tpm
}

// The firmware set is that of the boot that release accepted. The other build of OVMF has the same keys, and
// boots the same image, so only strict denies it.
func TestShimAndGRUBUnderReleaseAndStrictIsProvisioned(t *testing.T) {
	t.Parallel()
	image := rig.GRUB{Menu: true}
	r, v, tpm := release(t, image)
	vm := rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), GRUB: &image, SecureBoot: true}
	r.Boot(vm).WantProvisioned()
	v.WantRecord("worker-0", "Fetched")

	v.Stop()
	kept, err := filepath.Glob(filepath.Join(v.Dir, "state", "evidence", "*.json"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept %v, %v", kept, err)
	}
	v.Write("reference-values/ovmf.yaml", v.Tool("refvals", "firmware", "--evidence", kept[0], "--name", "ovmf"))
	v.Write("policies/default.yaml", policy("strict"))
	v.Start()
	other := vm
	other.OtherFirmware = true
	r.Boot(other).WantEmergency()
	denied := v.WantAudit("attest", "denied", "MeasuredBoot")
	for _, detail := range []string{"profile strict: PCR 0", "EV_EFI_PLATFORM_FIRMWARE_BLOB", "of the firmware set ovmf"} {
		if !strings.Contains(denied.Detail, detail) {
			t.Errorf("the denial does not contain %q: %s", detail, denied.Detail)
		}
	}
	r.Boot(vm).WantProvisioned()
	if got := v.Run("explain", "worker-0"); !regexp.MustCompile(`(?m)^ +firmware +ovmf$`).MatchString(got) {
		t.Errorf("explain does not name the firmware set:\n%s", got)
	}
}

// Secure Boot lets both machines run, because it does not cover the initramfs and grub.cfg.
func TestAttack_T71_AlteredGRUBBootIsDenied(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		grub   rig.GRUB
		detail string
	}{
		"initramfs": {rig.GRUB{Initrd: rig.Initrd{Extra: map[string]string{"etc/backdoor": "#!/bin/sh\n"}}},
			`PCR 9, event 45 (EV_IPL): expected the file "/initrd.img"`},
		"grub.cfg": {rig.GRUB{Cmdline: "systemd.debug-shell"}, "grub.cfg"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, v, tpm := release(t, rig.GRUB{})
			node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), GRUB: &c.grub, SecureBoot: true})
			node.WantEmergency()
			denied := v.WantAudit("attest", "denied", "MeasuredBoot")
			if !strings.Contains(denied.Detail, c.detail) {
				t.Errorf("the denial does not name %s: %s", c.detail, denied.Detail)
			}
			v.WantNoAudit("attest", "allowed", "")
			v.WantNoAudit("fetch", "allowed", "")
		})
	}
}
