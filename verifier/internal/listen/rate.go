package listen

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limiter bounds how often each source address may do something. It remembers a
// bounded number of sources; when it is full the ones that have been quiet
// longest are forgotten, which only ever makes it more lenient to them.
type Limiter struct {
	perSecond float64
	burst     int

	mu      sync.Mutex
	sources map[netip.Addr]*bucket
}

type bucket struct {
	limiter *rate.Limiter
	last    time.Time
}

// maxSources bounds the limiter's memory to a few megabytes.
const maxSources = 16384

// NewLimiterWithBurst allows each source perSecond events with a burst.
func NewLimiterWithBurst(perSecond float64, burst int) *Limiter {
	l := NewLimiter(perSecond)
	l.burst = burst
	return l
}

// NewLimiter allows each source perSecond events with a burst of twice as many.
func NewLimiter(perSecond float64) *Limiter {
	return &Limiter{perSecond: perSecond, burst: max(int(2*perSecond), 1), sources: map[netip.Addr]*bucket{}}
}

// Allow reports whether source may do it now.
func (l *Limiter) Allow(now time.Time, source netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.sources[source]
	if !ok {
		if len(l.sources) >= maxSources {
			l.forget(now)
		}
		b = &bucket{limiter: rate.NewLimiter(rate.Limit(l.perSecond), l.burst)}
		l.sources[source] = b
	}
	b.last = now
	return b.limiter.AllowN(now, 1)
}

// forget drops the sources whose bucket has filled up again, and if there are
// none of those, any half of them.
func (l *Limiter) forget(now time.Time) {
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
