// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"cmp"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxHello is the maximum size of a ClientHello, which crypto/tls buffers as a whole. The largest
	// ones in use have 2 KB.
	maxHello = 8 << 10
	// beforeRequest limits what a connection sends between the ClientHello and the end of its first
	// request's headers: the rest of the handshake, and the headers.
	beforeRequest = maxHeader + 16<<10
	// young is the time that a connection has for the handshake and the first request.
	young = 2 * time.Second
	// long is the time after which a request may be ended to make room.
	long = 15 * time.Second
	// unreadGrace is the time for the rest of a body that the handler does not read. A client that is
	// still sending when the connection closes would lose the answer.
	unreadGrace = time.Second
)

// Limit limits the connections that l accepts. When there are total, it closes the connections with the
// lowest priority to admit a new one. In order:
//
//   - those that have sent no request, unless they are young
//   - those that are idle and have not had a challenge
//   - those whose body arrives slowly
//   - those that have had a challenge and are idle
//   - those whose request takes very long
//   - young ones that have sent no request
//
// Within a class, it starts with the sources with the most connections, then with the oldest
// connection. At most half of total have sent no request, since those need the most memory. A
// connection with an active request stays open, and so does one whose client has attested and will ask
// for its certificate. If only those are left, a source with far fewer connections than another replaces
// one of that source: one that has not attested, or else one that has been idle for half a minute. Otherwise the
// new connection is closed. Both the agent and Ignition retry.
//
// keep, if not nil, reports for which peers an idle connection may stay open for long. These are front
// ends that many clients share.
func Limit(l net.Listener, total int, keep func(netip.Addr) bool) *Limited {
	return &Limited{Listener: l, total: total, keep: keep, open: map[*conn]bool{}, bySource: map[netip.Addr]int{}}
}

// Limited is the listener that [Limit] returns.
type Limited struct {
	net.Listener
	total int
	keep  func(netip.Addr) bool

	mu       sync.Mutex
	open     map[*conn]bool
	opening  atomic.Int64 // the number of open connections without a request so far
	bySource map[netip.Addr]int
}

// Accept implements net.Listener.
func (l *Limited) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address := raw.RemoteAddr().String()
		c := &conn{Conn: raw, limited: l, source: Source(address), since: time.Now(), left: maxHello}
		c.shared = l.keep != nil && l.keep(peer(address))
		if l.admit(c) {
			return c, nil
		}
		_ = raw.Close()
	}
}

func (l *Limited) admit(c *conn) bool {
	l.mu.Lock()
	var victims []*conn
	switch {
	case len(l.open) >= l.total:
		if victims = l.victims(time.Now()); len(victims) == 0 {
			victims = l.unfair(c.source)
		}
	case int(l.opening.Load()) >= max(l.total/2, 1):
		victims = l.victims(time.Now(), 1, 6)
	}
	for _, v := range victims {
		l.remove(v)
	}
	full := len(l.open) >= l.total
	if !full {
		l.open[c] = true
		l.opening.Add(1)
		l.bySource[c.source]++
	}
	l.mu.Unlock()
	for _, v := range victims {
		_ = v.Conn.Close()
	}
	return !full
}

func (l *Limited) remove(c *conn) {
	if !l.open[c] {
		return
	}
	delete(l.open, c)
	c.mu.Lock()
	if !c.asked {
		c.asked = true
		l.opening.Add(-1)
	}
	c.mu.Unlock()
	if l.bySource[c.source]--; l.bySource[c.source] == 0 {
		delete(l.bySource, c.source)
	}
}

// victims returns the connections to close, of the given classes or of all. It returns several, because
// finding them needs a scan of all connections.
func (l *Limited) victims(now time.Time, classes ...int) []*conn {
	type candidate struct {
		conn  *conn
		class int
		since time.Time
	}
	var all []candidate
	for c := range l.open {
		if class, since := c.claim(now); class > 0 && (len(classes) == 0 || slices.Contains(classes, class)) {
			all = append(all, candidate{c, class, since})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(l.bySource[b.conn.source], l.bySource[a.conn.source]),
			a.since.Compare(b.since))
	})
	var victims []*conn
	for _, c := range all[:min(len(all), max(l.total/64, 1))] {
		victims = append(victims, c.conn)
	}
	return victims
}

// unfair returns a connection of the source with the most connections, if the new source has at most a
// quarter of that number. It is the oldest unproven one, or else the proven one that is idle for longest.
func (l *Limited) unfair(arrives netip.Addr) (victims []*conn) {
	var greedy netip.Addr
	for source, n := range l.bySource {
		if n > l.bySource[greedy] {
			greedy = source
		}
	}
	if 4*(l.bySource[arrives]+1) > l.bySource[greedy] {
		return nil
	}
	var oldest, idle *conn
	var began, idleSince time.Time
	now := time.Now()
	for c := range l.open {
		if c.source != greedy {
			continue
		}
		c.mu.Lock()
		switch {
		case c.shared:
		case !c.proven:
			if oldest == nil || c.since.Before(began) {
				oldest, began = c, c.since
			}
		case c.state == waiting && now.Sub(c.since) > 2*long:
			if idle == nil || c.since.Before(idleSince) {
				idle, idleSince = c, c.since
			}
		}
		c.mu.Unlock()
	}
	if victim := cmp.Or(oldest, idle); victim != nil {
		victims = append(victims, victim)
	}
	return victims
}

// conn is an accepted connection and its state.
type conn struct {
	net.Conn
	Connection
	limited *Limited
	source  netip.Addr
	shared  bool // used by many clients, through a front end

	mu          sync.Mutex
	since       time.Time // when the state began
	state       state
	slow        bool      // the handler is reading a body, or did not read it
	left        int       // bytes that may still arrive before the first request
	asked       bool      // a request was received
	claimed     bool      // a challenge was sent
	challenging bool      // a Challenge is in progress
	owing       time.Time // its answer must arrive here until then
	proven      bool
	later       time.Time // the read deadline that a shorter idle time replaces
}

type state int

const (
	opening state = iota // no request yet
	busy
	waiting // between two requests
)

var errTooMuch = errors.New("the client sent too much before the first request")

// claim returns the class of the connection in the order of [Limit], or 0 if it must stay open.
func (c *conn) claim(now time.Time) (class int, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	age := now.Sub(c.since)
	switch {
	case c.state == opening && age < young:
		return 6, c.since
	case c.state == opening:
		return 1, c.since
	case c.state == busy && c.slow && age > young:
		return 3, c.since
	case c.state == busy && age > long:
		return 5, c.since
	case c.state == busy || c.proven:
		return 0, c.since
	case c.claimed || c.shared:
		return 4, c.since
	}
	return 2, c.since
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asked {
		if c.left -= n; c.left < 0 {
			return 0, errTooMuch
		}
	}
	return n, err
}

// SetReadDeadline implements net.Conn. An idle connection that has had no challenge gets a shorter
// deadline.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.later = time.Time{}
	if soon := time.Now().Add(idleUnclaimed); c.state == waiting && !c.claimed && !c.shared && t.After(soon) {
		t, c.later = soon, t
	}
	c.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.limited.mu.Lock()
	c.limited.remove(c)
	c.limited.mu.Unlock()
	return c.Conn.Close()
}

// HelloReceived records that a ClientHello is complete. Servers behind [Limit] call it when they choose a
// certificate.
func HelloReceived(hello *tls.ClientHelloInfo) {
	c := under(hello.Conn)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = beforeRequest
}

func (c *conn) enter(s state) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state, c.since, c.slow = s, time.Now(), false
	if s == busy && !c.asked {
		c.asked = true
		c.limited.opening.Add(-1)
	}
	if s == busy && !c.later.IsZero() {
		_ = c.Conn.SetReadDeadline(c.later)
		c.later = time.Time{}
	}
}

// under returns the accepted connection below c, or nil if it did not come through [Limit].
func under(c net.Conn) *conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if b, ok := c.(*begun); ok {
		c = b.Conn
	}
	own, _ := c.(*conn)
	return own
}

// Track reports the connection states of srv to [Limit], and gives handlers access to the connection of
// a request. It wraps srv.Handler so that no connection waits for a body that the handler does not
// read.
func Track(srv *http.Server) {
	srv.Handler = dropUnread(srv.Handler)
	srv.ConnContext = withConnection
	srv.ConnState = func(c net.Conn, s http.ConnState) {
		own := under(c)
		switch {
		case own == nil:
		case s == http.StateActive:
			own.enter(busy)
		case s == http.StateIdle:
			own.enter(waiting)
		}
	}
}

// dropUnread shortens the wait for a body that h does not read. Otherwise net/http would wait until the
// read deadline, and the connection would count as busy.
func dropUnread(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			h.ServeHTTP(w, r)
			return
		}
		conn := FromContext(r.Context())
		drop := func() {
			conn.unread()
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(unreadGrace))
		}
		if r.Method != http.MethodPost {
			// Such a handler never reads the body. A long answer would wait for it before the handler
			// returns.
			drop()
		}
		body := &watchedBody{ReadCloser: r.Body}
		own := *r
		own.Body = body
		h.ServeHTTP(w, &own)
		if !body.whole.Load() {
			drop()
		}
	})
}

// watchedBody records that a body was read to its end.
type watchedBody struct {
	io.ReadCloser
	whole atomic.Bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.whole.Store(true)
	}
	return n, err
}

func peer(hostport string) netip.Addr {
	ap, err := netip.ParseAddrPort(hostport)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr()
}
