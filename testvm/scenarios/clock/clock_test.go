// SPDX-License-Identifier: Apache-2.0

// Package clock boots a machine whose clock is years off, as without a battery.
package clock

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// Neither side uses the node's clock. (Ignition itself does: it retries indefinitely while the
// certificate is not valid by the machine's clock, with or without the agent.)
func TestAttack_T53_NothingDependsOnTheNodesClock(t *testing.T) {
	for _, when := range []string{"2006-01-01T00:00:00", "2046-01-01T00:00:00"} {
		t.Run(when[:4], func(t *testing.T) {
			r := rig.New(t)
			v := r.Verifier(rig.VerifierConfig{})
			tpm := r.NewTPM()
			v.Enroll("worker-0", "worker", tpm)
			node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Clock: when})
			v.WaitAudit("attest", "allowed", "")
			node.WaitFor(`mcs-attest: delivered the pointer config`)
			node.Kill()
			v.WantRecord("worker-0", "Attested")
		})
	}
}
