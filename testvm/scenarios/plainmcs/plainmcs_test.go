// SPDX-License-Identifier: Apache-2.0

// Package plainmcs boots new images against an old cluster: a Machine Config Server without a
// verifier.
package plainmcs

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestNewImageAgainstAPlainMCSIsProvisioned(t *testing.T) {
	r := rig.New(t)
	mcs := r.NewMCS(map[string]string{"worker": rig.Config("by a plain MCS")})
	node := r.Boot(rig.VM{TPM: r.NewTPM(), Pointer: mcs.Pointer("worker")})
	node.WantProvisioned()
	if got := node.ReadFile("/etc/provisioned"); got != "by a plain MCS" {
		t.Errorf("the disk holds %q", got)
	}
	if got := strings.Join(mcs.Requests(), ", "); !strings.Contains(got, "POST /mcsattest.v1.Attestation/Challenge") {
		t.Errorf("the agent asked nothing: %s", got)
	}
}
