// SPDX-License-Identifier: Apache-2.0

// Package grub boots Debian's shim, GRUB and signed kernel through OVMF under Secure Boot with
// Microsoft's keys, as most machines boot.
package grub

import (
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

func TestShimAndGRUBUnderSecureBootIsProvisioned(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{Policy: policy})
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), GRUB: &rig.GRUB{}, SecureBoot: true})
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
}
