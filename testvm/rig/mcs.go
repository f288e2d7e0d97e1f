// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
)

// MCS answers like the Machine Config Server (machine-config-operator, pkg/server/api.go): only GET
// and HEAD, 405 for other methods, 404 outside of /config/ and /healthz, 500 for an unknown pool.
type MCS struct {
	r      *Rig
	server *httptest.Server
	ca     []byte
	pair   pki.Pair

	mu       sync.Mutex
	configs  map[string]string
	down     bool
	requests []string
}

// NewMCS starts one on a free port of the loopback interface, with a certificate for the address
// that a guest uses and for 127.0.0.1.
func (r *Rig) NewMCS(configs map[string]string) *MCS {
	r.t.Helper()
	m := &MCS{r: r, configs: configs}
	m.ca, m.pair = r.certificate()
	m.server = r.listen(m, m.pair) // like the real one, it does not support HTTP/2
	return m
}

// Port returns the port on which it listens.
func (m *MCS) Port() int { return m.server.Listener.Addr().(*net.TCPAddr).Port }

// URL returns its address on the host.
func (m *MCS) URL() string { return fmt.Sprintf("https://127.0.0.1:%d", m.Port()) }

// CA returns the certificate authority in PEM.
func (m *MCS) CA() []byte { return m.ca }

// SetDown makes it answer 503 to every request for a config, like a server that cannot reach the
// API server. Its /healthz still returns 200, like the real one's, so the verifiers in front stay
// ready.
func (m *MCS) SetDown(down bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = down
}

// Set replaces a pool's config.
func (m *MCS) Set(pool, config string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.configs == nil {
		m.configs = map[string]string{}
	}
	m.configs[pool] = config
}

// Requests returns "METHOD path" of every request so far, except those for /healthz.
func (m *MCS) Requests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.requests...)
}

func (m *MCS) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if req.URL.Path == "/healthz" {
		w.Header().Set("Content-Length", "0")
		return
	}
	m.requests = append(m.requests, req.Method+" "+req.URL.Path)
	if m.down {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if !strings.HasPrefix(req.URL.Path, "/config/") {
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(http.StatusNotFound)
		return
	}
	config, ok := m.configs[path.Base(req.URL.Path)]
	if !ok {
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", fmt.Sprint(len(config)))
	if req.Method == http.MethodGet {
		if _, err := w.Write([]byte(config)); err != nil {
			m.r.t.Logf("rig: plain MCS: %v", err)
		}
	}
}

// Serve serves one file over plain HTTP and returns its address for a guest.
func (r *Rig) Serve(name string, content []byte) string {
	r.t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := w.Write(content); err != nil {
			r.t.Logf("rig: web server: %v", err)
		}
	}))
	r.t.Cleanup(server.Close)
	return fmt.Sprintf("http://%s:%d/%s", Host, server.Listener.Addr().(*net.TCPAddr).Port, name)
}

// PointerTo returns a pointer config in the form of an OpenShift installer: one merge source and
// its CA.
func PointerTo(origin, pool string, ca []byte) []byte {
	b, err := json.Marshal(map[string]any{"ignition": map[string]any{
		"version": "3.2.0",
		"config":  map[string]any{"merge": []any{map[string]any{"source": origin + "/config/" + pool}}},
		"security": map[string]any{"tls": map[string]any{"certificateAuthorities": []any{
			map[string]any{"source": "data:text/plain;charset=utf-8;base64," + base64.StdEncoding.EncodeToString(ca)},
		}}},
	}})
	if err != nil {
		panic(err) // maps of strings always marshal
	}
	return b
}

// Pointer returns the pointer config of a node that uses this server.
func (m *MCS) Pointer(pool string) []byte {
	return PointerTo(fmt.Sprintf("https://%s:%d", Host, m.Port()), pool, m.ca)
}

// Config returns a rendered Ignition config that writes /etc/provisioned, the file that scenarios
// check.
func Config(content string) string {
	return ConfigWith(map[string]string{"/etc/provisioned": content})
}

// ConfigWith returns a rendered Ignition config with these files.
func ConfigWith(files map[string]string) string {
	var list []any
	for name, content := range files {
		list = append(list, map[string]any{
			"path": name, "mode": 0o600, "overwrite": true,
			"contents": map[string]any{"source": "data:;base64," + base64.StdEncoding.EncodeToString([]byte(content))},
		})
	}
	b, err := json.Marshal(map[string]any{
		"ignition": map[string]any{"version": "3.2.0"},
		"storage":  map[string]any{"files": list},
	})
	if err != nil {
		panic(err) // maps of strings always marshal
	}
	return string(b)
}

// certificate creates a CA and a serving certificate under it, for the host's address in the guest and 127.0.0.1.
func (r *Rig) certificate() (ca []byte, serving pki.Pair) {
	r.t.Helper()
	authority, err := pki.NewCA("rig CA", time.Now())
	r.fatal(err, "certificate")
	return authority.Certificate, r.sign(authority)
}

func (r *Rig) sign(ca pki.Pair) pki.Pair {
	r.t.Helper()
	pair, err := ca.Serve([]string{Host, CloudHost, "127.0.0.1"}, time.Now())
	r.fatal(err, "certificate")
	return pair
}

// listen serves with TLS on a free port of the loopback interface until the test ends.
func (r *Rig) listen(h http.Handler, pair pki.Pair) *httptest.Server {
	r.t.Helper()
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key.Expose())
	r.fatal(err, "certificate")
	server := httptest.NewUnstartedServer(h)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	r.t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server
}
