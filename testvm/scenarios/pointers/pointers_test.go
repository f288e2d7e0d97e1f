// SPDX-License-Identifier: Apache-2.0

// Package pointers provides the pointer config in the other ways that Ignition supports. The other
// scenarios use QEMU's firmware configuration.
package pointers

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// Ignition prefers a URL on the kernel command line to user.ign, so the agent copies its config and
// hides the argument from Ignition. The firmware's own pointer has an invalid address, so only the
// right one provisions the machine.
func TestPointerNamedOnTheKernelCommandLine(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{})
	url := r.Serve("pointer.ign", v.Pointer("worker"))
	nowhere := rig.PointerTo("https://10.0.2.2:1", "nowhere", v.Read("tls/ca.crt"))
	node := r.Boot(rig.VM{TPM: tpm, Pointer: nowhere, Cmdline: "ignition.config.url=" + url})
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
}

// coreos-installer stores the pointer in user.ign, and the platform is metal.
func TestPointerLeftByAnInstaller(t *testing.T) {
	r, v, tpm := rig.Enrolled(t, rig.VerifierConfig{})
	node := r.Boot(rig.VM{TPM: tpm, Cmdline: "ignition.platform.id=metal", Initrd: rig.Initrd{
		Extra: map[string]string{"usr/lib/ignition/user.ign": string(v.Pointer("worker"))},
	}})
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
	node.WantNoTokensLeft()
}
