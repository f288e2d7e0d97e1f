// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
)

// proxy returns the URL of an HTTP proxy that accepts one user.
func proxy(t *testing.T, seen *[]string) *url.URL {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	d := client.NewDialer([]*x509.Certificate{v.Authority})
	d.Proxy = proxy(t, &seen)
	if _, err := client.Connect(t.Context(), d, v.Origin); err == nil || !strings.Contains(err.Error(), "407") {
		t.Errorf("without a password: %v", err)
	}
	d.Proxy.User = url.UserPassword("user", "pass")
	s, err := client.Connect(t.Context(), d, v.Origin)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	for _, line := range seen {
		if line != "CONNECT "+strings.TrimPrefix(v.Origin, "https://") {
			t.Errorf("the proxy saw %q", line)
		}
	}
	d.Proxy = &url.URL{Scheme: "https", Host: "proxy"}
	if _, err := client.Connect(t.Context(), d, v.Origin); err == nil || !strings.Contains(err.Error(), "not supported") {
		t.Errorf("a proxy over TLS: %v", err)
	}
}
