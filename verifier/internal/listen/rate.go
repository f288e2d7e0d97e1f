// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limiter limits the rate of events of each source address.
type Limiter = KeyedLimiter[netip.Addr]

// KeyedLimiter limits the rate of events for each key, such as a source address or a token. It stores a
// limited number of keys. When it is full, it deletes keys whose bucket is full again, or else any
// half, which only makes it more lenient.
type KeyedLimiter[K comparable] struct {
	perSecond float64
	burst     int

	mu      sync.Mutex
	sources map[K]*bucket
}

type bucket struct {
	limiter *rate.Limiter
	last    time.Time
}

// maxSources limits the memory of the limiter to a few megabytes.
const maxSources = 16384

// NewKeyedLimiter allows each key perSecond events with a burst.
func NewKeyedLimiter[K comparable](perSecond float64, burst int) *KeyedLimiter[K] {
	return &KeyedLimiter[K]{perSecond: perSecond, burst: burst, sources: map[K]*bucket{}}
}

// NewLimiterWithBurst allows each source perSecond events with a burst.
func NewLimiterWithBurst(perSecond float64, burst int) *Limiter {
	return NewKeyedLimiter[netip.Addr](perSecond, burst)
}

// NewLimiter allows each source perSecond events with a burst of twice as many.
func NewLimiter(perSecond float64) *Limiter {
	return NewLimiterWithBurst(perSecond, max(int(2*perSecond), 1))
}

// Allow reports whether an event of source is allowed now.
func (l *KeyedLimiter[K]) Allow(now time.Time, source K) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.sources[source]
	if !ok {
		if len(l.sources) >= maxSources {
			l.evict(now)
		}
		b = &bucket{limiter: rate.NewLimiter(rate.Limit(l.perSecond), l.burst)}
		l.sources[source] = b
	}
	b.last = now
	return b.limiter.AllowN(now, 1)
}

// evict deletes the sources whose bucket is full again. If there are none, it deletes any half of the
// sources.
func (l *KeyedLimiter[K]) evict(now time.Time) {
	full := time.Duration(float64(l.burst) / l.perSecond * float64(time.Second))
	for a, b := range l.sources {
		if now.Sub(b.last) > full {
			delete(l.sources, a)
		}
	}
	for a := range l.sources {
		if len(l.sources) <= maxSources/2 {
			return
		}
		delete(l.sources, a)
	}
}
