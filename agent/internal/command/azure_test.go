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
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/cloudtest"
	"github.com/mcs-attest/mcs-attest/agent/internal/command"
	"github.com/mcs-attest/mcs-attest/agent/internal/verifiertest"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
	mcsattestv1 "github.com/mcs-attest/mcs-attest/proto/mcsattest/v1"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
)

// The machine's side names the audience of the managed identity's token. A
// verifier that asks for another one receives no token at all.
func TestAttack_T65_VerifierCannotChooseTheAudienceOfTheManagedIdentityToken(t *testing.T) {
	tpm := swtpmtest.Start(t, "sha256").Socket // without one the agent waits some seconds for it
	const clientID = "6f1d8a52-0000-4000-8000-00000000c11e"
	for _, c := range []struct {
		name, file, asks string
		want             []string // the resources of the tokens that the machine had made
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
			v := &verifiertest.Verifier{Required: []mcsattestv1.EvidenceKind{mcsattestv1.EvidenceKind_EVIDENCE_KIND_AZURE_ATTESTED}}
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
			cmdline := filepath.Join(dir, "cmdline")
			if err := os.WriteFile(cmdline, []byte("quiet\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			for name, value := range map[string]string{
				"AZURE_TOKEN_RESOURCE": file, "METADATA": m.Serve(t), "RUN": filepath.Join(dir, "run"), "CMDLINE": cmdline,
				"IGNITION_RUNTIME": dir, "IGNITION_LOCAL": dir, "IGNITION_SYSTEM": dir, "TPM": tpm, "DRIVES": dir,
			} {
				t.Setenv("MCS_ATTEST_"+name, value)
			}
			t.Setenv("PLATFORM_ID", "azure")
			var out, errs bytes.Buffer
			status := command.Main(context.Background(), []string{"attest"}, &out, &errs)
			if !slices.Equal(made, c.want) || sent != len(c.want) {
				t.Errorf("tokens made for %q, %d sent; want %q\n%s%s", made, sent, c.want, &out, &errs)
			}
			if honest := len(c.want) > 0 || c.asks == ""; honest != (status == 0) {
				t.Errorf("exit status %d\n%s%s", status, &out, &errs)
			} else if !honest && !strings.Contains(errs.String(), "hint: ") {
				t.Errorf("no hint:\n%s", &errs)
			}
		})
	}
}
