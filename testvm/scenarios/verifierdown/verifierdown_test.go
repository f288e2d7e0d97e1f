// SPDX-License-Identifier: Apache-2.0

// Package verifierdown boots a machine while its verifier does not run, restarts and rotates its keys.
package verifierdown

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// The verifier does not run when the machine starts. Its host loses power after it has attested the machine, and then
// its certificate and its token key are rotated. The machine's token is valid through all of that.
func TestMachineIsProvisionedThroughARestartAndARotation(t *testing.T) {
	r := rig.New(t)
	mcs := r.NewMCS(map[string]string{"worker": rig.Config("by the MCS behind")})
	mcs.SetDown(true)
	v := r.Verifier(rig.VerifierConfig{Upstream: mcs, Extra: "keyPublishDelay: 1s\n"})
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	v.Stop()

	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker")})
	node.WaitFor(`mcs-attest.*(again|retry|wait)`)
	v.Start()
	v.WaitAudit("attest", "allowed", "")
	node.WaitFor(`attested as machine default/worker-0`)
	v.Kill()
	v.Start()
	token := v.WantRecord("worker-0", "Attested").Record.Token.ID

	// The machine has a token of the old key and waits for the gate, which has no config to serve.
	v.WaitAudit("fetch", "denied", "UpstreamUnavailable")
	before := v.Leaf()
	v.RotateCertificate()
	v.Run("token", "rotate", "--wait", "10m")
	if v.WaitLeaf(before) == before {
		t.Fatal("the certificate did not change")
	}
	mcs.SetDown(false)
	node.WantProvisioned()
	if rec := v.WantRecord("worker-0", "Fetched"); rec.Record.Token.ID != token {
		t.Errorf("the machine needed a second token: %s, then %s", token, rec.Record.Token.ID)
	}
}
