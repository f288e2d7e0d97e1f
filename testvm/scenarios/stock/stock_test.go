// SPDX-License-Identifier: Apache-2.0

// Package stock boots an image without the agent: the stand-in for CoreOS as it is installed. The
// machine receives the pre-approved config, attests in the real root, and Ignition applies the full
// config in its second boot.
package stock

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestAttack_T72_StockImageAttestsInTheRealRootAndNothingAfterIt(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v := r.Verifier(r.StockImage())
	tpm, other := r.NewTPM(), r.NewTPM()
	v.Enroll("worker-1", "worker", other)
	disk := r.NewCoreOSDisk(v.Pointer("worker"))

	// With a TPM that is not the machine's, it keeps the pre-approved config, says so, and waits.
	first := r.Boot(rig.VM{Name: "first", TPM: tpm, CoreOS: disk})
	first.WaitFor(`^rig: not provisioned`)
	first.WaitFor(`^mcs-attest: .*; trying again in `)
	v.WantAudit("attest", "denied", "EKNotEnrolled")
	v.WantAudit("fetch", "pre-approved", "")
	v.WantNoAudit("fetch", "allowed", "")
	v.Enroll("worker-0", "worker", tpm)
	first.WaitFor(`^mcs-attest: capped PCR 11`)
	first.WaitFor(`^mcs-attest: .*; rebooting, so that Ignition applies it$`)
	first.Wait()
	v.WantAudit("attest", "allowed", "")

	second := r.Boot(rig.VM{Name: "second", TPM: tpm, CoreOS: disk})
	second.WaitFor(`^rig: provisioned for worker`)
	second.WaitFor(`^mcs-attest: capped PCR 11`)
	second.WaitFor(`^rig: the unit ended with 0$`)
	// So systemd would apply the presets of the full config's units.
	second.WaitFor(`^rig: machine-id uninitialized$`)
	second.WaitFor(`^rig: another program$`)
	second.WaitFor(`^mcs-attest: the machine keeps the pre-approved config and waits: `)
	v.WantAudit("attest", "denied", "PCRCapped")
	second.Kill()
	if second.Said(`^rig: left `) {
		t.Errorf("the config or the flag is still in /boot:\n%s", second.Console())
	}
	for _, node := range []*rig.Node{first, second} {
		if left := node.TokensLeft(); len(left) > 0 {
			t.Errorf("a token was left in %s", strings.Join(left, ", "))
		}
	}
	v.WantRecord("worker-0", "Fetched")
}
