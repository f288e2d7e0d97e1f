// SPDX-License-Identifier: Apache-2.0

package swtpmtest_test

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
)

// Each machine of a fleet has its own keys, which are the same each time.
func TestFleet(t *testing.T) {
	fleet := swtpmtest.NewFleet(t, 2)
	identity := func(i int) (id attester.Identity) {
		err := fleet.With(i, func(tpm *swtpmtest.FleetConn) error {
			a, err := attester.Open(tpm, attester.Options{Key: attester.ECCP256})
			if err != nil {
				return err
			}
			id = a.Identity()
			return a.Close()
		})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	seen := map[[32]byte]int{}
	for i := range 4 {
		first, second := identity(i), identity(i)
		if first.EKSPKI != second.EKSPKI || string(first.AKName) != string(second.AKName) {
			t.Errorf("machine %d has other keys the second time", i)
		}
		if other, ok := seen[first.EKSPKI]; ok {
			t.Errorf("machines %d and %d have one EK", other, i)
		}
		seen[first.EKSPKI] = i
	}
}
