package command

import (
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/console"
)

const (
	// repeatLine is how often a machine that waits says so.
	repeatLine = time.Minute
	// maxReasons bounds what is remembered of reasons whose text changes.
	maxReasons = 64
)

// waiting says why the pointer config cannot be read yet: each reason at once,
// and again every minute while it stays. There may be several at a time, since
// some platforms have several sources.
type waiting struct {
	console *console.Console
	now     func() time.Duration // monotonic

	mu   sync.Mutex
	said map[string]time.Duration
}

func newWaiting(c *console.Console) *waiting {
	start := time.Now()
	return &waiting{console: c, now: func() time.Duration { return time.Since(start) }, said: map[string]time.Duration{}}
}

func (w *waiting) because(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	reason, now := err.Error(), w.now()
	if last, ok := w.said[reason]; ok && now-last < repeatLine {
		return
	}
	if len(w.said) >= maxReasons {
		clear(w.said)
	}
	w.said[reason] = now
	w.console.Again("the pointer config cannot be read yet: %v; trying again", err)
	w.console.Hint(faultHint(err))
}
