// Package verifierdown boots a machine while no verifier runs.
package verifierdown

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestMachineWaitsForTheVerifierAndIsProvisioned(t *testing.T) {
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{})
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	v.Stop()
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker")})
	node.WaitFor(`mcs-attest.*(again|retry|wait)`)
	v.Start()
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
}
