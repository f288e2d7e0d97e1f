package listen

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Turns shares the processors among sources: so many requests work at once, the
// others wait, and each source in the queue gets every n-th turn. Unlike a rate it
// refuses no request that there is time for.
type Turns struct {
	wait time.Duration

	mu      sync.Mutex
	free    int
	waiting map[netip.Addr][]chan struct{} // by source, oldest first; closed to give the turn
	order   []netip.Addr                   // the sources of waiting; the next one first
}

// NewTurns returns n turns; a request waits for one for at most wait.
func NewTurns(n int, wait time.Duration) *Turns {
	return &Turns{wait: wait, free: n, waiting: map[netip.Addr][]chan struct{}{}}
}

// Take waits for a turn of source. The caller ends it with done. The error, a
// denial, is RateLimited.
func (t *Turns) Take(ctx context.Context, source netip.Addr) (done func(), err error) {
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
	case <-mine: // it came at the last moment
		return done, nil
	default:
	}
	t.leave(source, slices.Index(t.waiting[source], mine))
	return nil, reason.Deny(reason.RateLimited, "no turn within %v; others of source %s wait", t.wait, source)
}

// next gives the turn that ends to the next source.
func (t *Turns) next() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) == 0 {
		t.free++
		return
	}
	source := t.order[0]
	t.order = append(t.order[1:], source) // it is last now
	close(t.waiting[source][0])
	t.leave(source, 0)
}

// leave takes the i-th of a source out of the queue.
func (t *Turns) leave(source netip.Addr, i int) {
	left := slices.Delete(t.waiting[source], i, i+1)
	if len(left) > 0 {
		t.waiting[source] = left
		return
	}
	delete(t.waiting, source)
	t.order = slices.DeleteFunc(t.order, func(a netip.Addr) bool { return a == source })
}
