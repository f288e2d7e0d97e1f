// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
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
	dialer := newDialer()
	if d.Proxy == nil {
		return dialer.DialContext(ctx, "tcp", address)
	}
	if d.Proxy.Scheme != "http" {
		return nil, fmt.Errorf("a proxy over %s is not supported", d.Proxy.Scheme)
	}
	port := d.Proxy.Port()
	port = cmp.Or(port, "80")
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(d.Proxy.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	if err := connectThrough(conn, address, d.Proxy.User); err != nil {
		return nil, fmt.Errorf("proxy: %w", errors.Join(err, conn.Close()))
	}
	return conn, nil
}

// connectThrough sends the CONNECT request (RFC 9110, 9.3.6) and checks the response.
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
	// In TLS the client speaks first. So no data follows the proxy's response that the buffer could
	// consume.
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
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
