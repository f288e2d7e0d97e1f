// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/cli/serve"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/server"
)

// served is the command "serve" on a folder, with its three listeners.
type served struct {
	dir                   string
	roots                 *x509.CertPool
	nodes, health, figure string
}

// serveFolder makes a folder, runs "serve" on it until the test ends, and waits
// until it is ready.
func serveFolder(t *testing.T, settings string) *served {
	t.Helper()
	s := startFolder(t, settings)
	eventually(t, func() bool { return s.probe("/readyz") == nil },
		func() string { return fmt.Sprint("not ready: ", s.probe("/readyz")) })
	return s
}

// startFolder is serveFolder without the wait.
func startFolder(t *testing.T, settings string) *served {
	t.Helper()
	v := newVerifier(t)
	v.stop()
	s := &served{dir: v.dir, roots: v.roots, nodes: freeAddress(t), health: freeAddress(t), figure: freeAddress(t)}
	v.write("mcs-attest.yaml", fmt.Sprintf("origins: [%q]\nlisten: %q\nhealthListen: %q\nmetricsListen: %q\n%s",
		testOrigin, s.nodes, s.health, s.figure, settings))
	c, err := config.Load(filepath.Join(v.dir, "mcs-attest.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve.Run(ctx, c, v.server.Log, version) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error("serve:", err)
		}
	})
	eventually(t, func() bool { return s.probe("/healthz") == nil },
		func() string { return fmt.Sprint("not alive: ", s.probe("/healthz")) })
	return s
}

// probe asks as the kubelet does, on a connection of its own.
func (s *served) probe(path string) error { return s.probeWithin(path, time.Minute) }

func (s *served) probeWithin(path string, limit time.Duration) error {
	client := &http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get("http://" + s.health + path)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(res.Body)
		return fmt.Errorf("%s: %s", res.Status, body)
	}
	return nil
}

// hold opens n connections to address, from several addresses of this host, and
// sends nothing.
func hold(t *testing.T, address string, n int) {
	t.Helper()
	for i := range n {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%8))}}
		c, err := d.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
}

func TestAttack_T61_ProbesAnswerWhileEveryOtherConnectionIsHeld(t *testing.T) {
	s := serveFolder(t, "maxConnections: 64\n")
	for range 3 {
		for _, path := range []string{"/healthz", "/readyz"} {
			hold(t, s.figure, 2*server.MaxOperators)
			hold(t, s.nodes, 128)
			// The verifier closes silent connections only after ten seconds.
			if err := s.probeWithin(path, 8*time.Second); err != nil {
				t.Errorf("%s while strangers hold the connections: %v", path, err)
			}
		}
	}
}

func TestAttack_T61_HealthListensOnTheLoopbackOnly(t *testing.T) {
	for _, address := range []string{":22681", "0.0.0.0:22681", "[::]:22681", "192.0.2.1:22681", "example.com:22681"} {
		_, err := config.Parse("test", []byte(fmt.Sprintf("origins: [%q]\nhealthListen: %q\n", testOrigin, address)),
			t.TempDir())
		if err == nil || !strings.Contains(err.Error(), "loopback") {
			t.Errorf("healthListen %s: %v", address, err)
		}
		v := newVerifier(t)
		v.stop()
		root := command("serve", "--config", filepath.Join(v.dir, "mcs-attest.yaml"), "--health-listen", address)
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "loopback") {
			t.Errorf("--health-listen %s: %v", address, err)
		}
	}
}

// metricsOver reads the metrics as a client that trusts roots.
func metricsOver(address string, roots *x509.CertPool, name, bearer string) (int, string, error) {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name},
	}}
	req, err := http.NewRequest(http.MethodGet, "https://"+address+"/metrics", nil)
	if err != nil {
		return 0, "", err
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}

func TestMetricsAreServedOverTLSOnly(t *testing.T) {
	certificates := t.TempDir()
	s := serveFolder(t, "metricsCertificate: "+certificates+"\n")
	code, body, err := metricsOver(s.figure, s.roots, "mcs.test", "")
	if err != nil || code != http.StatusOK || !strings.Contains(body, "mcs_attest_objects") {
		t.Errorf("with the folder's certificate: %d, %v", code, err)
	}
	if res, err := http.Get("http://" + s.figure + "/metrics"); err == nil {
		defer res.Body.Close()
		if text, _ := io.ReadAll(res.Body); res.StatusCode == http.StatusOK || bytes.Contains(text, []byte("mcs_attest")) {
			t.Error("the metrics are served in clear")
		}
	}
	for _, path := range []string{"/metrics", "/"} {
		if err := s.probe(path); err == nil {
			t.Errorf("the listener for health serves %s", path)
		}
	}
}

// In a cluster the API server decides who may read the metrics, as the account of
// deploy/ may ask it.
func TestMetricsInAClusterNeedATokenThatTheAPIServerAccepts(t *testing.T) {
	rs := newReplicas(t, cluster.StartShared(t), 1)
	r := rs.all[0]
	r.waitReady()
	read := func(bearer string) int {
		t.Helper()
		code, body, err := metricsOver(r.metrics, rs.roots, "mcs.test", bearer)
		if err != nil {
			t.Fatal(err)
		}
		if code != http.StatusOK && strings.Contains(body, "mcs_attest") {
			t.Errorf("an answer of %d has the metrics", code)
		}
		return code
	}
	prometheus := rs.cluster.ServiceAccount(t, "openshift-monitoring", "prometheus-k8s").BearerToken
	stranger := rs.cluster.ServiceAccount(t, "default", "stranger").BearerToken
	for _, c := range []struct {
		name, token string
		want        int
	}{
		{"no token", "", http.StatusUnauthorized},
		{"an unknown token", "abc", http.StatusUnauthorized},
		{"a forged token", prometheus[:len(prometheus)-8] + "AAAAAAAA", http.StatusUnauthorized},
		{"an account without the right", stranger, http.StatusForbidden},
		{"Prometheus", prometheus, http.StatusOK},
	} {
		if code := read(c.token); code != c.want {
			t.Errorf("%s: %d, want %d", c.name, code, c.want)
		}
	}

	// Unknown tokens cause a bounded number of reviews, and Prometheus reads on.
	codes, began := map[int]int{}, time.Now()
	for i := range 60 {
		codes[read(fmt.Sprintf("guess-%d", i))]++
	}
	// A burst of 10, and one a second.
	if took := time.Since(began); codes[http.StatusUnauthorized] > 11+int(took.Seconds()) {
		t.Errorf("60 unknown tokens in %v: %v", took, codes)
	}
	if code := read(prometheus); code != http.StatusOK {
		t.Errorf("Prometheus, while a stranger guesses from the same address: %d", code)
	}
}
