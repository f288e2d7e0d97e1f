// SPDX-License-Identifier: Apache-2.0

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
	// responseTime is longer than the verifier's own limit for a call.
	responseTime = 30 * time.Second
	maxHeader    = 64 << 10
)

// Dialer opens TLS connections to servers whose certificates chain to the given authorities.
//
// Except for a proxy over TLS, it never consults the node's clock. On a first boot that clock may
// be years off, and nothing in an initramfs corrects it. Instead, a certificate is verified at the
// start of its own validity, or of the validity of a certificate above it if that is later. So the
// Dialer accepts an expired server certificate that the pointer config's own authority issued. This
// gives up little: such authorities live for ten years and publish no revocations. In return, an
// attacker on the network cannot use the node's clock, which they may control.
//
// crypto/tls asks for the time before it provides the certificate. The first attempt uses the start
// of the newest authority. If that time is wrong, the handshake fails, its error contains the
// certificates, and the second attempt uses a time at which they verify. All other checks of
// crypto/tls stay in force.
type Dialer struct {
	authorities []*x509.Certificate
	roots       *x509.CertPool // of authorities
	first       time.Time      // the time of the first attempt

	// Proxy is the HTTP proxy that tunnels every connection; nil means none.
	Proxy *url.URL

	mu    sync.Mutex
	learn map[string]time.Time // host:port
}

// NewDialer returns a Dialer that trusts only the given authorities.
func NewDialer(authorities []*x509.Certificate) *Dialer {
	d := &Dialer{
		authorities: authorities, roots: x509.NewCertPool(), learn: map[string]time.Time{}, first: time.Unix(1, 0),
	}
	for _, a := range authorities {
		d.roots.AddCert(a)
		if a.NotBefore.After(d.first) {
			d.first = a.NotBefore
		}
	}
	return d
}

// Dial connects to address ("host:port") and verifies the server.
func (d *Dialer) Dial(ctx context.Context, address string) (*tls.Conn, error) {
	at := d.timeFor(address)
	conn, err := d.dial(ctx, address, at)
	var unverified *tls.CertificateVerificationError
	var ofProxy *proxyError
	if errors.As(err, &ofProxy) || !errors.As(err, &unverified) {
		return conn, err
	}
	host, _, splitErr := net.SplitHostPort(address)
	if splitErr != nil {
		return nil, splitErr
	}
	better, why := d.verificationTime(unverified.UnverifiedCertificates, host)
	if why != nil {
		// Not the error of the handshake, which may only concern the time.
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

// verificationTime returns a time at which certificates, leaf first, verify. If there is none, it
// returns the error of verification at the start of the leaf's validity.
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
			continue // crypto/x509 reads the zero time as "use the node's clock"
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
		why = errors.New("the server's certificate has no validity period")
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

// HTTPClient returns an HTTP/1.1 client with the dialer's trust, without proxies and compression.
func (d *Dialer) HTTPClient() *http.Client {
	t := newTransport()
	t.DialTLSContext = func(ctx context.Context, _, address string) (net.Conn, error) { return d.Dial(ctx, address) }
	return &http.Client{Transport: t}
}

// PublicClient returns an HTTP client that trusts the system's authorities by the node's clock, as Ignition does.
// Unlike the authority of a pointer config, they issue certificates for ninety days, and an old key may be known.
func PublicClient() *http.Client { return &http.Client{Transport: newTransport()} }

func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:            newDialer().DialContext,
		TLSHandshakeTimeout:    handshakeTime,
		DisableCompression:     true,
		ResponseHeaderTimeout:  responseTime,
		MaxResponseHeaderBytes: maxHeader,
	}
}

// Plain removes the URL from an error of net/http. The console already shows the URL, and a URL may
// contain a secret.
func Plain(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
