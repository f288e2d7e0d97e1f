// SPDX-License-Identifier: Apache-2.0

// Package capped attests a second time on the same machine, after the initramfs, like root on a
// running node or a pod with the TPM. Then the machine rehearses an attestation.
package capped

import (
	"os"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// again is run by PID 1 of the real root. The lease and fw_cfg still exist. With Ignition's config the agent would do
// nothing.
const again = `#!/bin/sh
echo "rig: attesting again"
rm /run/ignition.json
/usr/bin/mcs-attest-agent attest
echo "rig: the agent ended with $?"
/usr/bin/mcs-attest-agent rehearse /etc/rehearsal.json
echo "rig: the rehearsal ended with $?"
`

func TestAttack_T32_RootOnTheRunningMachineCannotAttest(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{})
	agent, err := os.ReadFile(r.Agent())
	if err != nil {
		t.Fatal(err)
	}
	// The output has other lines, too.
	_, order, _ := strings.Cut(v.Run("rehearse", "worker-0", "--timeout", "30m"), `{"ticket"`)
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Root: map[string]string{
		"etc/rig-realroot": again, "usr/bin/mcs-attest-agent": string(agent),
		"etc/rehearsal.json": `{"ticket"` + order,
	}})
	node.WantProvisioned()
	if !node.Said(`^rig: attesting again`) || node.Said(`^rig: the agent ended with 0`) {
		t.Errorf("the second attestation did not fail:\n%s", node.Console())
	}
	v.WantAudit("attest", "denied", "PCRCapped")
	if !node.Said(`^mcs-attest: this machine would be attested`) || !node.Said(`^rig: the rehearsal ended with 0`) {
		t.Errorf("the rehearsal failed:\n%s", node.Console())
	}
	allowed := 0
	for _, a := range v.Audit() {
		if a.Event == "attest" && a.Outcome == "allowed" {
			allowed++
		}
	}
	if allowed != 1 {
		t.Errorf("%d attestations were accepted", allowed)
	}
	v.WantRecord("worker-0", "Fetched")
}
