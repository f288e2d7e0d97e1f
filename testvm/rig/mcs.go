// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

// MCS answers like the Machine Config Server (machine-config-operator, pkg/server/api.go): only GET
// and HEAD, 405 for other methods, 404 outside of /config/ and /healthz, 500 for an unknown pool.
type MCS struct {
	r        *Rig
	listener net.Listener
	ca       []byte
	cert     tls.Certificate

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
	cert, ca := r.serverCertificate()
	m.ca, m.cert = ca, cert
	listener, err := tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	r.fatal(err, "plain MCS")
	m.listener = listener
	// Like the real one, it does not support HTTP/2.
	server := &http.Server{Handler: m, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); err != http.ErrServerClosed {
			r.t.Logf("rig: plain MCS: %v", err)
		}
	}()
	r.t.Cleanup(func() { server.Close() })
	return m
}

// Port returns the port on which it listens.
func (m *MCS) Port() int { return m.listener.Addr().(*net.TCPAddr).Port }

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
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	r.fatal(err, "web server")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, _ *http.Request) {
		if _, err := w.Write(content); err != nil {
			r.t.Logf("rig: web server: %v", err)
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); err != http.ErrServerClosed {
			r.t.Logf("rig: web server: %v", err)
		}
	}()
	r.t.Cleanup(func() { server.Close() })
	return fmt.Sprintf("http://%s:%d/%s", Host, listener.Addr().(*net.TCPAddr).Port, name)
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

// serverCertificate creates a P-256 CA and a serving certificate under it.
func (r *Rig) serverCertificate() (tls.Certificate, []byte) {
	r.t.Helper()
	now := time.Now()
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	r.fatal(err, "certificate")
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "rig CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0), KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	r.fatal(err, "certificate")
	leaf, key := r.sign(ca, caKey)
	return tls.Certificate{Certificate: [][]byte{leaf}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
}

// sign creates a P-256 serving certificate for the host's address in the guest, and 127.0.0.1.
func (r *Rig) sign(ca *x509.Certificate, caKey crypto.Signer) (der []byte, key *ecdsa.PrivateKey) {
	r.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	r.fatal(err, "certificate")
	now := time.Now()
	der, err = x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "machine-config-server"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.ParseIP(Host), net.ParseIP(CloudHost), net.IPv4(127, 0, 0, 1)},
	}, ca, key.Public(), caKey)
	r.fatal(err, "certificate")
	return der, key
}
