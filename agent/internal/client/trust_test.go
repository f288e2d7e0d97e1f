// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/agent/internal/client"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
)

func connect(t *testing.T, trust, at *verifiertest.Verifier) error {
	t.Helper()
	d := client.NewDialer([]*x509.Certificate{trust.Authority})
	for range 2 { // the second dial uses the time that the first one found
		s, err := client.Connect(t.Context(), d, at.Origin)
		if err != nil {
			return err
		}
		s.Close()
	}
	return nil
}

func year(n int) time.Time { return time.Date(n, 1, 1, 0, 0, 0, 0, time.UTC) }

// Attack T53: the node's clock is wrong by twenty years, so every certificate looks expired or not
// yet valid.
func TestAttack_T53_ClockOfTheNode(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after time.Time
	}{
		{"valid now", year(2025), year(2040)},
		{"valid only in twenty years", year(2043), year(2044)},
		{"valid only twenty years ago", year(2004), year(2006)},
		{"valid from the authority's first second", year(2024), year(2025)},
		{"valid for a second", year(2030), year(2030).Add(time.Second)},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := &verifiertest.Verifier{Certificate: func(leaf *x509.Certificate) {
				leaf.NotBefore, leaf.NotAfter = c.before, c.after
			}}
			v.Start(t)
			err := connect(t, v, v)
			// The authority begins in 2024: before that nothing verifies.
			if wantErr := c.after.Before(year(2024)); wantErr != (err != nil) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// Errors other than the time are rejected as usual.
func TestAttack_T53_OnlyTheTimeIsIgnored(t *testing.T) {
	honest := &verifiertest.Verifier{}
	honest.Start(t)
	if err := connect(t, honest, honest); err != nil {
		t.Fatalf("valid case: %v", err)
	}
	other := &verifiertest.Verifier{}
	other.Start(t)
	if err := connect(t, honest, other); err == nil {
		t.Error("a certificate of another authority was accepted")
	} else if !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a certificate of another authority: %v", err)
	}
	named := &verifiertest.Verifier{Certificate: func(leaf *x509.Certificate) {
		leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 2)}
	}}
	named.Start(t)
	if err := connect(t, named, named); err == nil || !strings.Contains(err.Error(), "127.0.0.2") {
		t.Errorf("a certificate for another address: %v", err)
	}
	usage := &verifiertest.Verifier{Certificate: func(leaf *x509.Certificate) {
		leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}}
	usage.Start(t)
	if err := connect(t, usage, usage); err == nil {
		t.Error("a client's certificate was accepted")
	}
	never := &verifiertest.Verifier{Certificate: func(leaf *x509.Certificate) {
		leaf.NotBefore, leaf.NotAfter = year(2040), year(2030)
	}}
	never.Start(t)
	if err := connect(t, never, never); err == nil {
		t.Error("a certificate that is never valid was accepted")
	}
}

// An authority of the system is not one of the cluster: its certificate for the verifier's name is refused. crypto/x509
// reads the system's authorities once, so the test runs in a process of its own.
func TestAttack_T53_AuthoritiesOfTheSystemAreNotTrusted(t *testing.T) {
	if os.Getenv("TEST_CHILD") == "" {
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "TEST_CHILD=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("error %v; output:\n%s", err, out)
		}
		return
	}
	cluster, public := &verifiertest.Verifier{}, &verifiertest.Verifier{Certificate: func(leaf *x509.Certificate) {
		leaf.NotBefore, leaf.NotAfter = year(2024), time.Now().Add(time.Hour) // valid at the time of the first attempt
	}}
	public.Start(t)
	cluster.Start(t)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: public.Authority.Raw})
	if err := os.WriteFile(roots, block, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", roots)
	res, err := client.PublicClient().Get(public.Origin)
	if err != nil {
		t.Fatalf("valid case: %v", err)
	}
	_ = res.Body.Close()
	for name, trust := range map[string][]*x509.Certificate{"the cluster's": {cluster.Authority}, "none": nil} {
		d := client.NewDialer(trust)
		if s, err := client.Connect(t.Context(), d, public.Origin); err == nil {
			s.Close()
			t.Errorf("authorities: %s. The agent trusts a server of another authority", name)
		} else if !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("authorities: %s. Error %v", name, err)
		}
	}
}
