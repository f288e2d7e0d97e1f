// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
)

// proxy returns the URL of an HTTP proxy that accepts one user.
func proxy(t *testing.T, seen *[]string) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*seen = append(*seen, r.Method+" "+r.Host)
		if r.Header.Get("Proxy-Authorization") != "Basic dXNlcjpwYXNz" {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		far, err := net.Dial("tcp", r.Host)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		near, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		// The client speaks only after this. Its first bytes follow the response in the same
		// buffer.
		_, _ = io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(far, buffered); _ = far.Close() }()
		go func() { _, _ = io.Copy(near, far); _ = near.Close() }()
	}))
	t.Cleanup(s.Close)
	return s
}

func urlOf(t *testing.T, s *httptest.Server) *url.URL {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestProxy(t *testing.T) {
	v := &verifiertest.Verifier{}
	v.Start(t)
	var seen []string
	s := proxy(t, &seen)
	s.Start()
	tryProxy(t, v, client.NewDialer([]*x509.Certificate{v.Authority}), urlOf(t, s), &seen)
}

// A proxy over TLS is trusted by the authorities of the pointer config, at the time of the node's clock.
func TestProxyOverTLS(t *testing.T) {
	v := &verifiertest.Verifier{}
	v.Start(t)
	var seen []string
	s := proxy(t, &seen)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // the handshakes that are expected to fail
	s.StartTLS()
	tryProxy(t, v, client.NewDialer([]*x509.Certificate{v.Authority, s.Certificate()}), urlOf(t, s), &seen)

	seen = nil
	d := client.NewDialer([]*x509.Certificate{v.Authority})
	d.Proxy = urlOf(t, s)
	_, err := client.Connect(t.Context(), d, v.Origin)
	if err == nil || !strings.Contains(err.Error(), "proxy: ") ||
		!strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a proxy of another authority: %v", err)
	}
	old := &verifiertest.Verifier{Certificate: func(leaf *x509.Certificate) {
		leaf.NotBefore, leaf.NotAfter = year(2024), year(2025)
	}}
	old.Start(t)
	d = client.NewDialer([]*x509.Certificate{v.Authority, old.Authority})
	d.Proxy = &url.URL{Scheme: "https", Host: strings.TrimPrefix(old.Origin, "https://")}
	if _, err := client.Connect(t.Context(), d, v.Origin); err == nil ||
		!strings.Contains(err.Error(), "proxy: ") || !strings.Contains(err.Error(), "expired") {
		t.Errorf("a proxy with an expired certificate: %v", err)
	}
	if len(seen) > 0 {
		t.Errorf("the proxy saw %q", seen)
	}
}

func TestProxyWithAnotherScheme(t *testing.T) {
	v := &verifiertest.Verifier{}
	v.Start(t)
	d := client.NewDialer([]*x509.Certificate{v.Authority})
	d.Proxy = &url.URL{Scheme: "socks5", Host: "proxy"}
	if _, err := client.Connect(t.Context(), d, v.Origin); err == nil || !strings.Contains(err.Error(), "not supported") {
		t.Errorf("%v", err)
	}
}

// A proxy, or what answers in its place, sends headers without end, or nothing.
func TestProxyThatSendsHeadersWithoutEnd_IsLeft(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	sent := make(chan int, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		n, _ := io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
		for line := strings.Repeat("X-A: "+strings.Repeat("a", 1000)+"\r\n", 100); err == nil; {
			var more int
			more, err = io.WriteString(conn, line)
			n += more
		}
		sent <- n
		_, _ = listener.Accept() // and then nothing
	}()
	d := client.NewDialer(nil)
	d.Proxy = &url.URL{Scheme: "http", Host: listener.Addr().String()}
	if _, err := client.Connect(t.Context(), d, "https://verifier.test:22623"); err == nil {
		t.Error("the response was accepted")
	}
	if n := <-sent; n > 32<<20 { // most of it is in buffers of the kernel
		t.Errorf("%d bytes were sent", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now() // without ctx, the client waits for 30 s
	if _, err := client.Connect(ctx, d, "https://verifier.test:22623"); err == nil || time.Since(start) > 25*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}

func tryProxy(t *testing.T, v *verifiertest.Verifier, d *client.Dialer, at *url.URL, seen *[]string) {
	t.Helper()
	d.Proxy = at
	if _, err := client.Connect(t.Context(), d, v.Origin); err == nil || !strings.Contains(err.Error(), "407") {
		t.Errorf("without a password: %v", err)
	}
	d.Proxy.User = url.UserPassword("user", "pass")
	s, err := client.Connect(t.Context(), d, v.Origin)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if len(*seen) == 0 {
		t.Error("the proxy saw nothing")
	}
	for _, line := range *seen {
		if line != "CONNECT "+strings.TrimPrefix(v.Origin, "https://") {
			t.Errorf("the proxy saw %q", line)
		}
	}
}
