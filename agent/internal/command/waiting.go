// SPDX-License-Identifier: Apache-2.0

package command

import (
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/console"
	"github.com/mcs-attest/mcs-attest/agent/internal/flow"
)

const (
	// repeatLine is the interval at which the same reason is printed again.
	repeatLine = time.Minute
	// maxReasons limits how many different reasons are remembered.
	maxReasons = 64
)

// waiting prints why the pointer config cannot be read yet. It prints each new reason immediately
// and repeats it every minute. Several reasons can be active, because some platforms have several
// sources.
type waiting struct {
	console *console.Console
	now     func() time.Duration // monotonic

	mu      sync.Mutex
	printed map[string]time.Duration
}

func newWaiting(c *console.Console) *waiting {
	start := time.Now()
	now := func() time.Duration { return time.Since(start) }
	return &waiting{console: c, now: now, printed: map[string]time.Duration{}}
}

func (w *waiting) because(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	reason, now := flow.Reason(err), w.now()
	if last, ok := w.printed[reason]; ok && now-last < repeatLine {
		return
	}
	if len(w.printed) >= maxReasons {
		clear(w.printed)
	}
	w.printed[reason] = now
	w.console.Again("the pointer config cannot be read yet: %v; trying again", err)
	w.console.Hint(faultHint(err))
}
