// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"fmt"
	"testing"
	"time"
)

func TestBudgetIsOfEachMachine(t *testing.T) {
	b, start := newBudget(), time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	allowed := func(of string, at time.Time) (n int) {
		for range 100 {
			if b.allow(of, at) {
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
	for i := range 3 * b.max {
		b.allow(fmt.Sprint(i), start)
	}
	if len(b.of) > b.max {
		t.Errorf("%d machines are remembered", len(b.of))
	}
}
