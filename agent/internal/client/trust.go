package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

const (
	dialTime      = 30 * time.Second
	handshakeTime = 10 * time.Second
	// responseTime is above the verifier's own limit on a call.
	responseTime = 30 * time.Second
	maxHeader    = 64 << 10
)

// Dialer makes TLS connections to servers that chain to given authorities.
//
// The node's clock is never consulted. A machine on its first boot may be
// twenty years off, and nothing in an initramfs corrects it. A certificate is
// verified at a time of its own: the beginning of its validity (or that of a
// certificate above it, whichever is latest). So a server's certificate that
// has expired is accepted, as long as the pointer's own authority issued it.
// That gives up little: such authorities live for ten years, publish no
// revocations, and the machine could not tell anyway; and it takes the node's
// clock away from an attacker on the network, who could set it.
//
// crypto/tls wants the time before it shows the certificate. The first guess is
// the newest authority's beginning; where that is not right the handshake
// fails, the error holds the certificates, and the next one is at their time.
// All of Go's verification is in force throughout.
type Dialer struct {
	roots *x509.CertPool // nil: the system's
	first time.Time      // the guess

	// Proxy is an HTTP proxy that tunnels every connection; nil: none.
	Proxy *url.URL

	mu    sync.Mutex
	learn map[string]time.Time // host:port
}

// NewDialer trusts exactly the given authorities; nil means the system's.
func NewDialer(authorities []*x509.Certificate) *Dialer {
	d := &Dialer{learn: map[string]time.Time{}, first: time.Unix(1, 0)}
	if authorities != nil {
		d.roots = x509.NewCertPool()
		for _, a := range authorities {
			d.roots.AddCert(a)
			if a.NotBefore.After(d.first) {
				d.first = a.NotBefore
			}
		}
	}
	return d
}

// Dial connects to address ("host:port").
func (d *Dialer) Dial(ctx context.Context, address string) (*tls.Conn, error) {
	at := d.timeFor(address)
	conn, err := d.dial(ctx, address, at)
	var unverified *tls.CertificateVerificationError
	if !errors.As(err, &unverified) {
		return conn, err
	}
	host, _, splitErr := net.SplitHostPort(address)
	if splitErr != nil {
		return nil, splitErr
	}
	better, why := d.verificationTime(unverified.UnverifiedCertificates, host)
	if why != nil {
		// Not the handshake's error: that one may be about the time alone.
		return nil, fmt.Errorf("TLS with %s: %w", address, why)
	}
	if better.Equal(at) {
		return nil, err
	}
	d.mu.Lock()
	d.learn[address] = better
	d.mu.Unlock()
	return d.dial(ctx, address, better)
}

func (d *Dialer) timeFor(address string) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t, ok := d.learn[address]; ok {
		return t
	}
	return d.first
}

// verificationTime finds a time at which certificates, leaf first, verify; else
// it tells what is wrong with them when the leaf begins.
func (d *Dialer) verificationTime(certificates []*x509.Certificate, host string) (at time.Time, why error) {
	if len(certificates) == 0 {
		return time.Time{}, errors.New("the server has no certificate")
	}
	leaf, above := certificates[0], x509.NewCertPool()
	candidates := []time.Time{leaf.NotBefore, d.first}
	for _, c := range certificates[1:] {
		above.AddCert(c)
		candidates = append(candidates, c.NotBefore)
	}
	for _, at := range candidates {
		if at.Before(leaf.NotBefore) || at.IsZero() {
			continue // the zero time would mean the node's clock
		}
		_, err := leaf.Verify(x509.VerifyOptions{
			DNSName: host, Roots: d.roots, Intermediates: above, CurrentTime: at,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		})
		if err == nil {
			return at, nil
		}
		if why == nil {
			why = err
		}
	}
	if why == nil {
		why = errors.New("the server's certificate has no time")
	}
	return time.Time{}, why
}

func (d *Dialer) dial(ctx context.Context, address string, at time.Time) (*tls.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	raw, err := d.tunnel(ctx, address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{
		ServerName: host,
		RootCAs:    d.roots,
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		Time:       func() time.Time { return at },
	})
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("TLS with %s: %w", address, err)
	}
	return conn, nil
}

// HTTPClient is an ordinary client over the dialer's trust: HTTP/1.1, without
// proxies and compression.
func (d *Dialer) HTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: (&net.Dialer{Timeout: dialTime}).DialContext,
		DialTLSContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return d.Dial(ctx, address)
		},
		DisableCompression:     true,
		ResponseHeaderTimeout:  responseTime,
		MaxResponseHeaderBytes: maxHeader,
	}}
}

// Plain takes the URL out of an error of net/http: the console has it already,
// and a URL may hold what should not be printed.
func Plain(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
