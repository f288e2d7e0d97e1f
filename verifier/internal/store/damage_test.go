// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"os"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// A write runs in a goroutine of the database. An error of the disk that it finds
// there must not end the process.
func TestAttack_T70_DamageUnderARunningVerifierIsAnErrorOfTheCall(t *testing.T) {
	s, path := open(t)
	if err := s.Attest(t.Context(), "uid1", []string{"ek1"}, everyone, become("uid1", "a")); err != nil {
		t.Fatal(err)
	}
	// The first two pages describe the database. All others are lost.
	if err := os.Truncate(path, int64(2*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, recordErr := s.Record(t.Context(), "uid1")
		_, pruneErr := s.Prune(t.Context(), everyone)
		for call, err := range map[string]error{
			"Record": recordErr, "Prune": pruneErr, "AddPending": s.AddPending(t.Context(), start, waiting(1)),
			"Update": s.Update(t.Context(), "uid1", become("uid1", "b")),
			"Attest": s.Attest(t.Context(), "uid1", []string{"ek1"}, everyone, become("uid1", "b")),
		} {
			if err == nil {
				t.Errorf("%s: no error", call)
			} else if d := reason.From(err); d.Code != reason.StoreUnavailable {
				t.Errorf("%s: %v", call, err)
			}
		}
	}
}
