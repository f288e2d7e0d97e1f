// SPDX-License-Identifier: Apache-2.0

// Package verifierdown boots a machine while no verifier runs.
package verifierdown

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestMachineWaitsForTheVerifierAndIsProvisioned(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{})
	v.Stop()
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker")})
	node.WaitFor(`mcs-attest.*(again|retry|wait)`)
	v.Start()
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
}

// The verifier's host loses power after the verifier has answered. The answer is still valid after
// the restart.
func TestVerifierKilledBetweenAttestAndFetchLosesNoRecord(t *testing.T) {
	r := rig.New(t)
	mcs := r.NewMCS(map[string]string{"worker": rig.Config("by the MCS behind")})
	mcs.SetDown(true)
	v := r.Verifier(rig.VerifierConfig{Upstream: mcs})
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker")})
	v.WaitAudit("attest", "allowed", "")
	node.WaitFor(`attested as machine default/worker-0`)
	v.Kill()
	v.Start()
	token := v.WantRecord("worker-0", "Attested").Record.Token.ID
	mcs.SetDown(false)
	node.WantProvisioned()
	if rec := v.WantRecord("worker-0", "Fetched"); rec.Record.Token.ID != token {
		t.Errorf("the machine needed a second token: %s, then %s", token, rec.Record.Token.ID)
	}
}
