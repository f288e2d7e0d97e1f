// SPDX-License-Identifier: Apache-2.0

// Package unknownmachine boots a machine before its Machine exists: it waits, and attests without a
// restart after the Machine was created.
package unknownmachine

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestUnknownMachineWaitsAndAttestsAfterItsMachineIsCreated(t *testing.T) {
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{})
	tpm := r.NewTPM()
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker")})

	denied := v.WaitAudit("", "denied", "")
	if !denied.Temporary {
		t.Fatalf("the denial is final: %s", denied.Raw)
	}
	node.WaitFor(`mcs-attest.*(again|retry|wait)`)
	v.WantNoAudit("fetch", "allowed", "")
	v.Enroll("worker-0", "worker", tpm)
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
}
