// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
)

// Relay terminates a node's TLS connection and forwards its requests to the verifier on a separate
// connection. It is a legitimate front end if the policy allows it, and an attacker in the middle
// otherwise. It records the node's requests.
type Relay struct {
	r      *Rig
	server *httptest.Server
	ca     []byte

	mu    sync.Mutex
	to    *Verifier
	proxy *httputil.ReverseProxy
	calls []Call
}

// Call is a recorded request.
type Call struct {
	Path, ContentType string
	Body              []byte
	Status            int
}

// NewRelay starts one on a free port, with a certificate of its own CA.
func (r *Rig) NewRelay() *Relay {
	r.t.Helper()
	ca, pair := r.certificate()
	relay := &Relay{r: r, ca: ca}
	relay.server = r.listen(relay, pair)
	return relay
}

// Origin returns the address at which a guest reaches the relay.
func (l *Relay) Origin() string {
	return fmt.Sprintf("https://%s:%d", Host, l.server.Listener.Addr().(*net.TCPAddr).Port)
}

// Pointer returns the pointer config of a node that uses the relay.
func (l *Relay) Pointer(pool string) []byte { return PointerTo(l.Origin(), pool, l.ca) }

// KeySHA256 returns the hash of the public key that it serves with, as in a policy's frontEndKeys.
func (l *Relay) KeySHA256() string {
	sum := sha256.Sum256(l.server.Certificate().RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// To sets the verifier. All requests use one connection, because the exporter binding requires it
// for Challenge and Attest.
func (l *Relay) To(v *Verifier) {
	l.r.t.Helper()
	transport := v.transport()
	transport.MaxConnsPerHost = 1
	transport.DisableCompression = true
	target, err := url.Parse(v.local(""))
	l.r.fatal(err, "relay")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = v
	l.proxy = &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(req *httputil.ProxyRequest) {
			req.SetURL(target)
			req.Out.Host = req.In.Host
			req.SetXForwarded()
		},
	}
}

func (l *Relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	l.mu.Lock()
	proxy := l.proxy
	l.mu.Unlock()
	status := &statusWriter{ResponseWriter: w, status: http.StatusOK}
	proxy.ServeHTTP(status, req)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, Call{req.URL.Path, req.Header.Get("Content-Type"), body, status.status})
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (s *statusWriter) WriteHeader(code int) {
	s.status = code
	s.ResponseWriter.WriteHeader(code)
}

// Last returns the last call to a path that ended with 200.
func (l *Relay) Last(path string) Call {
	l.r.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.calls) - 1; i >= 0; i-- {
		if c := l.calls[i]; c.Path == path && c.Status == http.StatusOK {
			return c
		}
	}
	l.r.t.Fatalf("no successful call to %s passed the relay", path)
	return Call{}
}

// Replay sends a recorded call to the verifier on a new connection.
func (l *Relay) Replay(c Call) (status int, body string) {
	l.r.t.Helper()
	client := l.to.Client()
	defer client.CloseIdleConnections()
	resp, err := client.Post(l.to.local(c.Path), c.ContentType, bytes.NewReader(c.Body))
	l.r.fatal(err, "replay")
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	l.r.fatal(err, "replay")
	return resp.StatusCode, string(b)
}
