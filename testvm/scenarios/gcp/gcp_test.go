// SPDX-License-Identifier: Apache-2.0

// Package gcp boots machines of an emulated Google Cloud under the policy that ships for it.
// Pointer config and identity token both come from 169.254.169.254.
package gcp

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/clouds"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const identity = "/computeMetadata/v1/instance/service-accounts/default/identity"

// Google's token names the instance, and Google's API names the instance's TPM.
func TestShieldedVMWithItsTPM(t *testing.T) {
	r := rig.New(t)
	site := clouds.New(t, r, "gcp", rig.VerifierConfig{})
	node := site.Boot(site.Add("worker-0", r.NewTPM()), rig.VM{})
	node.WantProvisioned()
	if got := node.ReadFile("/etc/provisioned"); got != "for worker" {
		t.Errorf("the disk holds %q", got)
	}
	if !node.AskedMetadata(identity, "") {
		t.Errorf("no token was requested: %q", node.Metadata())
	}
	// The token is a credential, too, so it must not be stored.
	node.WantNoTokensLeft()
	rec := site.V.WantRecord("worker-0", "Fetched")
	if rec.Record.Endorsement != "provider" {
		t.Errorf("endorsed by %q", rec.Record.Endorsement)
	}
}

func TestInstanceWithoutATPM(t *testing.T) {
	r := rig.New(t)
	site := clouds.New(t, r, "gcp", rig.VerifierConfig{})
	node := site.Boot(site.Add("worker-0", nil), rig.VM{})
	node.WantProvisioned()
	if !node.AskedMetadata(identity, "") {
		t.Errorf("no token was requested: %q", node.Metadata())
	}
	site.V.WantRecord("worker-0", "Fetched")
}
