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
	// maxHello bounds a ClientHello, which crypto/tls keeps in memory whole. The
	// largest that clients send have 2 KB.
	maxHello = 8 << 10
	// beforeRequest bounds what a connection sends after it, until its first request
	// is complete: the rest of the handshake, and the headers.
	beforeRequest = maxHeader + 16<<10
	// young connections have a moment for the handshake and the first request.
	young = 2 * time.Second
	// long is how long a request may take before its connection may have to go.
	long = 15 * time.Second
	// unreadGrace is the time for a body that the handler leaves unread. A client that
	// still sends it would lose the answer.
	unreadGrace = time.Second
)

// Limit bounds the connections that l accepts. When there are total, those with
// the least claim to stay are closed for one that arrives. In order:
//
//   - those that have sent no request, unless they are young
//   - those that wait between two requests and have not had a challenge
//   - those whose body arrives slowly
//   - those that have had a challenge and wait
//   - those whose request takes very long
//   - young ones that have sent no request
//
// Among equals the sources with the most connections are first, then the oldest
// connection. At most half of total have sent no request, since those need the most
// memory. A request under way keeps its connection, and so do connections
// that have proven something. If only those are left, a source that has far fewer
// connections than another takes the place of an unproven one of that source.
// Otherwise the one that arrives is closed; both the agent and Ignition come again.
//
// Keep, if not nil, reports for which peers an idle connection may stay open for
// long: front ends that many clients share.
func Limit(l net.Listener, total int, keep func(netip.Addr) bool) net.Listener {
	return &limited{Listener: l, total: total, keep: keep, open: map[*conn]bool{}, bySource: map[netip.Addr]int{}}
}

type limited struct {
	net.Listener
	total int
	keep  func(netip.Addr) bool

	mu       sync.Mutex
	open     map[*conn]bool
	opening  atomic.Int64 // of open: without a request so far
	bySource map[netip.Addr]int
}

func (l *limited) Accept() (net.Conn, error) {
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

func (l *limited) admit(c *conn) bool {
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

func (l *limited) remove(c *conn) {
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

// victims are the connections to close, of the given classes or of all. They are a
// few at once, since finding them means a scan of all.
func (l *limited) victims(now time.Time, classes ...int) []*conn {
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

// unfair is the oldest unproven connection of the source with the most, if the source
// that arrives has at most a quarter of its number.
func (l *limited) unfair(arrives netip.Addr) (victims []*conn) {
	var greedy netip.Addr
	for source, n := range l.bySource {
		if n > l.bySource[greedy] {
			greedy = source
		}
	}
	if 4*(l.bySource[arrives]+1) > l.bySource[greedy] {
		return nil
	}
	var oldest *conn
	var began time.Time
	for c := range l.open {
		if c.source != greedy {
			continue
		}
		c.mu.Lock()
		if !c.proven && !c.shared && (oldest == nil || c.since.Before(began)) {
			oldest, began = c, c.since
		}
		c.mu.Unlock()
	}
	if oldest != nil {
		victims = append(victims, oldest)
	}
	return victims
}

// conn is an accepted connection, and what it has shown of itself.
type conn struct {
	net.Conn
	Connection
	limited *limited
	source  netip.Addr
	shared  bool // by many clients, through a front end

	mu      sync.Mutex
	since   time.Time // when the state began
	state   state
	slow    bool // the handler reads a body, or has left it unread
	left    int  // bytes that may come before the first request
	asked   bool // there was a request
	claimed bool // there was a challenge
	proven  bool
	later   time.Time // the read deadline that a short idle time stands for
}

type state int

const (
	opening state = iota // no request yet
	busy
	waiting // between two requests
)

var errTooMuch = errors.New("too much was sent before the first request")

// claim is the class of the connection in the order of [Limit], 0 if it stays.
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

// SetReadDeadline implements net.Conn. An idle connection that has had no challenge
// stays for a short time.
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

// Greeted notes that a ClientHello is complete. Servers behind [Limit] call it when
// they choose a certificate.
func Greeted(hello *tls.ClientHelloInfo) {
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

// under is the accepted connection below c; nil if it did not come through [Limit].
func under(c net.Conn) *conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	own, _ := c.(*conn)
	return own
}

// Track lets [Limit] see what the connections of srv do, and handlers which one a
// request came over. It wraps srv.Handler, so that no connection waits for a body that
// the handler leaves unread.
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

// dropUnread shortens the wait for a body that h leaves unread. Otherwise net/http
// waits for it until the read deadline, and the connection counts as busy.
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
			// No such handler reads a body. A long answer waits for it before the handler returns.
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

// watchedBody notes that a body was read to its end.
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
