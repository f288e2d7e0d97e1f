package listen

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limiter bounds how often each source address may do something.
type Limiter = KeyedLimiter[netip.Addr]

// KeyedLimiter bounds how often something may happen for each key, such as a source
// address or a token. It remembers a bounded number of keys; when it is full it
// deletes those that have been quiet longest, which only makes it more lenient to them.
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

// maxSources bounds the limiter's memory to a few megabytes.
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

// Allow reports whether it may happen for source now.
func (l *KeyedLimiter[K]) Allow(now time.Time, source K) bool {
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
func (l *KeyedLimiter[K]) forget(now time.Time) {
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
