// SPDX-License-Identifier: Apache-2.0

// Package manufacturer boots a machine with a genuine TPM that is not enrolled: its manufacturer
// vouches for it, and an administrator approves it for a Machine.
package manufacturer

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
    endorsements: [enrolled, manufacturer]
`

func TestGenuineTPMWaitsForApprovalAndIsProvisioned(t *testing.T) {
	r := rig.New(t)
	tpm := r.NewTPM()
	v := r.Verifier(rig.VerifierConfig{Policy: policy, Stopped: true})
	v.Write("ek-roots/rig.pem", string(r.EKRoots()))
	v.Start()
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker")})

	v.WaitAudit("attest", "denied", "PendingApproval")
	_, pending := v.Status()
	if len(pending) != 1 {
		t.Fatalf("status lists %d machines to approve:\n%s", len(pending), v.Run("status"))
	}
	v.Run("enroll", "--approve", pending[0], "--name", "worker-0")
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
}

func TestTPMOfAnotherManufacturerIsDenied(t *testing.T) {
	r := rig.New(t)
	r.NewTPM()
	v := r.Verifier(rig.VerifierConfig{Policy: policy, Stopped: true})
	v.Write("ek-roots/rig.pem", string(r.EKRoots()))
	v.Start()
	other := r.NewTPMOfAnotherMaker()
	node := r.Boot(rig.VM{TPM: other, Pointer: v.Pointer("worker")})
	// An enrollment is still possible, so the machine waits; the detail says that no endorser
	// vouches for it.
	v.WaitAudit("", "denied", "EKNotEnrolled")
	node.Kill()
	v.WantNoAudit("attest", "allowed", "")
	v.WantNoAudit("fetch", "allowed", "")
}
