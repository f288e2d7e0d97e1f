// SPDX-License-Identifier: Apache-2.0

// Package appended adds the agent to a stock initramfs as another archive, as for PXE and for
// images that are not rebuilt.
package appended

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestArchiveAppendedToAStockInitramfsAttests(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{})
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Initrd: rig.Initrd{Agent: rig.Appended}})
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
}
