// SPDX-License-Identifier: Apache-2.0

// Package clock boots machines whose clock is years off, as without a battery.
package clock

import (
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// The attestation depends on no clock of the node. Ignition's TLS does, so the agent sets the clock.
// systemd resets a clock that is more than 15 years ahead of its own build. So a clock that is a year
// after the end of the CA also has its boot: only the agent sets that one back.
func TestAttack_T53_NothingDependsOnTheNodesClock(t *testing.T) {
	for name, years := range map[string]int{"twenty years behind": -20, "eleven years ahead": 11} {
		t.Run(name, func(t *testing.T) {
			r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{})
			when := time.Now().UTC().AddDate(years, 0, 0).Format("2006-01-02T15:04:05")
			node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Clock: when})
			node.WantProvisioned()
			v.WantRecord("worker-0", "Fetched")
			if !node.Said(`mcs-attest: set this machine's clock from `) {
				t.Error("the agent did not set the clock")
			}
		})
	}
}
