// SPDX-License-Identifier: Apache-2.0

// Package noagent boots an old image against a pool with mode Enforce.
package noagent

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestImageWithoutTheAgentReceivesNothing(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{})
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Initrd: rig.Initrd{Agent: rig.NoAgent}})
	node.WantEmergency()
	// 401 is final for Ignition: one attempt, no retry.
	v.WantAudit("fetch", "denied", "TokenMissing")
	v.WantNoAudit("fetch", "allowed", "")
	v.WantNoAudit("attest", "", "")
}

const audit = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: default
spec:
  mode: Audit
`

func TestImageWithoutTheAgentIsServedAndCountedUnderAudit(t *testing.T) {
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{Policy: audit})
	node := r.Boot(rig.VM{Pointer: v.Pointer("worker"), Initrd: rig.Initrd{Agent: rig.NoAgent}})
	node.WantProvisioned()
	v.WantAudit("fetch", "would-deny", "TokenMissing")
}
