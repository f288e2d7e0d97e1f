// SPDX-License-Identifier: Apache-2.0

package front

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/verifier/internal/backend"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/server"
)

// newFront prepares a front whose API server does not answer.
func newFront(t *testing.T, sections string) *Front {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}], "users": [{"name": "c", "user": {}}],
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("mcs-attest.yaml", fmt.Appendf(nil, "origins: [https://api-int.example.com:22623]\n"+
		"kubernetes: {kubeconfig: %q}\n%s", kubeconfig, sections), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(backend.NewParts(c, slog.New(slog.DiscardHandler), time.Now, "test"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The gate is not opened by a front that has read nothing, or that has no valid certificate.
func TestFront_SaysWhyItIsNotReady(t *testing.T) {
	b, now := newFront(t, "upstream: https://127.0.0.1:22625\n"), time.Now()
	ca, err := pki.NewCA("test", now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Serve([]string{"api-int.example.com"}, now)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(leaf.Certificate, leaf.Key.Expose())
	if err != nil {
		t.Fatal(err)
	}
	want := func(b *Front, at time.Time, problems ...string) {
		t.Helper()
		got := b.Unready(at)
		for _, p := range problems {
			if !slices.Contains(got, p) {
				t.Errorf("it does not say %q: %q", p, got)
			}
		}
		// Each problem is one of a part that the server reports.
		parts := append([]string{"records", "serving certificate"}, b.Checks()...)
		unread := false
		for _, p := range got {
			part, _, _ := strings.Cut(p, ": ")
			unread = unread || part == "cluster"
			if !slices.Contains(parts, part) || part == "serving certificate" && !slices.Contains(problems, p) {
				t.Errorf("unexpected: %q", p)
			}
		}
		if !unread {
			t.Errorf("ready without a cluster: %q", got)
		}
	}
	want(b, now, "serving certificate: none has been read")
	b.serve(&certificate)
	want(b, certificate.Leaf.NotAfter.Add(time.Second), "serving certificate: expired")
	want(b, now)
	problems := strings.Join(server.New(b.parts, b).Problems(), "\n")
	for _, part := range []string{"policies", "token keys", "sealing keys"} {
		if !strings.Contains(problems, "\n"+part+": ") {
			t.Errorf("the server does not report that it has no %s: %s", part, problems)
		}
	}

	b = newFront(t, "render: {}\n")
	b.serve(&certificate)
	want(b, now, "configs: the MachineConfigs have not been read yet")
}

// The absence of an option is an absence of rights: a nil interface must not look like a value.
func TestFront_HasNoPartThatIsNotConfigured(t *testing.T) {
	b := newFront(t, "upstream: https://127.0.0.1:22625\n")
	if b.Credentials() != nil || b.Configs(false) != nil {
		t.Error("credentials or configs are served")
	}
	b = newFront(t, "render: {}\ncredential: {}\n")
	if b.Credentials() == nil || b.Configs(false) == nil {
		t.Error("no credentials, or no configs")
	}
}
