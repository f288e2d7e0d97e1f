// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// Only a connection with a Challenge in progress, or with a valid challenge and without its answer, delays the end.
func TestDrain_WaitsForAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		owed   time.Duration               // 0: the Challenge is in progress
		during func(net.Conn, *Connection) // after one second; nil: nothing happens
		want   time.Duration
	}{
		"the Challenge fails":       {0, func(_ net.Conn, c *Connection) { c.Challenging(false) }, time.Second},
		"the challenge expires":     {2 * time.Second, nil, 2 * time.Second},
		"the client answers":        {time.Minute, func(_ net.Conn, c *Connection) { c.Answered(false) }, time.Second},
		"it asks for a certificate": {time.Minute, func(_ net.Conn, c *Connection) { c.Answered(true) }, 5 * time.Second},
		"it has its certificate": {time.Minute, func(_ net.Conn, c *Connection) {
			c.Answered(true)
			c.Certified()
		}, time.Second},
		"the connection closes":      {time.Minute, func(conn net.Conn, _ *Connection) { _ = conn.Close() }, time.Second},
		"the client does not answer": {time.Minute, nil, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := pipes{next: make(chan net.Conn)}
				limited := Limit(l, 10, nil)
				accept := func() (net.Conn, *Connection) {
					go func() { _ = l.dial() }()
					conn, err := limited.Accept()
					if err != nil {
						t.Fatal(err)
					}
					return conn, FromContext(withConnection(t.Context(), conn))
				}
				accept()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				drain := func() time.Duration {
					began := time.Now()
					limited.Drain(ctx)
					return time.Since(began)
				}
				if took := drain(); took != 0 {
					t.Errorf("without a challenge: %v", took)
				}
				conn, state := accept()
				if state.Challenging(true); c.owed > 0 {
					state.Challenged(c.owed)
					state.Challenging(false)
				}
				if c.during != nil {
					time.AfterFunc(time.Second-drainPoll/2, func() { c.during(conn, state) })
				}
				if took := drain(); took != c.want {
					t.Errorf("%v, want %v", took, c.want)
				}
			})
		})
	}
}
