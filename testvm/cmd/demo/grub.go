// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
	"github.com/mcs-attest/mcs-attest/testvm/stage"
)

const release = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: default
spec:
  pools: ["*"]
  tpm2:
    profile: release
`

// grub is the script of a boot through shim and GRUB under the profile release.
func grub(s *stage.Stage) {
	r := rig.New(s)
	s.Say("demo", "a machine boots through shim and GRUB with Secure Boot, as most distributions do;")
	s.Say("demo", "Secure Boot does not cover grub.cfg, the command line and the initramfs, but the TPM measures them;")
	s.Say("demo", "the verifier compares the measurements with the files of the image")
	s.Rule("the cluster's side: the policy, and reference values from the files of the image")
	v := r.Verifier(rig.VerifierConfig{Policy: release, Stopped: true,
		OnAudit: func(a rig.Audit) { s.Audit("verifier", a) }})
	v.Write("configs/worker.ign", rig.Config(content))
	_, spec, _ := strings.Cut(release, "\nspec:")
	s.Lines("policy", "spec:"+spec)
	boot := r.BootFiles(rig.GRUB{})
	s.Say("you", "$ mcs-attest-verifier refvals --name debian --boot BOOT > DIR/reference-values/debian.yaml")
	values := v.Tool("refvals", "--name", "debian", "--boot", boot)
	v.Write("reference-values/debian.yaml", values)
	s.Say("verifier", "%d lines: the digests of shim, GRUB, the kernel and each file that GRUB reads",
		strings.Count(values, "\n"))
	v.Start()

	s.Rule("an enrolled machine is switched on: firmware, shim, GRUB, kernel, initramfs")
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	vm := rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), GRUB: &rig.GRUB{}, SecureBoot: true, OnLine: s.Console}
	node := r.Boot(vm)
	node.WantProvisioned()
	provisioned(s, node)

	s.Rule("another machine boots the same image, but its initramfs has a backdoor")
	s.Say("demo", "shim and GRUB have valid signatures, so Secure Boot lets it run")
	other := r.NewTPM()
	v.Enroll("worker-1", "worker", other)
	vm.TPM = other
	vm.GRUB = &rig.GRUB{Initrd: rig.Initrd{Extra: map[string]string{"etc/backdoor": "#!/bin/sh\n"}}}
	r.Boot(vm).WantEmergency()
	denied := v.WantAudit("attest", "denied", "MeasuredBoot")
	s.Say("demo", "denied: PCR 9 has a file that is not in the image")
	s.Lines("verifier", denied.Detail)
	if !strings.Contains(denied.Detail, "/initrd.img") {
		s.Fatalf("the denial does not name the initramfs")
	}

	s.Rule("the cluster's records")
	s.Say("you", "$ mcs-attest-verifier status --config DIR/mcs-attest.yaml")
	s.Lines("verifier", v.Run("status"))
	v.WantRecord("worker-0", "Fetched")

	s.Rule("another client, without a token")
	curl(s, v)
}
