// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/serve"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

// stoppableUpstream is a Machine Config Server that can be stopped and started again.
type stoppableUpstream struct {
	t       *testing.T
	address string
	ca      string // file
	server  *httptest.Server
	status  atomic.Int32 // of /healthz
}

func newUpstream(t *testing.T) *stoppableUpstream {
	u := &stoppableUpstream{t: t, address: "127.0.0.1:0"}
	u.status.Store(http.StatusOK)
	u.start()
	u.address = u.server.Listener.Addr().String()
	dir := t.TempDir()
	put(t, dir, "ca.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: u.server.Certificate().Raw}))
	u.ca = filepath.Join(dir, "ca.crt")
	t.Cleanup(func() { u.server.Close() })
	return u
}

func (u *stoppableUpstream) start() {
	u.t.Helper()
	l, err := net.Listen("tcp", u.address)
	if err != nil {
		u.t.Fatal(err)
	}
	u.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			w.WriteHeader(int(u.status.Load()))
			return
		}
		_, _ = io.WriteString(w, fullConfig)
	}))
	_ = u.server.Listener.Close()
	u.server.Listener = l
	u.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	u.server.StartTLS()
}

func (u *stoppableUpstream) settings() string {
	return fmt.Sprintf("upstream: https://%s\nupstreamCA: %s\nupstreamName: example.com\n", u.address, u.ca)
}

// get asks a listener and returns status and body.
func (s *served) get(url string) (int, string) {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: s.roots, ServerName: "mcs.test"},
	}}
	res, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(body)
}

// ready is what each of the places says that tell of readiness.
func (s *served) ready() map[string]bool {
	out := map[string]bool{}
	for _, url := range []string{"http://" + s.health + "/readyz", "http://" + s.health + "/readyz?verbose",
		"https://" + s.nodes + "/healthz", "https://" + s.nodes + "/readyz"} {
		status, _ := s.get(url)
		out[url] = status == http.StatusOK
	}
	_, figures := s.get("https://" + s.figure + "/metrics")
	out["metric"] = strings.Contains(figures, "\nmcs_attest_ready 1\n")
	return out
}

func (s *served) eventuallyReady(t *testing.T, want bool) {
	t.Helper()
	eventually(t, func() bool {
		for _, ready := range s.ready() {
			if ready != want {
				return false
			}
		}
		return true
	}, func() string { return fmt.Sprintf("want %t: %v", want, s.ready()) })
}

// A balancer must not send machines to a verifier whose Machine Config Server is
// dead. The process itself lives, so the kubelet must not restart it.
func TestReadinessFollowsTheUpstream(t *testing.T) {
	u := newUpstream(t)
	s := serveFolder(t, u.settings())
	s.eventuallyReady(t, true)

	u.server.Close()
	s.eventuallyReady(t, false)
	if err := s.probe("/healthz"); err != nil {
		t.Errorf("the process lives: %v", err)
	}
	if _, body := s.get("http://" + s.health + "/readyz"); !strings.Contains(body, "upstream: ") {
		t.Errorf("readyz does not name the upstream: %s", body)
	}
	u.start()
	s.eventuallyReady(t, true)

	u.status.Store(http.StatusInternalServerError)
	s.eventuallyReady(t, false)
	u.status.Store(http.StatusNotFound) // a server without /healthz answers
	s.eventuallyReady(t, true)
}

func TestUpstreamCA_IsReadAgain(t *testing.T) {
	u := newUpstream(t)
	right, err := os.ReadFile(u.ca)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := pki.NewCA("foreign", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := serveFolder(t, u.settings())
	put(t, filepath.Dir(u.ca), "ca.crt", foreign.Certificate)
	s.eventuallyReady(t, false)
	put(t, filepath.Dir(u.ca), "ca.crt", right)
	s.eventuallyReady(t, true)
}

func TestReadinessInDetail(t *testing.T) {
	u := newUpstream(t)
	s := serveFolder(t, u.settings())
	status, body := s.get("http://" + s.health + "/readyz?verbose")
	if status != http.StatusOK || !strings.HasSuffix(body, "\nreadyz check passed\n") {
		t.Errorf("%d\n%s", status, body)
	}
	for _, name := range []string{"records", "serving certificate", "provisioning token", "folder", "policies",
		"token keys", "sealing keys", "shutdown", "upstream"} {
		if !strings.Contains(body, "[+]"+name+" ok\n") {
			t.Errorf("%s is not listed:\n%s", name, body)
		}
	}
	u.server.Close()
	s.eventuallyReady(t, false)
	status, body = s.get("http://" + s.health + "/readyz?verbose")
	if status != http.StatusServiceUnavailable || !strings.Contains(body, "[-]upstream failed: ") ||
		!strings.Contains(body, "[+]records ok\n") ||
		!strings.HasSuffix(body, "\nreadyz check failed\n") {
		t.Errorf("%d\n%s", status, body)
	}
	// Strangers reach the nodes' listener, and learn nothing there but the status.
	if _, body := s.get("https://" + s.nodes + "/readyz?verbose"); body != "" {
		t.Errorf("the nodes' listener tells strangers %q", body)
	}
}

func TestServe_RejectsItselfAsUpstream(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "localhost", "127.8.8.8", "[::1]"} {
		for _, listen := range []string{"127.0.0.1", ""} {
			if listen != "" && host != "127.0.0.1" && host != "localhost" {
				continue // another address
			}
			v := newVerifier(t)
			v.stop()
			_, port, _ := net.SplitHostPort(freeAddress(t))
			v.write("mcs-attest.yaml", fmt.Sprintf(
				"origins: [%q]\nlisten: %q\nhealthListen: %q\nmetricsListen: %q\nupstream: %q\n",
				testOrigin, listen+":"+port, freeAddress(t), freeAddress(t), "https://"+host+":"+port))
			c, err := config.Load(filepath.Join(v.dir, "mcs-attest.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- serve.Run(t.Context(), c, v.server.Log, version) }()
			select {
			case err := <-done:
				if err == nil || !strings.Contains(err.Error(), "upstream") {
					t.Errorf("upstream %s, listen %q: %v", host, listen, err)
				}
			case <-time.After(2 * time.Minute):
				t.Fatalf("upstream %s, listen %q: it serves", host, listen)
			}
		}
	}
}

// An upstream that leads back is not always seen at the start: a load balancer, a
// redirection rule or a DNS name may hide it. One request must not become many.
func TestUpstreamLoop_CausesOneDecision(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := startFolder(t, fmt.Sprintf("upstream: https://%s\nupstreamName: mcs.test\n", l.Addr()))
	go forward(l, s.nodes)
	// In mode Off nothing but the upstream decides.
	put(t, s.dir, "policies/default.yaml",
		[]byte("apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\nmetadata: {name: default}\nspec:\n"+
			"  pools: [worker]\n  mode: \"Off\"\n"))
	decisions := func() (n float64) {
		_, figures := s.get("https://" + s.figure + "/metrics")
		for line := range strings.Lines(figures) {
			if strings.HasPrefix(line, "mcs_attest_decisions_total") {
				_, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
				count, err := strconv.ParseFloat(value, 64)
				if err != nil {
					t.Fatal(line)
				}
				n += count
			}
		}
		return n
	}
	eventually(t, func() bool {
		_, body := s.get("http://" + s.health + "/readyz")
		return strings.Contains(body, "upstream: ") && strings.Contains(body, "the gate of a verifier")
	}, func() string { _, body := s.get("http://" + s.health + "/readyz"); return "readyz: " + body })
	s.eventuallyReady(t, false)
	ask := func() bool {
		status, _ := s.get("https://" + s.nodes + "/config/worker")
		return status == http.StatusServiceUnavailable // 401 until the policy is read
	}
	eventually(t, ask, func() string { return "the policy is not in force" })
	before := decisions()
	if !ask() {
		t.Error("the request is not refused")
	}
	if n := decisions() - before; n != 1 {
		t.Errorf("%v decisions for one request", n)
	}
}

// docs/gate.md says what a client without TLS receives.
func TestRequestWithoutTLS_GetsNoConfig(t *testing.T) {
	s := serveFolder(t, "")
	status, body := s.get("http://" + s.nodes + "/config/worker")
	if status != http.StatusUnauthorized || strings.Contains(body, "ignition") {
		t.Errorf("%d %q", status, body)
	}
	if _, figures := s.get("https://" + s.figure + "/metrics"); !strings.Contains(figures, `reason="Plaintext"`) {
		t.Error("it counts as no decision")
	}
}

// forward joins each connection to l with one to address.
func forward(l net.Listener, address string) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer in.Close()
			out, err := net.Dial("tcp", address)
			if err != nil {
				return
			}
			defer out.Close()
			go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
			_, _ = io.Copy(in, out)
		}()
	}
}
