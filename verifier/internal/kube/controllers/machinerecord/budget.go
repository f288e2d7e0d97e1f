// SPDX-License-Identifier: Apache-2.0

package machinerecord

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// budget limits bookkeeping. A request reserves a turn and is requeued until then, so that it blocks no
// worker.
type budget struct {
	writesPerSecond float64
	concurrent      int

	mu    sync.Mutex
	rate  *rate.Limiter
	slots chan struct{}        // one for each concurrent write
	turns map[string]time.Time // by UID
}

// retrySlot is the minimum pause of a request whose turn came while all slots were in use.
const retrySlot = 100 * time.Millisecond

func newBudget(writesPerSecond float64, concurrent int) *budget {
	b := &budget{writesPerSecond: writesPerSecond, concurrent: concurrent}
	b.reset()
	return b
}

// reset makes the budget full. A write of before may still end: controller-runtime does not wait for the workers of a
// manager that lost its lease.
func (b *budget) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rate = rate.NewLimiter(rate.Limit(b.writesPerSecond), int(2*b.writesPerSecond)+1)
	b.slots, b.turns = make(chan struct{}, b.concurrent), map[string]time.Time{}
}

// acquire returns a function that ends the write, or the time that the request must wait.
func (b *budget) acquire(uid string, now time.Time) (release func(), pause time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, reserved := b.turns[uid]
	if !reserved {
		at = b.reserve(now)
	}
	if !at.After(now) {
		slots := b.slots
		select {
		case slots <- struct{}{}:
			delete(b.turns, uid)
			return func() { <-slots }, 0
		default:
			at = now.Add(max(b.reserve(now).Sub(now), retrySlot))
		}
	}
	b.turns[uid] = at
	return nil, at.Sub(now)
}

func (b *budget) reserve(now time.Time) time.Time {
	return now.Add(b.rate.ReserveN(now, 1).DelayFrom(now))
}

// cancel deletes the turn of a request that no longer needs it.
func (b *budget) cancel(uid string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.turns, uid)
}
