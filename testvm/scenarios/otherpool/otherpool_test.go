// SPDX-License-Identifier: Apache-2.0

// Package otherpool requests a pool other than the machine's own.
package otherpool

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestAttack_T45_TokenOpensOnlyItsOwnPool(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{Pools: []string{"worker", "master"}})
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Cmdline: "rig.probe"})
	node.WantProvisioned()

	token := node.Token()
	for _, path := range []string{"/config/master", "/config/worker/master", "/config/worker%2f../master"} {
		if code, body := v.Get(path, token); code != 403 || strings.Contains(body, "for master") {
			t.Errorf("%s with a worker's token: %d", path, code)
		}
	}
	v.WantAudit("fetch", "denied", "TokenPool")
	if code, _ := v.Get("/config/worker", token); code != 200 {
		t.Errorf("valid case: %d", code)
	}
}

func TestAttack_T41_WorkerThatRequestsMasterIsDenied(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{Pools: []string{"worker", "master"}})
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("master")})
	node.WantEmergency()
	v.WantAudit("attest", "denied", "MachinePool")
	v.WantNoAudit("fetch", "allowed", "")
}
