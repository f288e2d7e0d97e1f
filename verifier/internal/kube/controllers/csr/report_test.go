// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"testing"
	"time"
)

func TestBudgetIsOfEachMachine(t *testing.T) {
	b, start := newBudget(), time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	allowed := func(of string, at time.Time) (n int) {
		for range 100 {
			if b.Allow(at, of) {
				n++
			}
		}
		return n
	}
	if n := allowed("a", start); n != refusalsBurst {
		t.Errorf("%d immediate writes", n)
	}
	if n := allowed("b", start); n != refusalsBurst {
		t.Errorf("%d immediate writes for another", n)
	}
	if n := allowed("a", start.Add(refusalsEvery)); n != 1 {
		t.Errorf("%d writes after a pause", n)
	}
}
