// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
)

// The verifier in strict FIPS 140 mode attests a machine and serves its config (status row E16). In this mode Go's
// cryptography rejects every algorithm that is not approved, and does nothing without its module.
func TestFIPS_VerifierAttestsInStrictMode(t *testing.T) {
	p := newProcess(t)
	p.env = []string{"GODEBUG=fips140=only"}
	p.v.write("configs/worker.ign", fullConfig)
	p.start()
	n := newNode(t, p.v, swtpmtest.Start(t, "sha256"))
	p.v.write("attestations/m1.yaml", enrolment("m1", "  pool: worker\n", n.id.EKSPKI))
	p.kill()
	p.start()
	n.connect()
	res, err := n.attest()
	if err != nil {
		t.Fatalf("%v\n%s", err, p.log)
	}
	if status, _, body := p.v.fetch(http.MethodGet, "/config/worker", res.GetToken()); status != http.StatusOK ||
		body != fullConfig {
		t.Errorf("the gate answers %d %s\n%s", status, body, p.log)
	}
	if status, _, _ := p.v.fetch(http.MethodGet, "/config/worker", ""); status != http.StatusUnauthorized {
		t.Errorf("without a token the gate answers %d", status)
	}
	// It ran in this mode: the challenge is sealed with AES-GCM.
	if sealed := n.challenge.GetSealed(); len(sealed) == 0 || sealed[0] != 2 {
		t.Errorf("the challenge is sealed with algorithm %x", sealed[:min(1, len(sealed))])
	}
}
