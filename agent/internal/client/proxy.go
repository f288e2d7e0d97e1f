package client

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"
)

// connectTime bounds what a proxy takes to answer CONNECT.
const connectTime = 30 * time.Second

// tunnel opens a connection to address, through the proxy if there is one. The
// proxy sees an address and TLS; it needs no trust.
func (d *Dialer) tunnel(ctx context.Context, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: dialTime}
	if d.Proxy == nil {
		return dialer.DialContext(ctx, "tcp", address)
	}
	if d.Proxy.Scheme != "http" {
		return nil, fmt.Errorf("a proxy over %s is not supported", d.Proxy.Scheme)
	}
	port := d.Proxy.Port()
	if port == "" {
		port = "80"
	}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(d.Proxy.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	if err := connectThrough(conn, address, d.Proxy.User); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, conn.Close()))
	}
	return conn, nil
}

// connectThrough is the CONNECT method (RFC 9110, 9.3.6).
func connectThrough(conn net.Conn, address string, user *url.Userinfo) error {
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
	// The server speaks TLS, in which the client begins: nothing follows the
	// proxy's answer that the buffer could swallow.
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return err
	}
	// Its body is not closed: after a 200 that would read on into the tunnel, and
	// otherwise the connection ends.
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answered CONNECT with HTTP status %d", resp.StatusCode)
	}
	return conn.SetDeadline(time.Time{})
}
