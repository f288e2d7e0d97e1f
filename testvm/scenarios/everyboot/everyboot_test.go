// SPDX-License-Identifier: Apache-2.0

// Package everyboot checks PCR 11 on boots without an attestation.
package everyboot

import (
	"os"
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

func TestLaterBootIsCappedWithoutARequest(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	r := rig.New(t)
	node := r.Boot(rig.VM{TPM: r.NewTPM(), Pointer: []byte(rig.Config("by its own user-data"))})
	node.WantProvisioned()
	wantCapped(t, node)
}

// Without a server, ignition-fetch-offline.service provisions the machine by itself.
func TestRequireFailsWithoutAMachineConfigServer(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	node := r.Boot(rig.VM{TPM: r.NewTPM(), Pointer: []byte(rig.Config("by its own user-data")),
		Cmdline: "mcs-attest=require"})
	node.WantEmergency()
	if !node.Said(`mcs-attest=require demands an attestation`) {
		t.Errorf("the console does not say why:\n%s", node.Console())
	}
}

// A shell would start here after a failed agent.
func TestShellAfterAFailedAgentIsCapped(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	mcs := r.NewMCS(map[string]string{"worker": rig.Config("by a plain MCS")})
	node := r.Boot(rig.VM{TPM: r.NewTPM(), Pointer: mcs.Pointer("worker"), Cmdline: "mcs-attest=require"})
	node.WantEmergency()
	wantCapped(t, node)
	for _, req := range mcs.Requests() {
		if strings.HasPrefix(req, "GET ") {
			t.Errorf("Ignition requested %s", req)
		}
	}
}

func TestMachineWithoutATPMBootsAgainstAPlainMCS(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	mcs := r.NewMCS(map[string]string{"worker": rig.Config("by a plain MCS")})
	node := r.Boot(rig.VM{Pointer: mcs.Pointer("worker")})
	node.WantProvisioned()
}

// An image whose initramfs has no agent: the unit of the real root caps PCR 11. The rig's root has
// no systemd, so the unit runs in that of the stock initramfs.
func TestAttack_T32_BootOfAStockInitramfsIsCappedByTheUnitOfTheRealRoot(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	unit, err := os.ReadFile("../../../dracut/root/mcs-attest-cap-root.service")
	if err != nil {
		t.Fatal(err)
	}
	agent, err := os.ReadFile(r.Agent())
	if err != nil {
		t.Fatal(err)
	}
	const units = "usr/lib/systemd/system/"
	with := map[string]string{
		"usr/bin/mcs-attest-agent": string(agent),
		units + "mcs-attest-cap-root.service": strings.Replace(string(unit),
			"ConditionPathExists=!/etc/initrd-release\n", "", 1),
		units + "sysinit.target.d/10-cap.conf": "[Unit]\nWants=mcs-attest-cap-root.service\n",
	}
	for _, extra := range []map[string]string{nil, with} {
		node := r.Boot(rig.VM{TPM: r.NewTPM(), Pointer: []byte(rig.Config("x")), LaterBoot: true,
			Initrd: rig.Initrd{Agent: rig.NoAgent, Extra: extra}})
		node.Wait()
		if !node.Said(`^rig: done`) {
			t.Fatalf("the boot went wrong:\n%s", node.Console())
		}
		if extra != nil {
			wantCapped(t, node)
		} else if pcr := node.PCR11(); pcr == "" || strings.Trim(pcr, "0") != "" {
			t.Errorf("without the unit PCR 11 is %q: the test proves nothing", pcr)
		}
	}
}
