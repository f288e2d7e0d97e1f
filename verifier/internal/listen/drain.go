// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"time"
)

// drainPoll is the time between two scans of the connections.
const drainPoll = 100 * time.Millisecond

// Drain waits until no open connection has a challenge without an answer, or until ctx ends.
// http.Server.Shutdown closes such a connection immediately, because no request is active on it.
// Meanwhile l accepts connections.
func (l *Limited) Drain(ctx context.Context) {
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for l.owed() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// owed reports whether a connection has a challenge without an answer.
func (l *Limited) owed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		c.mu.Lock()
		owing := c.owing
		c.mu.Unlock()
		if owing {
			return true
		}
	}
	return false
}
