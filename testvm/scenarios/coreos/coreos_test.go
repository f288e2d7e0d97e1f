// SPDX-License-Identifier: Apache-2.0

// Package coreos boots a stand-in for Fedora CoreOS and RHCOS: their units, NetworkManager that starts
// only when Ignition needs the network, a root file system that OSTree deployed, and the pointer config
// on the boot file system. The agent comes from dracut/boot.sh.
package coreos

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func wantCapped(t *testing.T, node *rig.Node) {
	t.Helper()
	capped := eventlog.Extend(eventlog.SHA256, make([]byte, sha256.Size), measuredboot.CapDigest(eventlog.SHA256))
	if got := strings.ToLower(node.PCR11()); got != fmt.Sprintf("%x", capped) {
		t.Errorf("PCR 11 in the real root is %s, not capped", got)
	}
}

const policy = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: default
spec:
  pools: ["*"]
  tpm2:
    profile: release
`

// The first boot is through shim and GRUB under Secure Boot. The reference values come from the files of
// the image, after boot.sh.
func TestStandInAttestsOnItsFirstBootAndCapsOnALaterOne(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{Policy: policy, Stopped: true})
	disk := r.NewCoreOSDisk(v.Pointer("worker"))
	disk.AddAgent()
	v.Write("reference-values/coreos.yaml", v.Tool("refvals", "--name", "coreos", "--boot", disk.BootFiles()))
	v.Start()
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	node := r.Boot(rig.VM{Name: "first", TPM: tpm, CoreOS: disk, SecureBoot: true})
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
	node.WantOrder(
		"coreos-ignition-setup-user.service",
		"ignition-fetch-offline.service",
		"coreos-enable-network.service",
		"nm-initrd.service",
		"mcs-attest.service",
		"ignition-fetch.service",
		"mcs-attest-scrub.service",
		"ignition-disks.service",
		"sysroot.mount",
		"ostree-prepare-root.service",
		"ignition-ostree-mount-var.service",
		"ignition-files.service",
		"coreos-boot-edit.service",
	)
	wantCapped(t, node)
	node.WantNoTokensLeft()

	decisions := len(v.Audit())
	later := r.Boot(rig.VM{Name: "later", TPM: tpm, CoreOS: disk})
	later.WantProvisioned()
	later.WantOrder("ostree-prepare-root.service", "mcs-attest-cap.service")
	wantCapped(t, later)
	if got := v.Audit()[decisions:]; len(got) > 0 {
		t.Errorf("a later boot asked the verifier: %v", got)
	}
	for _, n := range []*rig.Node{node, later} {
		if cycle := regexp.MustCompile(`.*ordering cycle.*`).FindString(n.Journal()); cycle != "" {
			t.Error(cycle)
		}
	}
	if unit := regexp.MustCompile(`systemd\[1\]: Start(ing|ed) (mcs-attest|ignition-.*|nm-initrd)\.service`).FindString(
		later.Journal()); unit != "" {
		t.Errorf("on a later boot: %s", unit)
	}
}
