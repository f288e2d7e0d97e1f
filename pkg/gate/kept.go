package gate

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// The Machine Config Server renders a config for each request, HEAD included. A
// boot asks twice: the agent with HEAD, and then Ignition with GET. The gate
// therefore keeps the answer that a HEAD brought, for the GET that follows. It
// keeps nothing for a GET.

const (
	// keptFor is the time from the agent's HEAD to Ignition's GET, on a slow machine.
	keptFor = 30 * time.Second
	// maxKept and maxKeptBytes bound what is in memory. A config has about 1 MB.
	maxKept      = 16
	maxKeptBytes = 32 << 20
)

// question is what an upstream's answer depends on: the pool and the Accept
// header. Old servers read the User-Agent of a client that names no version. They
// read only the first line of a header, so the lines count one by one.
type question [sha256.Size]byte

func questionOf(r *request) question {
	parts := [][]string{{r.pool}, r.Header.Values("Accept")}
	if len(specversion.ParseAccept(r.Header.Get("Accept"))) == 0 {
		parts = append(parts, r.Header.Values("User-Agent"))
	}
	if r.decision.Outcome == "pre-approved" {
		parts = append(parts, nil, []string{r.decision.Outcome}) // another upstream
	}
	return sha256.Sum256(fmt.Appendf(nil, "%q", parts))
}

// kept holds answers that passed every check, the oldest first.
type kept struct {
	mu      sync.Mutex
	answers []keptAnswer
	bytes   int
}

type keptAnswer struct {
	question question
	at       time.Time
	answer   answer
}

// get returns a copy of the answer, or nil.
func (k *kept) get(q question, now time.Time) *answer {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expire(now)
	for i := range k.answers {
		if k.answers[i].question == q {
			a := k.answers[i].answer
			return &a
		}
	}
	return nil
}

func (k *kept) put(q question, now time.Time, a *answer) {
	if a.size() > maxKeptBytes {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expire(now)
	k.answers = append(k.answers, keptAnswer{q, now, *a})
	k.bytes += a.size()
	for len(k.answers) > maxKept || k.bytes > maxKeptBytes {
		k.dropOldest()
	}
}

// expire drops what is too old, and what is from the future, since the clock was set back.
func (k *kept) expire(now time.Time) {
	for len(k.answers) > 0 {
		if age := now.Sub(k.answers[0].at); age >= 0 && age <= keptFor {
			return
		}
		k.dropOldest()
	}
}

func (k *kept) dropOldest() {
	k.bytes -= k.answers[0].answer.size()
	k.answers[0] = keptAnswer{} // the config leaves the memory
	k.answers = k.answers[1:]
}
