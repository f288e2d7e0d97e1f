// SPDX-License-Identifier: Apache-2.0

package command_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/cloudtest"
	"github.com/mcs-attest/mcs-attest/agent/internal/command"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
)

// The machine chooses the audience of its managed identity token. A verifier that asks for another
// audience receives no token.
func TestAttack_T65_VerifierCannotChooseTheAudienceOfTheManagedIdentityToken(t *testing.T) {
	tpm := swtpmtest.Start(t, "sha256").Socket // without a TPM the agent waits some seconds for one
	const clientID = "6f1d8a52-0000-4000-8000-00000000c11e"
	for _, c := range []struct {
		name, file, asks string
		want             []string // the resources for which the machine requested a token
	}{
		{"no token", "", "", nil},
		{"the built-in one", "", "api://mcs-attest", []string{"api://mcs-attest"}},
		{"the configured one", clientID + "\n", clientID, []string{clientID}},
		{"the resource manager", "", "https://management.azure.com/", nil},
		{"the resource manager on a configured machine", clientID, "https://management.azure.com/", nil},
		{"the built-in one on a configured machine", clientID, "api://mcs-attest", nil},
		{"a longer name", "", "api://mcs-attest/", nil},
		{"another case", "", "API://mcs-attest", nil},
		{"a second parameter", "", "api://mcs-attest&resource=https://vault.azure.net", nil},
		{"a file that is empty", "\n", "api://mcs-attest", nil},
		{"a file of two lines", "a\nb\n", "a\nb", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := &verifiertest.Verifier{
				Required: []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_AZURE_ATTESTED},
			}
			v.Start(t)
			m := cloudtest.Azure(t, func(i *azure.Instance) { i.UserData = v.Pointer("worker") })
			appraiser := m.Verifiers[evidence.AzureAttested].(*azureattested.Verifier)
			if appraiser.Identity.Resource = c.asks; c.asks == "" {
				appraiser.Identity = nil
			}
			v.Clouds = m.Verifiers
			v.Change = func(r *mcsattestv1.ChallengeResponse) {
				r.Cloud = &mcsattestv1.CloudChallenge{AzureTokenResource: c.asks}
			}
			var mu sync.Mutex
			var made []string
			sent := 0
			metadata := m.Metadata
			m.Metadata = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, "/metadata/identity/") {
					mu.Lock()
					made = append(made, r.URL.Query()["resource"]...)
					mu.Unlock()
				}
				metadata.ServeHTTP(w, r)
			})
			v.AttestFunc = func(r *mcsattestv1.AttestRequest) (*mcsattestv1.AttestResponse, error) {
				for _, e := range r.GetCloud() {
					if len(e.GetToken()) > 0 {
						sent++
					}
				}
				return nil, nil
			}
			dir := t.TempDir()
			file := filepath.Join(dir, "azure-token-resource")
			if c.file != "" {
				if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("MCS_ATTEST_AZURE_TOKEN_RESOURCE", file)
			status, out, errs := attestIn(t, m, tpm)
			if !slices.Equal(made, c.want) || sent != len(c.want) {
				t.Errorf("tokens made for %q, %d sent; want %q\n%s%s", made, sent, c.want, out, errs)
			}
			if honest := len(c.want) > 0 || c.asks == ""; honest != (status == 0) {
				t.Errorf("exit status %d\n%s%s", status, out, errs)
			} else if !honest && !strings.Contains(errs, "hint: ") {
				t.Errorf("no hint:\n%s", errs)
			}
		})
	}
}

// attestIn runs the command on a machine in a cloud.
func attestIn(t *testing.T, m *cloudtest.Machine, tpm string) (status int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	cmdline := filepath.Join(dir, "cmdline")
	if err := os.WriteFile(cmdline, []byte("quiet\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"METADATA": m.Serve(t), "RUN": filepath.Join(dir, "run"), "CMDLINE": cmdline,
		"IGNITION_RUNTIME": dir, "IGNITION_LOCAL": dir, "IGNITION_SYSTEM": dir, "TPM": tpm, "DRIVES": dir,
	} {
		t.Setenv("MCS_ATTEST_"+name, value)
	}
	t.Setenv("PLATFORM_ID", m.Platform)
	var out, errs bytes.Buffer
	status = command.Main(context.Background(), []string{"attest"}, &out, &errs)
	return status, out.String(), errs.String()
}

// If a verifier names one kind of evidence many times, the agent collects none of it.
func TestAttack_T62_RepeatedKindsInAChallengeAreRejected(t *testing.T) {
	tpm := swtpmtest.Start(t, "sha256").Socket
	for name, times := range map[string]int{"once": 1, "twice": 2, "20 000 times": 20_000} {
		t.Run(name, func(t *testing.T) {
			v := &verifiertest.Verifier{Required: slices.Repeat(
				[]mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_GCP_IDENTITY}, times)}
			v.Start(t)
			m := cloudtest.GCP(t, func(i *gcp.Instance) { i.UserData = v.Pointer("worker") })
			v.Clouds = m.Verifiers
			metadata := m.Metadata
			var made atomic.Int32
			m.Metadata = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/identity") {
					made.Add(1)
				}
				metadata.ServeHTTP(w, r)
			})
			status, out, errs := attestIn(t, m, tpm)
			if times == 1 {
				if status != 0 || made.Load() != 1 {
					t.Errorf("exit status %d, %d documents\n%s%s", status, made.Load(), out, errs)
				}
				return
			}
			if status == 0 || made.Load() != 0 || !strings.Contains(errs, "more than once") {
				t.Errorf("exit status %d, %d documents\n%s%s", status, made.Load(), out, errs)
			}
		})
	}
}
