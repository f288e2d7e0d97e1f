// SPDX-License-Identifier: Apache-2.0

// Package configdrive has the pointer config where OpenStack stores it: on a CD-ROM with the label
// config-2.
package configdrive

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func drive(pointer []byte) map[string]string {
	return map[string]string{
		"openstack/latest/user_data":      string(pointer),
		"openstack/latest/meta_data.json": `{"uuid": "6d63732d-6174-4465-8374-726967000003", "name": "worker-0"}`,
	}
}

func TestPointerOnAConfigDrive(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{})
	node := r.Boot(rig.VM{TPM: tpm, Platform: "openstack", ConfigDrive: drive(v.Pointer("worker"))})
	node.WantProvisioned()
	v.WantAudit("attest", "allowed", "")
	v.WantRecord("worker-0", "Fetched")
	if got := node.ReadFile("/etc/provisioned"); got != "for worker" {
		t.Errorf("the disk holds %q", got)
	}
	node.WantNoTokensLeft()
}
