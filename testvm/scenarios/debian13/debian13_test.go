// SPDX-License-Identifier: Apache-2.0

// Package debian13 boots machines of a second system: systemd 257, dracut 106, NetworkManager in the
// initramfs, Linux 6.12.
package debian13

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

var initrd = rig.Initrd{System: rig.Debian13}

// wantProvisioned waits for the end of a first boot of worker-0. It requires all that a first boot
// leaves: the config, one use of one token, none of it on the machine, and PCR 11 at a value.
func wantProvisioned(t *testing.T, v *rig.Verifier, node *rig.Node, pcr11 string) {
	t.Helper()
	node.WantProvisioned()
	if got := node.ReadFile("/etc/provisioned"); got != "for worker" {
		t.Errorf("the disk has %q", got)
	}
	node.WantNoTokensLeft()
	if rec := v.WantRecord("worker-0", "Fetched"); rec.Record.Token == nil || rec.Record.Token.Uses != 1 {
		t.Errorf("the record has %+v", rec.Record)
	}
	if got := strings.ToLower(node.PCR11()); got != pcr11 {
		t.Errorf("PCR 11 in the real root is %s, want %s", got, pcr11)
	}
	for _, program := range []string{"systemd 257", "NetworkManager (version 1.5"} {
		if !strings.Contains(node.Journal(), program) {
			t.Errorf("the journal does not contain %s", program)
		}
	}
}

// capped is PCR 11 after a boot without a unified kernel image.
func capped() string {
	value := eventlog.Extend(eventlog.SHA256, make([]byte, 32), measuredboot.CapDigest(eventlog.SHA256))
	return fmt.Sprintf("%x", value)
}

// The first interface leads nowhere, the name server comes with the second one's late lease.
func TestDebian13WithTwoInterfacesANameAndLateDHCP(t *testing.T) {
	t.Parallel()
	const name = "api-int.rig.example"
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{Host: name})
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Initrd: initrd,
		Network: rig.Network{Storage: true, Name: name, Late: true}})
	node.WaitFor(`mcs-attest: .*; trying again`)
	v.WantNoAudit("", "", "")
	node.Plug()
	wantProvisioned(t, v, node, capped())
	for _, lease := range []string{"address=10.9.0.15", "address=10.0.2.15"} {
		if !strings.Contains(node.Journal(), lease) {
			t.Errorf("the journal does not have a lease with %s", lease)
		}
	}
}

func TestDebian13WithIPv6Only(t *testing.T) {
	t.Parallel()
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{Host: rig.Host6})
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Initrd: initrd,
		Network: rig.Network{IPv6: true}, Cmdline: "ip=auto6"})
	wantProvisioned(t, v, node, capped())
	if strings.Contains(node.Journal(), "dhcp4 (") {
		t.Error("the machine used IPv4")
	}
}

// Only the proxy resolves the verifier's name.
func TestDebian13WithAStaticAddressAndAProxy(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{Host: "mcs.rig.example"})
	proxy := r.NewProxy(v)
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	node := r.Boot(rig.VM{TPM: tpm, Pointer: proxy.Behind(v.Pointer("worker")), Initrd: initrd,
		Cmdline: "ip=10.0.2.77::10.0.2.2:255.255.255.0:node77::none"})
	wantProvisioned(t, v, node, capped())
	if n := proxy.Connections.Load(); n < 2 {
		t.Errorf("the proxy forwarded %d connections, of the agent and of Ignition", n)
	}
	if strings.Contains(node.Journal(), "dhcp4 (") || !strings.Contains(node.Journal(), " node77 ") {
		t.Error("the machine did not use its static address and name")
	}
	// The route exists before the address does.
	if node.Said("mcs-attest: .*i/o timeout") {
		t.Error("the agent sent packets without its address")
	}
}

// PCR 11 is left to systemd, which extends it at both ends of the initramfs.
func TestDebian13UKIUnderSecureBootIsProvisioned(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{Stopped: true, Policy: `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: default
spec:
  pools: ["*"]
  tpm2:
    profile: secure-boot
`})
	image := rig.UKI{Initrd: initrd}
	v.Write("reference-values/good.yaml", v.Tool("refvals", "--name", "good", "--uki", r.BuildUKI(image)))
	v.Start()
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), UKI: &image, SecureBoot: true})
	wantProvisioned(t, v, node, r.LeftInitrd(image))
}
