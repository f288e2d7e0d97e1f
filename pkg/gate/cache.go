// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// The Machine Config Server renders a config for each request, even for HEAD. A boot
// makes two requests: HEAD by the agent, then GET by Ignition. So the gate caches the
// response to HEAD for the following GET. It caches no response to GET.

const (
	// cacheFor covers the time from the agent's HEAD to Ignition's GET on a slow machine.
	cacheFor = 30 * time.Second
	// maxCached and maxCachedBytes limit the memory. A config has about 1 MB.
	maxCached      = 16
	maxCachedBytes = 32 << 20
)

// cacheKey is a digest of what the upstream's response depends on: the pool, the Accept
// header, and for a client that names no version also the User-Agent. Servers read only
// the first line of a header, so the lines are kept apart.
type cacheKey [sha256.Size]byte

func cacheKeyOf(r *request) cacheKey {
	parts := [][]string{{r.pool}, r.Header.Values("Accept")}
	if len(specversion.ParseAccept(r.Header.Get("Accept"))) == 0 {
		parts = append(parts, r.Header.Values("User-Agent"))
	}
	if r.decision.Outcome == "pre-approved" {
		parts = append(parts, nil, []string{r.decision.Outcome}) // another upstream
	}
	return sha256.Sum256(fmt.Appendf(nil, "%q", parts))
}

// cache has responses that passed every check, oldest first.
type cache struct {
	mu      sync.Mutex
	answers []cachedAnswer
	bytes   int
}

type cachedAnswer struct {
	key    cacheKey
	at     time.Time
	answer answer
}

// get returns a copy of the answer, or nil.
func (k *cache) get(q cacheKey, now time.Time) *answer {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expire(now)
	for i := range k.answers {
		if k.answers[i].key == q {
			a := k.answers[i].answer
			return &a
		}
	}
	return nil
}

func (k *cache) put(q cacheKey, now time.Time, a *answer) {
	if a.size() > maxCachedBytes {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answers = append(k.answers, cachedAnswer{q, now, *a})
	k.bytes += a.size()
	for len(k.answers) > maxCached || k.bytes > maxCachedBytes {
		k.dropOldest()
	}
}

// expire removes old entries, and entries with a future time, because the clock was set back.
func (k *cache) expire(now time.Time) {
	for len(k.answers) > 0 {
		if age := now.Sub(k.answers[0].at); age >= 0 && age <= cacheFor {
			return
		}
		k.dropOldest()
	}
}

func (k *cache) dropOldest() {
	k.bytes -= k.answers[0].answer.size()
	k.answers = slices.Delete(k.answers, 0, 1) // this releases the config's memory
}
