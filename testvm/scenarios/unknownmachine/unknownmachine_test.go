// SPDX-License-Identifier: Apache-2.0

// Package unknownmachine boots a machine before its Machine exists: it waits, and attests without a
// restart after the Machine was created.
package unknownmachine

import (
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// Its TPM is not the one that is enrolled, so it has no Machine yet.
func TestUnknownMachineWaitsAndAttestsAfterItsMachineIsCreated(t *testing.T) {
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{})
	v.Enroll("worker-0", "worker", r.NewTPM())
	tpm := r.NewTPM()
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker")})

	denied := v.WaitAudit("", "denied", "EKNotEnrolled")
	if !denied.Temporary {
		t.Fatalf("the denial is final: %s", denied.Raw)
	}
	node.WaitFor(`mcs-attest.*(again|retry|wait)`)
	time.Sleep(15 * time.Second) // it asks again
	v.WantNoAudit("attest", "allowed", "")
	v.WantNoAudit("fetch", "allowed", "")
	v.WantRecord("worker-0", "")
	v.Enroll("worker-1", "worker", tpm)
	node.WantProvisioned()
	v.WantRecord("worker-1", "Fetched")
	v.WantRecord("worker-0", "")
}
