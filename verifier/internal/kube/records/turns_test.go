// SPDX-License-Identifier: Apache-2.0

package records

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestTurns(t *testing.T) {
	var all turns
	var n int // guarded by the turn
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			leave, err := all.enter(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			n++
			leave()
		})
	}
	wg.Wait()
	if n != 100 {
		t.Errorf("%d turns", n)
	}
	leave, err := all.enter(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := all.enter(impatient, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("a second one: %v", err)
	}
	if other, err := all.enter(t.Context(), "b"); err != nil {
		t.Errorf("elsewhere: %v", err)
	} else {
		other()
	}
	leave()
	if len(all.busy) != 0 {
		t.Errorf("%d keys are remembered", len(all.busy))
	}
}
