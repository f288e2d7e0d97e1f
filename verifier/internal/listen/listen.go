// SPDX-License-Identifier: Apache-2.0

// Package listen is the TLS listener for nodes. It limits connections and memory, serves HTTP/1.1, and
// tells a handler over which connection a request arrived.
//
// It assumes that clients are hostile. Every phase of a connection has a deadline. Connections that
// have proven nothing are closed to admit new ones ([Limit]), request bodies share a limited memory
// ([Bodies]), and sources share the processors ([Turns]).
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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/transcript"
)

const (
	headerTimeout = 10 * time.Second
	bodyTimeout   = 60 * time.Second
	// idleTimeout gives a slow TPM the time to create its keys between Challenge and Attest, which must
	// use one connection. TPM2_CreatePrimary of an RSA key was observed to take two minutes. A policy
	// may allow five.
	idleTimeout = 5 * time.Minute
	// idleUnclaimed is the idle timeout of a connection that has had no challenge.
	idleUnclaimed = 10 * time.Second
	maxHeader     = 8 << 10
)

// Connection is the access of a handler to the connection of a request.
type Connection struct {
	challenged, attested atomic.Bool
	conn                 *conn // nil without [Limit]
}

// FirstChallenge returns true once per connection.
func (c *Connection) FirstChallenge() bool { return c.challenged.CompareAndSwap(false, true) }

// FirstAttest returns true once per connection (rule 8 of docs/security-rules.md).
func (c *Connection) FirstAttest() bool { return c.attested.CompareAndSwap(false, true) }

// Challenging records whether a Challenge is in progress.
func (c *Connection) Challenging(yes bool) { c.note(func(own *conn) { own.challenging = yes }) }

// Challenged records that a challenge was sent, so that a slow TPM has time to answer it. For the time owed,
// this connection must remain for the answer. It is 0 if another connection may have the answer.
func (c *Connection) Challenged(owed time.Duration) {
	c.note(func(own *conn) { own.claimed, own.owing = true, time.Now().Add(owed) })
}

// Answered records that the challenge was answered. If proven, the client has attested and will ask for its certificate
// here, and the connection stays open. A shutdown waits for that, too, for what remains of the time owed.
func (c *Connection) Answered(proven bool) {
	c.note(func(own *conn) {
		if own.proven = own.proven || proven; !proven {
			own.owing = time.Time{}
		}
	})
}

// Certified records that the client needs this connection no longer.
func (c *Connection) Certified() { c.note(func(own *conn) { own.owing = time.Time{} }) }

// reading records whether a handler is reading a body.
func (c *Connection) reading(yes bool) { c.note(func(own *conn) { own.slow = yes }) }

// unread records that the handler does not read a body. The connection then has the priority of one
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

// FromContext returns the request's connection, or nil if [Track] was not called for the server.
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

// Certificates has the current serving certificate and the keys of recent ones.
type Certificates struct {
	mu      sync.Mutex
	current *tls.Certificate
	recent  [][sha256.Size]byte // newest first
}

// keepKeys is the number of replaced serving keys that remain valid for connections that are still
// open.
const keepKeys = 4

// Set makes cert the serving certificate of all new connections. Open connections continue.
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

// Served reports whether spki is the SHA-256 of the SubjectPublicKeyInfo of a current or recent
// certificate of this process.
func (c *Certificates) Served(spki []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.recent, func(k [32]byte) bool { return string(k[:]) == string(spki) })
}

// Current returns the serving certificate of new connections, or nil before the first Set.
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

// NewServer returns a server for h with the deadlines above. It serves a listener that [Encrypt] made
// with its TLSConfig.
func NewServer(h http.Handler, certs *Certificates, log *slog.Logger) *http.Server {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       bodyTimeout,
		WriteTimeout:      bodyTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug), // unauthenticated callers cause these
		// Ignition and the agent use HTTP/1.1. Like the Machine Config Server, the listener offers only
		// that.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, // for old Ignition at the gate; attestation requires 1.3
			GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				HelloReceived(hello)
				return certs.get(hello)
			},
			NextProtos: []string{"http/1.1"},
			// A resumed connection would not present the certificate that the transcript names.
			SessionTicketsDisabled: true,
		},
	}
	Track(srv)
	return srv
}

// Source returns the address of "host:port". For IPv6 it returns the /64, because one host has that
// many addresses. It returns the zero Addr for input that does not parse.
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
