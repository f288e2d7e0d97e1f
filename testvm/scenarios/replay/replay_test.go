// Package replay puts somebody between the node and the verifier, who passes
// everything on and keeps what he sees.
package replay

import (
	"fmt"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const attest = "/mcsattest.v1.Attestation/Attest"

// policy lets TLS end at a front end whose key is listed.
func policy(key string) string {
	return fmt.Sprintf(`apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: default
spec:
  pools: ["*"]
  binding: Terminated
  frontEndKeys: [%q]
`, key)
}

// The honest variant comes first: through the front end that the policy lists,
// the machine is provisioned. Then the very bytes that were accepted come again.
func TestAttack_T44_EvidenceOfARealBootIsRefusedASecondTime(t *testing.T) {
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

// A thief in the middle, whose certificate the node's own pointer trusts: under
// the default binding the evidence belongs to the node's connection, and is
// worthless on his.
func TestAttack_T25_EvidenceFromAnotherConnectionIsRefused(t *testing.T) {
	r := rig.New(t)
	thief := r.NewRelay()
	v := r.Verifier(rig.VerifierConfig{Origins: []string{thief.Origin()}})
	thief.To(v)
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	node := r.Boot(rig.VM{TPM: tpm, Pointer: thief.Pointer("worker")})
	v.WaitAudit("attest", "denied", "BindingMismatch")
	node.Kill()
	v.WantNoAudit("attest", "allowed", "")
	v.WantRecord("worker-0", "")

	// The honest variant: the same machine, nobody in between.
	honest := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker")})
	honest.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
}
