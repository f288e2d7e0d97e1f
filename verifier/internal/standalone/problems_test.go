// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/policy"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
)

func TestProblems_ReportsAServingCertificateBeforeItExpires(t *testing.T) {
	now := time.Now()
	ca, err := pki.NewCA("test", now)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Serve([]string{"mcs.test"}, now)
	if err != nil {
		t.Fatal(err)
	}
	c := &config.Config{Data: t.TempDir()}
	if err := os.Mkdir(filepath.Join(c.Data, "tls"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"tls.crt": pair.Certificate, "tls.key": pair.Key.Expose()} {
		if err := os.WriteFile(c.Path("tls", name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	serving, err := pki.ParseServing([][]byte{pair.Certificate, pair.Key.Expose()})
	if err != nil {
		t.Fatal(err)
	}
	end := serving.Leaf.NotAfter
	for _, tt := range []struct {
		at   time.Time
		want string
	}{
		{now, ""}, {end.Add(-31 * 24 * time.Hour), ""}, {end.Add(-29 * 24 * time.Hour), "CertificateExpiresSoon: "},
		{end.Add(time.Minute), "CertificateExpired: "},
	} {
		got := strings.Join(problems(c, tt.at), "\n")
		if tt.want == "" && got != "" || !strings.HasPrefix(got, tt.want) {
			t.Errorf("at %v: %q, want %q", tt.at, got, tt.want)
		}
	}
}

func TestProblems_ReportsAReadableKeyInAFolderWithAnyName(t *testing.T) {
	c := &config.Config{Data: filepath.Join(t.TempDir(), "v[1]*?")}
	if err := os.MkdirAll(c.Path("keys"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Path("keys", "token.json"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(problems(c, time.Now()), "\n"); !strings.HasPrefix(got, "KeyReadable: ") ||
		!strings.Contains(got, c.Path("keys", "token.json")) {
		t.Errorf("got %q", got)
	}
}

func TestProblems_ReportsAPoolWhoseConfigCarriesNoAgent(t *testing.T) {
	policies, err := policy.Compile(v1alpha1.AttestationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: v1alpha1.AttestationPolicySpec{
			Pools: []string{"worker"}, Unattested: v1alpha1.UnattestedPreApproved, Stage: v1alpha1.StageRealRoot,
		}})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(agentProblems(&config.Config{}, policies), "\n")
	if !strings.HasPrefix(got, "AgentsMissing: the policy of pool worker ") {
		t.Errorf("without agents: %q", got)
	}
	if got := agentProblems(&config.Config{Agents: &config.Agents{}}, policies); len(got) > 0 {
		t.Errorf("with agents: %q", got)
	}
}
