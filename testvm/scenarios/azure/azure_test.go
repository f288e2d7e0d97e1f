// SPDX-License-Identifier: Apache-2.0

// Package azure boots machines of an emulated Azure under the policy that ships for it. Pointer
// config and attested document both come from 169.254.169.254.
package azure

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/clouds"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const attested = "/metadata/attested/document"

// Azure's document names the machine, and Azure's certificate proves that the TPM belongs to a
// virtual machine.
func TestMachineWithItsTPM(t *testing.T) {
	r := rig.New(t)
	site := clouds.New(t, r, "azure", rig.VerifierConfig{})
	node := site.Boot(site.Add("worker-0", r.NewTPM()), rig.VM{})
	node.WantProvisioned()
	if got := node.ReadFile("/etc/provisioned"); got != "for worker" {
		t.Errorf("the disk holds %q", got)
	}
	if !node.AskedMetadata(attested, "") {
		t.Errorf("the document was not requested: %q", node.Metadata())
	}
	rec := site.V.WantRecord("worker-0", "Fetched")
	if rec.Record.Endorsement != "ak-certificate" {
		t.Errorf("endorsed by %q", rec.Record.Endorsement)
	}
}

func TestMachineWithoutATPM(t *testing.T) {
	r := rig.New(t)
	site := clouds.New(t, r, "azure", rig.VerifierConfig{})
	node := site.Boot(site.Add("worker-0", nil), rig.VM{})
	node.WantProvisioned()
	if !node.AskedMetadata(attested, "") {
		t.Errorf("the document was not requested: %q", node.Metadata())
	}
	site.V.WantRecord("worker-0", "Fetched")
}
