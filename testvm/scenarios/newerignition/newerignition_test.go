// SPDX-License-Identifier: Apache-2.0

// Package newerignition boots Ignition 2.26, built from its Go module, instead of Debian's 2.14.
package newerignition

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestIgnition226IsProvisioned(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{})
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Initrd: rig.Initrd{Newer: true}})
	node.WantProvisioned()
	if !strings.Contains(node.Journal(), "Stage: fetch") || strings.Contains(node.Journal(), "2.14.0") {
		t.Error("this was not the newer Ignition")
	}
	v.WantRecord("worker-0", "Fetched")
}
