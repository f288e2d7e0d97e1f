// Package listen is the one TLS listener that nodes reach: bounded, HTTP/1.1,
// and able to tell a handler which connection a request came over.
//
// It assumes that the far end is hostile. Every phase of a connection has a
// deadline. Connections that have proven nothing give way to those that arrive
// ([Limit]), request bodies share a bounded memory ([Bodies]), and work is shared
// among sources ([Turns]).
package listen

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

const (
	headerTimeout = 10 * time.Second
	bodyTimeout   = 60 * time.Second
	// idleTimeout leaves a slow TPM the time for its keys between Challenge and
	// Attest, which must come over one connection: TPM2_CreatePrimary of an RSA
	// key has been seen to take two minutes, a policy may allow five.
	idleTimeout = 5 * time.Minute
	// idleUnclaimed is for a connection that has had no challenge.
	idleUnclaimed = 10 * time.Second
	maxHeader     = 8 << 10
)

// Connection is what a handler may know of the connection under a request, and
// what it may say of it.
type Connection struct {
	challenged, attested atomic.Bool
	conn                 *conn // nil outside of [Limit]
}

// FirstChallenge reports true once per connection.
func (c *Connection) FirstChallenge() bool { return c.challenged.CompareAndSwap(false, true) }

// FirstAttest reports true once per connection (DESIGN, section 19, rule 8).
func (c *Connection) FirstAttest() bool { return c.attested.CompareAndSwap(false, true) }

// Challenged notes that the connection has a challenge to answer: a slow TPM has
// time to do so.
func (c *Connection) Challenged() { c.note(func(own *conn) { own.claimed = true }) }

// Proven notes that the client has proven something: its connection stays.
func (c *Connection) Proven() { c.note(func(own *conn) { own.proven = true }) }

// reading notes that a handler reads a body, or has read it.
func (c *Connection) reading(yes bool) { c.note(func(own *conn) { own.slow = yes }) }

// unread notes that the handler leaves a body unread: the connection gives way as one
// whose body arrives slowly.
func (c *Connection) unread() {
	c.note(func(own *conn) { own.slow, own.since = true, own.since.Add(-young) })
}

func (c *Connection) note(change func(*conn)) {
	if c == nil || c.conn == nil {
		return
	}
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()
	change(c.conn)
}

type connectionKey struct{}

func withConnection(ctx context.Context, c net.Conn) context.Context {
	own := under(c)
	if own == nil {
		return context.WithValue(ctx, connectionKey{}, &Connection{})
	}
	own.Connection.conn = own
	return context.WithValue(ctx, connectionKey{}, &own.Connection)
}

// FromContext returns the request's connection, or nil outside of a server that
// [Track] was called for.
func FromContext(ctx context.Context) *Connection {
	c, _ := ctx.Value(connectionKey{}).(*Connection)
	return c
}

// Exporter returns the connection's TLS exporter (RFC 8446, 7.5), or nil if the
// request did not come over TLS 1.3.
func Exporter(state *tls.ConnectionState) []byte {
	if state == nil || state.Version != tls.VersionTLS13 {
		return nil
	}
	e, err := state.ExportKeyingMaterial(transcript.ExporterLabel, nil, transcript.ExporterSize)
	if err != nil {
		return nil
	}
	return e
}

// Certificates is the serving certificate now and the keys that served lately.
type Certificates struct {
	mu      sync.Mutex
	current *tls.Certificate
	recent  [][sha256.Size]byte // newest first
}

// keepKeys is how many replaced serving keys a connection that is still open may name.
const keepKeys = 4

// Set makes cert the serving certificate of all new connections. Open ones go on.
func (c *Certificates) Set(cert *tls.Certificate) error {
	leaf := cert.Leaf
	if leaf == nil {
		parsed, err := x509.ParseCertificate(cert.Certificate[0])
		if err != nil {
			return fmt.Errorf("parse serving certificate: %w", err)
		}
		leaf = parsed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = cert
	c.recent = append([][sha256.Size]byte{sha256.Sum256(leaf.RawSubjectPublicKeyInfo)}, c.recent...)
	c.recent = c.recent[:min(len(c.recent), keepKeys)]
	return nil
}

// Served reports whether spki is the SHA-256 of the SubjectPublicKeyInfo of a
// certificate that this process serves or lately served with.
func (c *Certificates) Served(spki []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.recent {
		if string(k[:]) == string(spki) {
			return true
		}
	}
	return false
}

// Current is the serving certificate of new connections; nil before the first.
func (c *Certificates) Current() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

func (c *Certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current, nil
}

// NewServer returns a server for h with the deadlines above.
func NewServer(h http.Handler, certs *Certificates, log *slog.Logger) *http.Server {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       bodyTimeout,
		WriteTimeout:      bodyTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug), // an unauthenticated caller causes these
		// Ignition and the agent speak HTTP/1.1; like the Machine Config Server we offer nothing else.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, // old Ignitions at the gate; attestation asks for 1.3 itself
			GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				Greeted(hello)
				return certs.get(hello)
			},
			NextProtos: []string{"http/1.1"},
			// A resumed connection would not show the certificate that the transcript names.
			SessionTicketsDisabled: true,
		},
	}
	Track(srv)
	return srv
}

// Source is the address part of "host:port"; for IPv6 its /64, since one host
// has that many. The zero Addr stands for anything that does not parse.
func Source(hostport string) netip.Addr {
	ap, err := netip.ParseAddrPort(hostport)
	if err != nil {
		return netip.Addr{}
	}
	a := ap.Addr().Unmap().WithZone("")
	if a.Is6() {
		p, _ := a.Prefix(64)
		return p.Addr()
	}
	return a
}
