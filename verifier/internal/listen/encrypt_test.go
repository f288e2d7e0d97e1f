// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// describe answers with what the handler learns of the connection.
func describe(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "TLS %t, connection %t", r.TLS != nil, FromContext(r.Context()).conn != nil)
}

func TestEncrypt_PassesBothKindsOfConnections(t *testing.T) {
	addr, roots := serve(t, describe, nil)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	for scheme, want := range map[string]string{
		"https": "TLS true, connection true", "http": "TLS false, connection true",
	} {
		res, err := client.Get(scheme + "://" + addr)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || string(body) != want {
			t.Errorf("%s: %q, %v; want %q", scheme, body, err, want)
		}
	}
}

// Only HTTP is passed on without TLS. Everything else fails in the handshake.
func TestEncrypt_DropsOtherProtocols(t *testing.T) {
	addr, _ := serve(t, describe, nil)
	for _, sent := range []string{"\x00", "\x80\x2e\x01", "ssh-2.0\r\n", "\x16HTTP/1.1\r\n\r\n",
		"get / HTTP/1.1\r\n\r\n"} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(2 * time.Minute)) // of a slow machine
		if _, err := io.WriteString(conn, sent+strings.Repeat("\x00", 16)); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		if strings.Contains(string(answer), "connection") || err != nil && !isReset(err) {
			t.Errorf("%q: %q, %v", sent, answer, err)
		}
		_ = conn.Close()
	}
}

func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && !op.Timeout()
}

// pipes is a listener of connections in memory.
type pipes struct {
	net.Listener
	next chan net.Conn
}

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p.next; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error {
	close(p.next)
	return nil
}

func (p pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.next <- server
	return client
}

// Clients that send nothing hold neither the listener nor a connection for longer than the time for
// headers.
func TestEncrypt_SilentClientsDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := pipes{next: make(chan net.Conn)}
		srv := NewServer(http.HandlerFunc(describe), &Certificates{}, slog.New(slog.DiscardHandler))
		done := make(chan error)
		go func() { done <- srv.Serve(Encrypt(Limit(l, 100, nil), srv.TLSConfig)) }()
		var silent []net.Conn
		for range 50 {
			silent = append(silent, l.dial())
		}
		began := time.Now()
		conn := l.dial()
		go func() { _, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") }()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != http.StatusOK || time.Since(began) > 0 {
			t.Errorf("after %v: %v, %v", time.Since(began), res, err)
		}
		for _, c := range silent {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("a silent connection: %v", err)
			}
		}
		if took := time.Since(began); took != headerTimeout {
			t.Errorf("silent connections are closed after %v", took)
		}
		// A connection that waits for its first byte does not outlive the server.
		last := l.dial()
		_ = srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		go func() { _, _ = io.WriteString(last, "G") }()
		if _, err := last.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("after the server closed: %v", err)
		}
	})
}
