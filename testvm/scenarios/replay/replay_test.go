// SPDX-License-Identifier: Apache-2.0

// Package replay puts a relay between the node and the verifier that forwards and records
// everything.
package replay

import (
	"fmt"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const attest = "/mcsattest.v1.Attestation/Attest"

// policy allows a front end whose key is listed to terminate TLS.
func policy(key string) string {
	return fmt.Sprintf(`apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: default
spec:
  pools: ["*"]
  binding: Terminated
  frontEndKeys: [%q]
  challengeLifetime: 10m # the replay comes after the boot
`, key)
}

// First the valid case: through the listed front end the machine is provisioned. Then the same
// bytes are sent again.
func TestAttack_T44_ReplayedEvidenceIsDenied(t *testing.T) {
	r := rig.New(t)
	front := r.NewRelay()
	v := r.Verifier(rig.VerifierConfig{Origins: []string{front.Origin()}, Policy: policy(front.KeySHA256())})
	front.To(v)
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	node := r.Boot(rig.VM{TPM: tpm, Pointer: front.Pointer("worker")})
	node.WantProvisioned()
	rec := v.WantRecord("worker-0", "Fetched")

	if status, body := front.Replay(front.Last(attest)); status == 200 {
		t.Fatalf("the replayed evidence was accepted: %s", body)
	}
	v.WantAudit("attest", "denied", "ChallengeUsed")
	if again := v.WantRecord("worker-0", "Fetched"); again.Record.Token.ID != rec.Record.Token.ID {
		t.Error("the replay changed the record's token")
	}
}

// An attacker in the middle, whose certificate the node's pointer config trusts. Under the default
// binding the evidence belongs to the node's connection and is useless on the attacker's.
func TestAttack_T25_EvidenceFromAnotherConnectionIsDenied(t *testing.T) {
	r := rig.New(t)
	attacker := r.NewRelay()
	v := r.Verifier(rig.VerifierConfig{Origins: []string{attacker.Origin()}})
	attacker.To(v)
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	node := r.Boot(rig.VM{TPM: tpm, Pointer: attacker.Pointer("worker")})
	v.WaitAudit("attest", "denied", "BindingMismatch")
	node.Kill()
	v.WantNoAudit("attest", "allowed", "")
	v.WantRecord("worker-0", "")

	// The valid case: the same machine without the relay.
	honest := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker")})
	honest.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
}
