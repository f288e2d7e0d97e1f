// SPDX-License-Identifier: Apache-2.0

// Package gcp boots machines of an emulated Google Cloud under the policy that ships for it.
// Pointer config and identity token both come from 169.254.169.254.
package gcp

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/clouds"
)

const identity = "/computeMetadata/v1/instance/service-accounts/default/identity"

// Google's token names the instance, and Google's API names the instance's TPM.
func TestShieldedVMWithItsTPM(t *testing.T) {
	clouds.Provisions(t, "gcp", identity, "provider")
}

func TestInstanceWithoutATPM(t *testing.T) {
	clouds.Provisions(t, "gcp", identity, "")
}
