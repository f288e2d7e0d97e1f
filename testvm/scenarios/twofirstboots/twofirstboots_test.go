// SPDX-License-Identifier: Apache-2.0

// Package twofirstboots cuts the power during the boot, as CoreOS does by itself if FIPS or kernel
// arguments need a restart: the same machine boots again with an empty disk. As on CoreOS, only the second boot is in
// FIPS mode.
package twofirstboots

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestSameMachineMayHaveTwoFirstBoots(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{})

	first := r.Boot(rig.VM{Name: "first", TPM: tpm, Pointer: v.Pointer("worker")})
	v.WaitAudit("fetch", "allowed", "")
	first.Kill()

	second := r.Boot(rig.VM{Name: "second", TPM: tpm, Pointer: v.Pointer("worker"), Cmdline: "fips=1"})
	second.WantProvisioned()
	if first.Said("FIPS 140 mode") || !second.Said("FIPS 140 mode") {
		t.Error("the agent does not follow the kernel's FIPS mode")
	}
	v.WantRecord("worker-0", "Fetched")
	attested := 0
	for _, a := range v.Audit() {
		if a.Event == "attest" && a.Outcome == "allowed" {
			attested++
		}
	}
	if attested < 2 {
		t.Errorf("attested %d times", attested)
	}
}
