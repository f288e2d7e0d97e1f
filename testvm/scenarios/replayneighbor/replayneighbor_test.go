// SPDX-License-Identifier: Apache-2.0

// Package replayneighbor has another machine of the cluster present an instance's document. AWS
// signs it once, when the instance starts, and it has no nonce. A copy equals the original, so
// other evidence must distinguish them.
package replayneighbor

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/clouds"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// The attacker can read the whole metadata service of the other machine, like a pod on that
// machine's network, and quotes a genuine TPM: its own.
func TestAttack_T05_DocumentOfTheNeighborIsDenied(t *testing.T) {
	r := rig.New(t)
	site := clouds.New(t, r, "aws", rig.VerifierConfig{})
	victim := site.Add("worker-0", r.NewTPM())
	neighbor := site.Stranger("neighbor", r.NewTPM())
	neighbor.Metadata = victim.Metadata
	attacker := site.Boot(neighbor, rig.VM{})
	attacker.WantEmergency()
	denied := site.V.WantAudit("attest", "denied", "EKUntrusted")
	if denied.Temporary {
		t.Error("it may ask again")
	}
	site.V.WantNoAudit("", "allowed", "")

	// The rightful machine can still attest.
	node := site.Boot(victim, rig.VM{})
	node.WantProvisioned()
	site.V.WantRecord("worker-0", "Fetched")
}
