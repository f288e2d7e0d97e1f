// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
)

// A copy of a virtual TPM, or a TPM that was set back to an earlier state, has the same keys and fewer resets.
func TestAttack_T31_ATPMThatWasSetBackIsDenied(t *testing.T) {
	v := newVerifier(t)
	tpm := swtpmtest.Start(t, "sha256")
	earlier := tpm.Clone()
	tpm.Reboot()
	tpm.Reboot()
	n := newNode(t, v, tpm)
	v.enroll("m1", "worker", n.id.EKSPKI)
	if _, err := n.attest(); err != nil {
		t.Fatal("honest:", err)
	}
	first := v.machine("m1").Record.TPM
	if first == nil || first.ResetCount < 3 {
		t.Fatalf("recorded %+v", first)
	}

	v.advance(later)
	if _, err := newNode(t, v, earlier).attest(); err == nil {
		t.Fatal("a copy of the TPM from before two boots was accepted")
	}
	v.wantReason("IdentityConflict")
	if now := v.machine("m1").Record.TPM; *now != *first {
		t.Errorf("the denial changed the counters from %+v to %+v", first, now)
	}

	// The machine itself is not locked out, in the same boot and after another.
	v.advance(later)
	if _, err := n.again(); err != nil {
		t.Fatal("the machine itself:", err)
	}
	v.advance(later)
	tpm.Reboot()
	if _, err := newNode(t, v, tpm).attest(); err != nil {
		t.Fatal("the machine after a reboot:", err)
	}
	r := v.machine("m1").Record
	if r.TPM.ResetCount != first.ResetCount+1 {
		t.Errorf("recorded %+v, then %+v", first, r.TPM)
	}
	if last := r.History[len(r.History)-1].Message; !strings.Contains(last, "1 reset(s) of the TPM since") {
		t.Errorf("history has %q", last)
	}
}
