// SPDX-License-Identifier: Apache-2.0

// Package secureboot boots unified kernel images through OVMF under the profile secure-boot. Every
// altered image is signed with the same key as the good one. Secure Boot lets all of them run, and
// the appraisal denies them. Package sealed has the good image, with a sealed root file system.
package secureboot

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const policy = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: default
spec:
  pools: ["*"]
  tpm2:
    profile: secure-boot
`

// refused boots vm, with a verifier that has the reference values of the good image, and requires a final denial that
// names the problem.
func refused(t *testing.T, vm rig.VM, detail ...string) {
	t.Helper()
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{Policy: policy, Stopped: true})
	v.Write("reference-values/good.yaml", v.Tool("refvals", "--name", "good", "--uki", r.BuildUKI(rig.UKI{})))
	v.Start()
	vm.TPM, vm.Pointer = r.NewTPM(), v.Pointer("worker")
	v.Enroll("worker-0", "worker", vm.TPM)
	node := r.Boot(vm)
	node.WantEmergency()
	denied := v.WantAudit("attest", "denied", "MeasuredBoot")
	for _, d := range detail {
		if !strings.Contains(denied.Detail, d) {
			t.Errorf("the denial does not contain %q: %s", d, denied.Detail)
		}
	}
	v.WantNoAudit("attest", "allowed", "")
	v.WantNoAudit("fetch", "allowed", "")
	// The node receives the class and a correlation id, never the values.
	if !node.Said(denied.CorrelationID) {
		t.Errorf("the console does not name %s", denied.CorrelationID)
	}
}

func TestAttack_T33_SecureBootOffIsDeniedNamingTheVariable(t *testing.T) {
	t.Parallel()
	refused(t, rig.VM{UKI: &rig.UKI{}}, "PCR 7", "SecureBoot")
}

func TestAttack_T33_AlteredInitramfsIsDeniedByItsDigest(t *testing.T) {
	t.Parallel()
	altered := rig.Initrd{Extra: map[string]string{"etc/backdoor": "#!/bin/sh\n"}}
	refused(t, rig.VM{UKI: &rig.UKI{Initrd: altered}, SecureBoot: true}, "PCR 11", ".initrd")
}

func TestAttack_T33_CredentialOutsideTheImageIsDeniedByPCR12(t *testing.T) {
	t.Parallel()
	image := rig.UKI{Credentials: map[string]string{"backdoor": "not so secret"}}
	refused(t, rig.VM{UKI: &image, SecureBoot: true}, "PCR 12")
}

// This happens in practice: OVMF with Microsoft's keys lets a kernel from -kernel run although no
// key of db signed it, and the variable is still 1.
func TestAttack_T36_SecureBootVariableWithoutAnAuthorityIsDenied(t *testing.T) {
	t.Parallel()
	refused(t, rig.VM{MicrosoftKeys: true}, "PCR 7")
}
