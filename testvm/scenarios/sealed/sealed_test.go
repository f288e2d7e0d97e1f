// SPDX-License-Identifier: Apache-2.0

// Package sealed boots machines with a volume that systemd-cryptenroll sealed to PCR 11.
package sealed

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
	"github.com/mcs-attest/mcs-attest/pkg/measuredboot"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// printVolumes runs in the real root.
var printVolumes = map[string]string{
	"etc/rig-again": "#!/bin/sh\nfor name in /sys/block/dm-*/dm/name; do echo \"rig: volume $(cat $name)\"; done\n",
}

func wantOpen(t *testing.T, node *rig.Node) {
	t.Helper()
	if !node.Said(`^rig: volume sealed`) {
		t.Errorf("the volume is not open:\n%s", node.Console())
	}
}

func digest(data []byte) string { return fmt.Sprintf("sha256=%x", sha256.Sum256(data)) }

// Without a unified kernel image, PCR 11 is zero until the agent caps it, on each boot.
func TestSealedVolumeOpensBeforeTheCapOnFirstAndLaterBoots(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{})
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	// SeaBIOS measures only the separator into PCR 7.
	volume := r.Seal(tpm, "7+11", "7:"+digest([]byte{0xff, 0xff, 0xff, 0xff}))
	vm := rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Initrd: rig.Initrd{Sealed: true}, Volume: volume,
		Cmdline: rig.OpenSealed, Root: printVolumes}
	node := r.Boot(vm)
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
	wantOpen(t, node)
	vm.LaterBoot = true
	later := r.Boot(vm)
	later.Wait()
	wantOpen(t, later)
	zero := make([]byte, 32)
	want := fmt.Sprintf("%x", eventlog.Extend(eventlog.SHA256, zero, measuredboot.CapDigest(eventlog.SHA256)))
	for _, n := range []*rig.Node{node, later} {
		if got := strings.ToLower(n.PCR11()); got != want {
			t.Errorf("PCR 11 in the real root is %s, not capped", got)
		}
	}
}

// In a measured unified kernel image with systemd-pcrphase, the agent does not extend PCR 11: it has
// the value that systemd-measure predicts for the phase leave-initrd. The verifier accepts the phase
// enter-initrd.
func TestUnifiedKernelImageWithPhasesIsLeftToSystemd(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{Stopped: true})
	image := rig.UKI{Initrd: rig.Initrd{Sealed: true}, Cmdline: rig.OpenSealed}
	path := r.BuildUKI(image)
	v.Write("reference-values/good.yaml", v.Tool("refvals", "--name", "good", "--uki", path))
	v.Start()
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)

	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	refs, err := measuredboot.FromUKI("good", file, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	var extensions []string
	for _, s := range refs.Sections {
		extensions = append(extensions, "11:"+digest([]byte(s.Name+"\x00")), fmt.Sprintf("11:sha256=%x", []byte(s.SHA256)))
	}
	extensions = append(extensions, "11:"+digest([]byte(measuredboot.EnterInitrd)))

	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), UKI: &image, Volume: r.Seal(tpm, "11", extensions...),
		Root: printVolumes})
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
	wantOpen(t, node)
	entered, err := measuredboot.SectionsPCR11(eventlog.SHA256, refs.Sections, measuredboot.EnterInitrd)
	if err != nil {
		t.Fatal(err)
	}
	left := eventlog.Extend(eventlog.SHA256, entered, eventlog.Hash(eventlog.SHA256, []byte("leave-initrd")))
	if got, want := strings.ToLower(node.PCR11()), fmt.Sprintf("%x", left); got != want {
		t.Errorf("PCR 11 in the real root is %s, want %s", got, want)
	}
}
