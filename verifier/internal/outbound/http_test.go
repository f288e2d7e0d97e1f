// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

// lossy is a listener whose first connection loses everything that the server writes, once lost is set.
// Nothing ends the connection.
type lossy struct {
	net.Listener
	accepted atomic.Int32
	lost     atomic.Bool
}

func (l *lossy) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil || l.accepted.Add(1) > 1 {
		return c, err
	}
	return lossyConn{c, &l.lost}, nil
}

type lossyConn struct {
	net.Conn
	lost *atomic.Bool
}

func (c lossyConn) Write(p []byte) (int, error) {
	if c.lost.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// A firewall after a failover drops the packets of older connections.
func TestClient_ReplacesADeadConnection(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	}))
	l := &lossy{Listener: server.Listener}
	server.Listener, server.EnableHTTP2 = l, true
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	client := outbound.NewClientOf(roots, 1<<20)
	get := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // that of a call
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if raw, err := io.ReadAll(answer.Body); err != nil || string(raw) != "HTTP/2.0" {
			t.Fatalf("%q, %v", raw, err)
		}
		return nil
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	l.lost.Store(true)
	err := get()
	if err == nil {
		t.Fatal("an answer over the dead connection")
	}
	if err = get(); errors.Is(err, context.DeadlineExceeded) {
		err = get() // if the host paused, the client detects the loss only after the first call
	}
	if err != nil {
		t.Errorf("the next call: %v", err)
	}
}
