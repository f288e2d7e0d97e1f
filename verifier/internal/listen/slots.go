// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net/netip"
	"sync"
)

// Slots limits the number of long answers at a time, of each source and of all sources. Unlike [Turns], it rejects
// what has no slot.
type Slots struct {
	total, perSource int

	mu   sync.Mutex
	used int
	held map[netip.Addr]int // parts of used, by source
}

// NewSlots allows total answers at a time, and perSource of one source.
func NewSlots(total, perSource int) *Slots {
	return &Slots{total: total, perSource: perSource, held: map[netip.Addr]int{}}
}

// Acquire reports whether source has a slot now. If so, the caller must call done at the end.
func (s *Slots) Acquire(source netip.Addr) (done func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[source] >= s.perSource || s.used >= s.total {
		return nil, false
	}
	s.held[source]++
	s.used++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.used--
		if s.held[source]--; s.held[source] == 0 {
			delete(s.held, source)
		}
	}), true
}
