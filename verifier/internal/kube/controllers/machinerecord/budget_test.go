// SPDX-License-Identifier: Apache-2.0

package machinerecord

import (
	"fmt"
	"testing"
	"time"
)

func TestBudget_TurnsAreInOrderAndKept(t *testing.T) {
	b := newBudget(10, 100)
	now := time.Now()
	free := 0
	var last time.Duration
	for i := range 100 {
		release, pause := b.acquire(fmt.Sprint(i), now)
		if release != nil {
			free++
			continue
		}
		if pause <= last {
			t.Fatalf("request %d waits %v, the one before %v", i, pause, last)
		}
		last = pause
	}
	if want := 21; free != want { // the burst
		t.Errorf("%d had a turn immediately, want %d", free, want)
	}
	if want := 7900 * time.Millisecond; last.Round(100*time.Millisecond) != want {
		t.Errorf("the last one waits %v, want %v", last, want)
	}
	// One that comes early, because of an event, keeps its turn.
	_, again := b.acquire("99", now.Add(time.Second))
	if want := last - time.Second; again.Round(time.Millisecond) != want.Round(time.Millisecond) {
		t.Errorf("it waits %v, want %v", again, want)
	}
	if release, pause := b.acquire("99", now.Add(last)); release == nil {
		t.Errorf("its turn came, and it waits %v", pause)
	}
}

func TestBudget_SlotsBoundWhatRunsAtOneTime(t *testing.T) {
	b := newBudget(1000, 1)
	now := time.Now()
	release, _ := b.acquire("a", now)
	if release == nil {
		t.Fatal("the first one waits")
	}
	other, pause := b.acquire("b", now)
	if other != nil || pause < retrySlot {
		t.Errorf("two at one time, or a pause of %v", pause)
	}
	release()
	if other, _ = b.acquire("b", now.Add(pause)); other == nil {
		t.Error("the slot is free, and it waits")
	}
	b.cancel("c")
	if len(b.turns) != 0 {
		t.Errorf("%d turns are left", len(b.turns))
	}
}
