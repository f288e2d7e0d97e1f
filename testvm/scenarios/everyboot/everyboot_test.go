// Package everyboot looks at PCR 11 on the boots on which nobody attests.
package everyboot

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func wantCapped(t *testing.T, node *rig.Node) {
	t.Helper()
	if pcr := node.PCR11(); pcr == "" || strings.Trim(pcr, "0") == "" {
		t.Errorf("PCR 11 is %q", pcr)
	}
}

func TestLaterBootIsCappedAndAsksNobody(t *testing.T) {
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{})
	node := r.Boot(rig.VM{TPM: r.NewTPM(), Pointer: v.Pointer("worker"), LaterBoot: true})
	node.Wait()
	if !node.Said(`^rig: not provisioned`) || !node.Said(`^rig: done`) {
		t.Fatalf("the boot went wrong:\n%s", node.Console())
	}
	wantCapped(t, node)
	v.WantNoAudit("", "", "")
}

func TestBootWithTheAgentOffIsCapped(t *testing.T) {
	r := rig.New(t)
	mcs := r.NewMCS(map[string]string{"worker": rig.Config("by a plain MCS")})
	node := r.Boot(rig.VM{TPM: r.NewTPM(), Pointer: mcs.Pointer("worker"), Cmdline: "mcs-attest=off"})
	node.WantProvisioned()
	wantCapped(t, node)
	if got := strings.Join(mcs.Requests(), ", "); got != "GET /config/worker" {
		t.Errorf("the server saw %s", got)
	}
}

func TestBootWithoutAMachineConfigServerIsCapped(t *testing.T) {
	r := rig.New(t)
	node := r.Boot(rig.VM{TPM: r.NewTPM(), Pointer: []byte(rig.Config("by its own user-data"))})
	node.WantProvisioned()
	wantCapped(t, node)
}

// Where a shell would start after a failed agent.
func TestShellAfterAFailedAgentIsCapped(t *testing.T) {
	r := rig.New(t)
	mcs := r.NewMCS(map[string]string{"worker": rig.Config("by a plain MCS")})
	node := r.Boot(rig.VM{TPM: r.NewTPM(), Pointer: mcs.Pointer("worker"), Cmdline: "mcs-attest=require"})
	node.WantEmergency()
	wantCapped(t, node)
}

func TestMachineWithoutATPMBootsAgainstAPlainMCS(t *testing.T) {
	r := rig.New(t)
	mcs := r.NewMCS(map[string]string{"worker": rig.Config("by a plain MCS")})
	node := r.Boot(rig.VM{Pointer: mcs.Pointer("worker")})
	node.WantProvisioned()
}
