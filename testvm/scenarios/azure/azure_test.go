// SPDX-License-Identifier: Apache-2.0

// Package azure boots machines of an emulated Azure under the policy that ships for it. Pointer
// config and attested document both come from 169.254.169.254.
package azure

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/clouds"
)

const attested = "/metadata/attested/document"

// Azure's document names the machine, and Azure's certificate proves that the TPM belongs to a
// virtual machine.
func TestMachineWithItsTPM(t *testing.T) {
	clouds.Provisions(t, "azure", attested, "ak-certificate")
}

func TestMachineWithoutATPM(t *testing.T) {
	clouds.Provisions(t, "azure", attested, "")
}
