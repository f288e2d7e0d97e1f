// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
)

// What the load tests attest with is accepted like any machine, and is refused
// if it is not enrolled.
func TestLoadNodesAttest(t *testing.T) {
	v := newVerifier(t)
	fleet, err := newFleetKeys(swtpmtest.NewFleet(t, 2), 7)
	if err != nil {
		t.Fatal(err)
	}
	soft, err := newSoftKeys()
	if err != nil {
		t.Fatal(err)
	}
	for name, keys := range map[string]nodeKeys{"fleet": fleet, "soft": soft} {
		n := loadNode{addr: v.addr, origin: testOrigin, roots: v.roots, pool: "worker", keys: keys}
		if _, _, err := n.attest(t.Context()); err == nil {
			t.Errorf("%s: accepted before it was enrolled", name)
		}
		_, _, spki, _ := keys.public()
		v.enroll(name, "worker", spki)
		token, _, err := n.attest(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if status, _, body := v.fetch("GET", "/config/worker", token); status != 200 || body != fullConfig {
			t.Errorf("%s: the gate answers %d", name, status)
		}
	}
}
