// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"bufio"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

func serving(t *testing.T) *tls.Certificate {
	t.Helper()
	now := time.Now()
	ca, err := pki.NewCA("test CA", now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Serve([]string{"127.0.0.1"}, now)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pki.ParseServing([][]byte{leaf.Certificate, leaf.Key.Expose()})
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestSource(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"IPv4", "192.0.2.7:4711", "192.0.2.7"},
		{"IPv4 in IPv6 is the IPv4 address", "[::ffff:192.0.2.7]:4711", "192.0.2.7"},
		{"IPv6 is its /64", "[2001:db8:1:2:3:4:5:6]:4711", "2001:db8:1:2::"},
		{"a zone does not count", "[fe80::1%eth0]:4711", "fe80::"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Source(c.in); got != netip.MustParseAddr(c.want) {
				t.Errorf("got %v, want %s", got, c.want)
			}
		})
	}
	if got := Source("@"); got.IsValid() {
		t.Errorf("no address is %v", got)
	}
}

// addressed is a connection from some address.
type addressed struct {
	net.Conn
	from   string
	closed *bool
}

func (a addressed) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a.from))
}

func (a addressed) Close() error {
	*a.closed = true
	return nil
}

// queue is a listener that connections from given addresses come to.
type queue struct {
	net.Listener
	from []string
	shut []*bool
}

func (q *queue) Accept() (net.Conn, error) {
	if len(q.from) == 0 {
		return nil, net.ErrClosed
	}
	a := addressed{from: q.from[0], closed: new(bool)}
	q.from, q.shut = q.from[1:], append(q.shut, a.closed)
	return a, nil
}

func TestAttack_T61_UnprovenConnectionsAreClosedFirst(t *testing.T) {
	q := &queue{}
	l := Limit(q, 4, nil)
	accept := func(from string) *conn {
		t.Helper()
		q.from = append(q.from, from)
		c, err := l.Accept()
		if err != nil {
			t.Fatalf("%s: %v", from, err)
		}
		return c.(*conn)
	}
	shut := func() (closed []int) {
		for i, s := range q.shut {
			if *s {
				closed = append(closed, i)
			}
		}
		return closed
	}
	want := func(what string, closed ...int) {
		t.Helper()
		if got := shut(); !slices.Equal(got, closed) {
			t.Fatalf("%s: closed %v, want %v", what, got, closed)
		}
	}
	proven := accept("192.0.2.1:1") // 0
	proven.enter(busy)
	proven.enter(waiting)
	proven.Connection.conn = proven
	proven.Answered(true)
	challenged := accept("192.0.2.1:2") // 1
	challenged.enter(busy)
	challenged.enter(waiting)
	challenged.Connection.conn = challenged
	challenged.Challenged(time.Minute)
	asked := accept("192.0.2.1:3") // 2
	asked.enter(busy)
	asked.enter(waiting)
	silent := accept("192.0.2.1:4") // 3
	silent.since = silent.since.Add(-2 * young)
	want("four of four")
	working := accept("192.0.2.2:1") // 4
	working.enter(busy)
	want("the silent one goes first", 3)
	accept("192.0.2.2:2").enter(busy) // 5
	want("then the one between two requests", 2, 3)
	accept("192.0.2.2:3").enter(busy) // 6
	want("then the one with a challenge", 1, 2, 3)
	q.from = append(q.from, "192.0.2.3:1") // 7
	if c, err := l.Accept(); err == nil {
		t.Fatalf("%s got in; all others work or have proven something", c.RemoteAddr())
	}
	want("the one that arrives, if all others have a claim", 1, 2, 3, 7)
	// Closing twice, as net/http may, makes room once.
	_, _ = working.Close(), working.Close()
	accept("192.0.2.3:2")
	q.from = append(q.from, "192.0.2.4:1")
	if _, err := l.Accept(); err != nil {
		t.Fatal("a young connection did not give way:", err)
	}
	want("and the young one, where no other is left", 1, 2, 3, 4, 7, 8)
}

// A machine that attests again and again, and keeps each connection open.
func TestAttack_T61_ProvenConnectionsOfOneSourceGiveWayToOthers(t *testing.T) {
	const total, clients = 64, 100
	q := &queue{}
	l := Limit(q, total, nil)
	admit := func(from string) *conn {
		q.from = append(q.from, from)
		c, err := l.Accept()
		if err != nil {
			return nil
		}
		return c.(*conn)
	}
	var held []*conn
	for i := range total {
		c := admit(fmt.Sprintf("192.0.2.1:%d", i+1))
		c.enter(busy)
		c.enter(waiting)
		c.Connection.conn = c
		c.Answered(true)
		held = append(held, c)
	}
	if c := admit("198.51.100.1:1"); c != nil {
		t.Fatal("a proven connection that was just used was closed")
	}
	for _, c := range held {
		c.since = c.since.Add(-3 * long)
	}
	held[0].enter(busy)
	for i := range clients {
		if c := admit(fmt.Sprintf("198.51.100.%d:1", i+1)); c == nil {
			t.Fatalf("client %d of %d found no place", i, clients)
		}
	}
	if *q.shut[0] {
		t.Error("a proven connection with an active request was closed")
	}
	if n := l.bySource[netip.MustParseAddr("192.0.2.1")]; n == 0 {
		t.Error("the source has no connection left")
	}
}

func TestAttack_T51_TheSourceWithTheMostConnectionsIsClosedFirst(t *testing.T) {
	q := &queue{from: []string{
		"192.0.2.1:1", "[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::3]:1", // one /64
		"192.0.2.2:1", "192.0.2.3:1",
	}}
	l := Limit(q, 4, nil)
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		c.(*conn).enter(busy)
		c.(*conn).enter(waiting)
	}
	var shut []bool
	for _, s := range q.shut {
		shut = append(shut, *s)
	}
	if want := []bool{false, true, true, false, false, false}; !slices.Equal(shut, want) {
		t.Fatalf("closed %v, want %v", shut, want)
	}
}

func TestAllSourcesTogetherAreBounded(t *testing.T) {
	q := &queue{}
	for i := range 5000 {
		q.from = append(q.from, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 1).String())
	}
	l := Limit(q, 4096, nil)
	n := 0
	for {
		if _, err := l.Accept(); err != nil {
			break
		}
		n++
	}
	closed := 0
	for _, s := range q.shut {
		if *s {
			closed++
		}
	}
	if n != 5000 || n-closed > 4096 {
		t.Errorf("%d of 5000 got in, %d of at most 4096 are open", n, n-closed)
	}
}

func TestTurnsAreSharedAmongSources(t *testing.T) {
	turns := NewTurns(1, time.Minute)
	first, err := turns.Acquire(t.Context(), netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	// Ten of one source wait before one of another.
	var mu sync.Mutex
	var order []string
	var wg sync.WaitGroup
	queued := 0
	enqueue := func(source string) {
		wg.Go(func() {
			done, err := turns.Acquire(t.Context(), netip.MustParseAddr(source))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, source)
			mu.Unlock()
			done()
		})
		queued++
		for {
			turns.mu.Lock()
			n := 0
			for _, w := range turns.waiting {
				n += len(w)
			}
			turns.mu.Unlock()
			if n == queued {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	for range 10 {
		enqueue("192.0.2.1")
	}
	enqueue("192.0.2.2")
	first()
	wg.Wait()
	if i := slices.Index(order, "192.0.2.2"); len(order) != 11 || i > 1 {
		t.Errorf("order %v", order)
	}
	if turns.free != 1 || len(turns.waiting) != 0 || len(turns.order) != 0 {
		t.Errorf("afterwards: %d free, %d wait", turns.free, len(turns.waiting))
	}
}

func TestTurnTimeout_IsADenial(t *testing.T) {
	turns := NewTurns(1, 10*time.Millisecond)
	a := netip.MustParseAddr("192.0.2.1")
	done, err := turns.Acquire(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := turns.Acquire(t.Context(), a); reason.From(err) == nil || reason.From(err).Code != reason.RateLimited {
		t.Errorf("got %v", err)
	}
	done()
	if done, err = turns.Acquire(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	done()
}

func TestLimiterAllowsABurstAndThenTheRate(t *testing.T) {
	l := NewLimiter(5)
	now := time.Now()
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for i := range 10 {
		if !l.Allow(now, a) {
			t.Fatalf("event %d of the burst is refused", i)
		}
	}
	if l.Allow(now, a) {
		t.Error("the burst has no end")
	}
	if !l.Allow(now, b) {
		t.Error("another source pays for the first")
	}
	if !l.Allow(now.Add(time.Second), a) {
		t.Error("a second later it is still refused")
	}
}

func TestAttack_T51_ManySourcesUseLimitedMemory(t *testing.T) {
	l := NewLimiter(5)
	now := time.Now()
	for i := range uint32(3 * maxSources) {
		var raw [4]byte
		binary.BigEndian.PutUint32(raw[:], i)
		if !l.Allow(now, netip.AddrFrom4(raw)) {
			t.Fatal("a source that was never seen is refused")
		}
		if len(l.sources) > maxSources {
			t.Fatalf("%d sources are remembered", len(l.sources))
		}
	}
}

func TestServed_ReportsOnlyRecentKeys(t *testing.T) {
	var certs Certificates
	var keys [][sha256.Size]byte
	for range keepKeys + 1 {
		c := serving(t)
		leaf, err := x509.ParseCertificate(c.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, sha256.Sum256(leaf.RawSubjectPublicKeyInfo))
		c.Leaf = nil // as tls.X509KeyPair left it until Go 1.23
		if err := certs.Set(c); err != nil {
			t.Fatal(err)
		}
		if now, _ := certs.get(nil); now != c {
			t.Error("not the certificate that was set")
		}
	}
	for i, k := range keys {
		if got, want := certs.Served(k[:]), i > 0; got != want {
			t.Errorf("key %d of %d: served %v", i, len(keys), got)
		}
	}
	if other := sha256.Sum256(nil); certs.Served(nil) || certs.Served(other[:]) || certs.Served(keys[1][:31]) {
		t.Error("a key that never served is taken for one")
	}
	if err := certs.Set(&tls.Certificate{Certificate: [][]byte{{1}}}); err == nil {
		t.Error("a certificate that does not parse was set")
	}
}

// serve starts a server and returns its address and the roots for it.
func serve(t *testing.T, h http.HandlerFunc, change func(*http.Server)) (string, *x509.CertPool) {
	t.Helper()
	certs, cert := &Certificates{}, serving(t)
	if err := certs.Set(cert); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := NewServer(h, certs, slog.New(slog.DiscardHandler))
	if change != nil {
		change(srv)
	}
	go func() { _ = srv.Serve(Encrypt(Limit(l, 16, nil), srv.TLSConfig)) }()
	t.Cleanup(func() { _ = srv.Close() })
	roots := x509.NewCertPool()
	roots.AddCert(cert.Leaf)
	return l.Addr().String(), roots
}

func TestExporterIsThatOfTheConnectionAndOnlyOfTLS13(t *testing.T) {
	got := make(chan []byte, 1)
	addr, roots := serve(t, func(_ http.ResponseWriter, r *http.Request) { got <- Exporter(r.TLS) }, nil)
	for _, c := range []struct {
		version uint16
		want    bool
	}{{tls.VersionTLS12, false}, {tls.VersionTLS13, true}} {
		conn, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots, MaxVersion: c.version})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		server := <-got
		if state := conn.ConnectionState(); !c.want {
			if server != nil {
				t.Error("TLS 1.2 has an exporter")
			}
		} else if string(server) != string(Exporter(&state)) || len(server) == 0 {
			t.Error("the two ends have different exporters")
		}
		_ = conn.Close()
	}
	if Exporter(nil) != nil {
		t.Error("an exporter without TLS")
	}
}

func TestOneConnectionOneFirstAttest(t *testing.T) {
	addr, roots := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if FromContext(r.Context()).FirstAttest() {
			w.WriteHeader(http.StatusOK)
			return
		}
		w.WriteHeader(http.StatusConflict)
	}, nil)
	for _, keepAlive := range []bool{true, false} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots},
			DisableKeepAlives: !keepAlive}}
		var codes []int
		for range 2 {
			res, err := client.Get("https://" + addr)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			codes = append(codes, res.StatusCode)
		}
		client.CloseIdleConnections()
		want := []int{http.StatusOK, http.StatusOK}
		if keepAlive {
			want[1] = http.StatusConflict
		}
		if !slices.Equal(codes, want) {
			t.Errorf("keep-alive %v: %v, want %v", keepAlive, codes, want)
		}
	}
	if FromContext(t.Context()) != nil {
		t.Error("a connection out of nothing")
	}
}

func TestAttack_T51_SlowHeaders(t *testing.T) {
	const short = time.Second
	addr, roots := serve(t, func(http.ResponseWriter, *http.Request) {}, func(s *http.Server) {
		if s.ReadHeaderTimeout != headerTimeout || s.ReadTimeout != bodyTimeout || s.WriteTimeout != bodyTimeout ||
			s.IdleTimeout != idleTimeout || s.MaxHeaderBytes != maxHeader {
			t.Errorf("a phase without its deadline: %+v", s)
		}
		s.ReadHeaderTimeout = short
	})
	conn, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots})
	// The bound is that of the handshake, too, for which a slow machine may need longer.
	for end := time.Now().Add(2 * time.Minute); err != nil && time.Now().Before(end); {
		conn, err = tls.Dial("tcp", addr, &tls.Config{RootCAs: roots})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	began := time.Now()
	go func() {
		for { // a byte from time to time, indefinitely
			if _, err := io.WriteString(conn, "G"); err != nil {
				return
			}
			time.Sleep(short / 4)
		}
	}()
	// Without the bound the server waits for a minute.
	if err := conn.SetReadDeadline(began.Add(bodyTimeout / 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("still open after %v", time.Since(began))
	}
}

func TestAttack_T61_AnUnreadBodyDoesNotHoldAConnection(t *testing.T) {
	addr, roots := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			_, _ = w.Write(make([]byte, 64<<10))
		}
	}, nil)
	for name, request := range map[string]string{
		"POST":          "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
		"chunked":       "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
		"closing":       "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 100\r\n\r\n",
		"a long answer": "GET /long HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, request); err != nil {
				t.Fatal(err)
			}
			// Without the bound the server waits for a minute.
			if err := conn.SetReadDeadline(time.Now().Add(bodyTimeout / 2)); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(conn)
			if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
				t.Errorf("%v, after %d bytes", err, len(answer))
			}
		})
	}
}

func TestBodies_ArrivingBodyKeepsItsConnection(t *testing.T) {
	addr, roots := serve(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, nil)
	conn, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	for i := range 3 {
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		_ = res.Body.Close()
		if res.Close {
			t.Fatalf("request %d closes the connection", i)
		}
	}
}

func TestAttack_T61_BusyConnectionsOfOneSourceLeaveRoomForOthers(t *testing.T) {
	q := &queue{}
	l := Limit(q, 8, nil)
	for i := range 8 {
		q.from = append(q.from, "192.0.2.1:1")
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		own := c.(*conn)
		own.enter(busy)
		own.proven = i == 0
	}
	for i := range 3 {
		q.from = append(q.from, "192.0.2.2:1")
		c, err := l.Accept()
		if got := err == nil; got != (i == 0) {
			t.Fatalf("connection %d of another source: accepted %v", i, got)
		}
		if err == nil {
			c.(*conn).enter(busy)
		}
	}
	q.from = append(q.from, "192.0.2.1:1")
	if _, err := l.Accept(); err == nil {
		t.Error("the source with the most connections loses one of its own")
	}
	if *q.shut[0] || !*q.shut[1] {
		t.Errorf("closed: the proven one %v, the oldest other one %v", *q.shut[0], *q.shut[1])
	}
}

func TestAttack_T62_ABodyThatWaitedForRoomIsNotSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBodies(2 * bodyChunk)
		holder := &body{began: time.Now(), stop: func() {}}
		if err := b.grow(holder, bodyChunk, nil); err != nil {
			t.Fatal(err)
		}
		b.arrived(holder)
		waits := &body{began: time.Now(), stop: func() {}}
		got := make(chan error)
		go func() { got <- b.grow(waits, bodyChunk, nil) }()
		time.Sleep(10 * slowAfter)
		b.done(holder)
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		if waits.slow(time.Now()) {
			t.Error("a body is slow the moment that it gets room")
		}
		time.Sleep(2 * slowAfter)
		if !waits.slow(time.Now()) {
			t.Error("a body that then stalls is not slow")
		}
	})
}

// Whole bodies of one source, whose requests take long, leave room for the bodies of
// others. More of them wait.
func TestAttack_T62_WholeBodiesOfOneSourceLeaveRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBodies(8 * bodyChunk)
		whole := make(chan *body, 8)
		for range 8 {
			go func() {
				e := &body{source: netip.MustParseAddr("192.0.2.1"), began: time.Now(), stop: func() {}}
				if err := b.grow(e, bodyChunk, nil); err != nil {
					t.Error("a body of the busy source:", err)
				}
				b.arrived(e)
				whole <- e
			}()
		}
		time.Sleep(slowAfter / 2)
		if n := len(whole); n != 4 {
			t.Errorf("%d of 8 bodies of one source have room, of which half is for others", n)
		}
		other := &body{source: netip.MustParseAddr("192.0.2.2"), began: time.Now(), stop: func() {}}
		if err := b.grow(other, 4*bodyChunk, time.After(slowAfter)); err != nil {
			t.Error("a body of another source:", err)
		}
		b.done(other)
		for range 8 {
			b.done(<-whole)
		}
		if b.used != 0 || len(b.held) != 0 {
			t.Errorf("%d bytes are held when all is done, by %v", b.used, b.held)
		}
	})
}

// A source that holds its half makes room with its own bodies, also when the other half
// is taken.
func TestAttack_T62_ASourceAtItsHalfCutsNoBodyOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBodies(8 * bodyChunk)
		from := func(source string) *body {
			return &body{source: netip.MustParseAddr(source), began: time.Now(), stop: func() {}}
		}
		grow := func(e *body, n int) error { return b.grow(e, n*bodyChunk, time.After(slowAfter/2)) }
		other, whole, slow := from("192.0.2.2"), from("192.0.2.1"), from("192.0.2.1")
		if err := errors.Join(grow(other, 4), grow(whole, 3), grow(slow, 1)); err != nil {
			t.Fatal(err)
		}
		b.arrived(whole)
		time.Sleep(10 * slowAfter)
		if err := grow(from("192.0.2.1"), 1); err != nil || !slow.cut {
			t.Errorf("%v; the source's own slow body was cut: %v", err, slow.cut)
		}
		if d := reason.From(grow(from("192.0.2.1"), 2)); d == nil || d.Code != reason.RateLimited {
			t.Errorf("%v for a body above the source's half", d)
		}
		if other.cut {
			t.Error("a body of another source was cut")
		}
	})
}
