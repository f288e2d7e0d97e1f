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
func wantProvisioned(t *testing.T, v *rig.Verifier, node *rig.Node, pcr11 []byte) {
	t.Helper()
	node.WantProvisioned()
	if got := node.ReadFile("/etc/provisioned"); got != "for worker" {
		t.Errorf("the disk has %q", got)
	}
	if left := node.TokensLeft(); len(left) > 0 {
		t.Errorf("a token was left in %s", strings.Join(left, ", "))
	}
	if rec := v.WantRecord("worker-0", "Fetched"); rec.Record.Token == nil || rec.Record.Token.Uses != 1 {
		t.Errorf("the record has %+v", rec.Record)
	}
	if got, want := strings.ToLower(node.PCR11()), fmt.Sprintf("%x", pcr11); got != want {
		t.Errorf("PCR 11 in the real root is %s, want %s", got, want)
	}
	for _, program := range []string{"systemd 257", "NetworkManager (version 1.5"} {
		if !strings.Contains(node.Journal(), program) {
			t.Errorf("the journal does not contain %s", program)
		}
	}
}

// capped is PCR 11 after a boot without a unified kernel image.
func capped() []byte {
	return eventlog.Extend(eventlog.SHA256, make([]byte, 32), measuredboot.CapDigest(eventlog.SHA256))
}

func TestDebian13IsProvisioned(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	v := r.Verifier(rig.VerifierConfig{})
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker"), Initrd: initrd})
	wantProvisioned(t, v, node, capped())
}
