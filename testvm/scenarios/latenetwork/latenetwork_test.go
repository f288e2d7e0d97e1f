// SPDX-License-Identifier: Apache-2.0

// Package latenetwork boots a machine whose network starts after the agent.
package latenetwork

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestMachineWaitsForItsNetworkAndIsProvisioned(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{})
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Network: rig.Network{Unplugged: true}})
	node.WaitFor(`mcs-attest: .*; trying again`)
	v.WantNoAudit("", "", "")
	node.Plug()
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
}
