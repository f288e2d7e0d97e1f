// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// connectTime is how long a proxy may take to answer CONNECT.
const connectTime = 30 * time.Second

// tunnel opens a TCP connection to address, through the proxy if one is configured. The proxy sees
// only the address and TLS records, so it needs no trust.
func (d *Dialer) tunnel(ctx context.Context, address string) (net.Conn, error) {
	if d.Proxy == nil {
		return newDialer().DialContext(ctx, "tcp", address)
	}
	conn, err := d.dialProxy(ctx)
	if err != nil {
		return nil, &proxyError{err}
	}
	if err := connectThrough(ctx, conn, address, d.Proxy.User); err != nil {
		return nil, &proxyError{errors.Join(err, conn.Close())}
	}
	return conn, nil
}

// proxyError is an error of the way to the server, and not of the server.
type proxyError struct{ err error }

func (e *proxyError) Error() string { return "proxy: " + e.err.Error() }
func (e *proxyError) Unwrap() error { return e.err }

// dialProxy connects to the proxy. A proxy over TLS receives its password only if its certificate is valid by the
// node's clock and chains to an authority of the system or of the pointer config. Ignition has the same rule.
func (d *Dialer) dialProxy(ctx context.Context) (net.Conn, error) {
	host, port := d.Proxy.Hostname(), d.Proxy.Port()
	switch d.Proxy.Scheme {
	case "http":
		return newDialer().DialContext(ctx, "tcp", net.JoinHostPort(host, cmp.Or(port, "80")))
	case "https":
	default:
		return nil, fmt.Errorf("a proxy over %s is not supported", d.Proxy.Scheme)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	for _, a := range d.authorities {
		roots.AddCert(a)
	}
	dialer := &tls.Dialer{NetDialer: newDialer(), Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	return dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, cmp.Or(port, "443")))
}

// connectThrough sends the CONNECT request (RFC 9110, 9.3.6) and checks the response.
func connectThrough(ctx context.Context, conn net.Conn, address string, user *url.Userinfo) error {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(connectTime)); err != nil {
		return err
	}
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if user != nil {
		password, _ := user.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+
			base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	if err := req.Write(conn); err != nil {
		return err
	}
	// In TLS the client speaks first. So no data follows the proxy's response that the buffer could
	// consume.
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxHeader)), req)
	if err != nil {
		return err
	}
	// The body is not closed. After a 200, closing it would read from the tunnel; otherwise the
	// caller closes the connection.
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("CONNECT failed with HTTP status %d", resp.StatusCode)
	}
	return conn.SetDeadline(time.Time{})
}
