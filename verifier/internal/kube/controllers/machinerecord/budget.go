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
	rate  *rate.Limiter
	slots chan struct{} // one for each concurrent write

	mu    sync.Mutex
	turns map[string]time.Time // by UID
}

// retrySlot is the minimum pause of a request whose turn came while all slots were in use.
const retrySlot = 100 * time.Millisecond

func newBudget(writesPerSecond float64, concurrent int) *budget {
	return &budget{
		rate: rate.NewLimiter(rate.Limit(writesPerSecond), int(2*writesPerSecond)+1), slots: make(chan struct{}, concurrent),
		turns: map[string]time.Time{},
	}
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
		select {
		case b.slots <- struct{}{}:
			delete(b.turns, uid)
			return func() { <-b.slots }, 0
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
