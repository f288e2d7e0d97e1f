// Package replayneighbour has somebody in the cluster show another instance's
// document. AWS signs it once, when the instance starts, and there is no nonce in it:
// a copy is as good as the original, and what is beside it must tell them apart.
package replayneighbour

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/clouds"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// The neighbour sees the whole metadata service of the machine that it wants to be,
// as a pod on that machine's network does, and quotes a genuine TPM: its own.
func TestAttack_T05_DocumentOfTheNeighbourIsRefused(t *testing.T) {
	r := rig.New(t)
	site := clouds.New(t, r, "aws", rig.VerifierConfig{})
	victim := site.Add("worker-0", r.NewTPM())
	neighbour := site.Stranger("neighbour", r.NewTPM())
	neighbour.Metadata = victim.Metadata
	thief := site.Boot(neighbour, rig.VM{})
	thief.WantEmergency()
	denied := site.V.WantAudit("attest", "denied", "EKUntrusted")
	if denied.Temporary {
		t.Error("it may ask again")
	}
	site.V.WantNoAudit("", "allowed", "")

	// The rightful machine is not locked out by it.
	node := site.Boot(victim, rig.VM{})
	node.WantProvisioned()
	site.V.WantRecord("worker-0", "Fetched")
}
