// Package plainmcs boots new images against an old cluster: a Machine Config
// Server that has never heard of attestation.
package plainmcs

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestStockImageAgainstPlainMCSIsProvisioned(t *testing.T) {
	r := rig.New(t)
	mcs := r.NewMCS(map[string]string{"worker": rig.Config("by a plain MCS")})
	node := r.Boot(rig.VM{TPM: r.NewTPM(), Initrd: rig.Initrd{Agent: rig.NoAgent}, Pointer: mcs.Pointer("worker")})
	node.WantProvisioned()
	if got := node.ReadFile("/etc/provisioned"); got != "by a plain MCS" {
		t.Errorf("read back %q", got)
	}
	t.Log(node.Console(), mcs.Requests())
}
