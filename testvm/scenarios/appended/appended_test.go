// SPDX-License-Identifier: Apache-2.0

// Package appended adds the agent to a stock initramfs as another archive, as for PXE and for
// images that are not rebuilt. The initramfs has Ignition 2.26, built from its Go module, instead of Debian's 2.14.
package appended

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestArchiveAppendedToAStockInitramfsAttests(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{})
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Initrd: rig.Initrd{Agent: rig.Appended, Newer: true}})
	node.WantProvisioned()
	if !strings.Contains(node.Journal(), "Stage: fetch") || strings.Contains(node.Journal(), "2.14.0") {
		t.Error("this was not the newer Ignition")
	}
	v.WantRecord("worker-0", "Fetched")
}
