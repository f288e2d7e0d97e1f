// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"time"
)

// drainPoll is the time between two scans of the connections.
const drainPoll = 100 * time.Millisecond

// Drain waits until no open connection has a Challenge in progress, a valid challenge without an answer, or a client
// that attested and has no certificate yet, or until ctx ends. http.Server.Shutdown closes such a connection, because
// no request is active on it. Meanwhile l accepts connections.
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

// owed reports whether a client needs its connection, or will need it.
func (l *Limited) owed() bool {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		c.mu.Lock()
		owing := c.challenging || now.Before(c.owing)
		c.mu.Unlock()
		if owing {
			return true
		}
	}
	return false
}
