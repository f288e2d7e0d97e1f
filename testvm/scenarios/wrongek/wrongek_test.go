// SPDX-License-Identifier: Apache-2.0

// Package wrongek boots a machine whose TPM is not the enrolled one.
package wrongek

import (
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestMachineWithAnotherTPMReceivesNothing(t *testing.T) {
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{})
	enrolled, other := r.NewTPM(), r.NewTPM()
	v.Enroll("worker-0", "worker", enrolled)
	node := r.Boot(rig.VM{TPM: other, Pointer: v.Pointer("worker")})

	// Its Machine may not exist yet, so the denial is temporary, and the machine waits. It is never
	// admitted.
	v.WaitAudit("", "denied", "EKNotEnrolled")
	time.Sleep(15 * time.Second)
	node.Kill()
	v.WantNoAudit("attest", "allowed", "")
	v.WantNoAudit("fetch", "allowed", "")
	if got := node.ReadFile("/etc/provisioned"); got != "" {
		t.Errorf("the disk holds %q", got)
	}
	v.WantRecord("worker-0", "")
}
