// SPDX-License-Identifier: Apache-2.0

// Package rotation replaces the serving certificate and the token-signing key between a machine's
// attestation and its fetch.
package rotation

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

func TestCertificateAndTokenKeyRotatedDuringABoot(t *testing.T) {
	r := rig.New(t)
	mcs := r.NewMCS(map[string]string{"worker": rig.Config("by the MCS behind")})
	mcs.SetDown(true)
	v := r.Verifier(rig.VerifierConfig{Upstream: mcs, Extra: "keyPublishDelay: 1s\n"})
	tpm := r.NewTPM()
	v.Enroll("worker-0", "worker", tpm)
	node := r.Boot(rig.VM{TPM: tpm, Pointer: v.Pointer("worker")})

	// The machine has a token of the old key and waits for the gate, which has no config to serve.
	v.WaitAudit("attest", "allowed", "")
	v.WaitAudit("fetch", "denied", "UpstreamUnavailable")
	before := v.Leaf()
	v.RotateCertificate()
	v.Run("token", "rotate", "--wait", "10m")
	if v.WaitLeaf(before) == before {
		t.Fatal("the certificate did not change")
	}
	mcs.SetDown(false)
	node.WantProvisioned()
	v.WantRecord("worker-0", "Fetched")
}
