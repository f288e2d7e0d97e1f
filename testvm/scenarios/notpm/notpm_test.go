// SPDX-License-Identifier: Apache-2.0

// Package notpm boots a machine without a TPM against a pool that requires one.
package notpm

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestMachineWithoutATPMStopsWithAReason(t *testing.T) {
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{})
	node := r.Boot(rig.VM{Pointer: v.Pointer("worker")})
	node.WantEmergency()
	if !node.Said(`no TPM 2.0`) || !node.Said(`error: denied`) || !node.Said(`hint: .*TPM`) {
		t.Errorf("the console does not name what is missing:\n%s", node.Console())
	}
	v.WantAudit("challenge", "denied", "EvidenceMissing")
	v.WantNoAudit("attest", "allowed", "")
	v.WantNoAudit("fetch", "", "")
}
