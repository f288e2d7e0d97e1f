// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Turns shares the processors among sources. A fixed number of requests runs at one time and the others
// wait. The sources in the queue are served round-robin. Unlike a rate limit, it rejects no request for
// which there is time.
type Turns struct {
	wait time.Duration

	mu      sync.Mutex
	free    int
	waiting map[netip.Addr][]chan struct{} // by source, oldest first; closing a channel gives the turn
	order   []netip.Addr                   // the sources in waiting; the next one first
}

// NewTurns allows n requests at one time. A request waits for at most wait.
func NewTurns(n int, wait time.Duration) *Turns {
	return &Turns{wait: wait, free: n, waiting: map[netip.Addr][]chan struct{}{}}
}

// Acquire waits for a turn of source. The caller must call done at the end. The error is a denial,
// RateLimited.
func (t *Turns) Acquire(ctx context.Context, source netip.Addr) (done func(), err error) {
	done = sync.OnceFunc(t.next)
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return done, nil
	}
	mine := make(chan struct{})
	if len(t.waiting[source]) == 0 {
		t.order = append(t.order, source)
	}
	t.waiting[source] = append(t.waiting[source], mine)
	t.mu.Unlock()
	timeout := time.NewTimer(t.wait)
	defer timeout.Stop()
	select {
	case <-mine:
		return done, nil
	case <-ctx.Done():
	case <-timeout.C:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-mine: // the turn arrived at the last moment
		return done, nil
	default:
	}
	t.leave(source, slices.Index(t.waiting[source], mine))
	return nil, reason.Deny(reason.RateLimited, "no turn within %v; others of source %s wait", t.wait, source)
}

// next gives a turn that has ended to the next source.
func (t *Turns) next() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) == 0 {
		t.free++
		return
	}
	source := t.order[0]
	t.order = append(t.order[1:], source) // to the end of the queue
	close(t.waiting[source][0])
	t.leave(source, 0)
}

// leave removes the i-th request of a source from the queue.
func (t *Turns) leave(source netip.Addr, i int) {
	left := slices.Delete(t.waiting[source], i, i+1)
	if len(left) > 0 {
		t.waiting[source] = left
		return
	}
	delete(t.waiting, source)
	t.order = slices.DeleteFunc(t.order, func(a netip.Addr) bool { return a == source })
}
