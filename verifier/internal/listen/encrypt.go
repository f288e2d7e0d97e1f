// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/tls"
	"net"
	"sync"
	"time"
)

// Encrypt returns a listener of the TLS connections on l, which comes from [Limit]. It also passes on
// connections of clients that send HTTP without TLS, so that the handler can deny their requests: the
// TLS field of such a request is nil. Otherwise net/http would answer with 400 itself, and no log line or
// metric would show the request.
//
// The first byte of a connection decides. Each connection waits for it in its own goroutine, for at
// most the time for headers. Until then the connection has sent no request, so [Limit] closes it
// before all others when it needs room.
func Encrypt(l net.Listener, config *tls.Config) net.Listener {
	e := &encrypted{Listener: l, config: config, ready: make(chan accepted), closed: make(chan struct{})}
	go e.run()
	return e
}

type encrypted struct {
	net.Listener
	config *tls.Config
	ready  chan accepted
	once   sync.Once
	closed chan struct{}
}

type accepted struct {
	conn net.Conn
	err  error
}

func (e *encrypted) run() {
	for {
		c, err := e.Listener.Accept()
		if err == nil {
			go e.begin(c)
			continue
		}
		// The server decides whether to accept again. Meanwhile this goroutine waits.
		if !e.pass(accepted{err: err}) {
			return
		}
	}
}

// begin waits for the first byte of a connection.
func (e *encrypted) begin(c net.Conn) {
	first := make([]byte, 1)
	_ = c.SetReadDeadline(time.Now().Add(headerTimeout))
	if _, err := c.Read(first); err != nil {
		_ = c.Close()
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	var conn net.Conn = &begun{Conn: c, first: first}
	// A method of HTTP begins with a capital letter. A record of TLS has the type 22.
	if first[0] < 'A' || first[0] > 'Z' {
		conn = tls.Server(conn, e.config)
	}
	if !e.pass(accepted{conn: conn}) {
		_ = c.Close()
	}
}

// pass hands a result to Accept. It returns false if the listener is closed.
func (e *encrypted) pass(a accepted) bool {
	select {
	case e.ready <- a:
		return true
	case <-e.closed:
		return false
	}
}

// Accept implements net.Listener.
func (e *encrypted) Accept() (net.Conn, error) {
	select {
	case a := <-e.ready:
		return a.conn, a.err
	case <-e.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (e *encrypted) Close() error {
	e.once.Do(func() { close(e.closed) })
	return e.Listener.Close()
}

// begun is a connection of which the first byte was read.
type begun struct {
	net.Conn
	first []byte // what was read and not yet returned
}

// Read implements net.Conn.
func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) > 0 && len(p) > 0 {
		n := copy(p, b.first)
		b.first = b.first[n:]
		return n, nil
	}
	return b.Conn.Read(p)
}
