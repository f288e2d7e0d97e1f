// SPDX-License-Identifier: Apache-2.0

package azure_test

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
	"github.com/mcs-attest/mcs-attest/verifier/internal/provider/azure"
)

// caOf returns a file with the certificate of a server.
func caOf(t *testing.T, server *httptest.Server) string {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	return ca
}

// answerARM makes another server the ARM of w.
func (w *fixture) answerARM(t *testing.T, handler http.HandlerFunc) {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	w.config.ARM.URL, w.config.ARM.CA = server.URL, caOf(t, server)
	w.make(t, &secret{})
}

// noCredentials removes those of the environment. A metadata service that is found by accident does not
// answer.
func noCredentials(t *testing.T) {
	t.Helper()
	for _, name := range []string{"AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET",
		"AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_USERNAME", "MSI_ENDPOINT", "MSI_SECRET",
		"IDENTITY_SERVER_THUMBPRINT", "IMDS_ENDPOINT"} {
		t.Setenv(name, "")
	}
	t.Setenv("IDENTITY_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("IDENTITY_HEADER", "x")
}

const armToken = `{"token_type":"Bearer","expires_in":"3599","access_token":"emulated-arm-token"}`

// In a cluster, the verifier has a token of its service account instead of a secret.
func TestVM_IsReadWithAWorkloadIdentity(t *testing.T) {
	w := newFixture(t)
	noCredentials(t)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("of-the-service-account"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AZURE_TENANT_ID", w.cloud.Tenant)
	t.Setenv("AZURE_CLIENT_ID", w.cloud.ClientID)
	t.Setenv("AZURE_FEDERATED_TOKEN_FILE", file)
	login := httptest.NewTLSServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.cloud.API().ServeHTTP(out, r)
			return
		}
		if r.URL.Path != "/"+w.cloud.Tenant+"/oauth2/v2.0/token" || r.PostFormValue("client_id") != w.cloud.ClientID ||
			r.PostFormValue("client_assertion") != "of-the-service-account" {
			t.Errorf("%s for %q", r.URL.Path, r.PostFormValue("client_id"))
		}
		out.Header().Set("Content-Type", "application/json")
		_, _ = out.Write([]byte(strings.Replace(armToken, `"3599"`, "3599", 1)))
	}))
	t.Cleanup(login.Close)
	w.config.Login.URL, w.config.Login.CA = login.URL, caOf(t, login)
	w.make(t, nil)
	if vm, err := w.provider.VM(t.Context(), w.machine.ResourceID()); err != nil || vm.VMID != w.machine.VMID {
		t.Errorf("%+v, %v: %s", vm, err, &w.log)
	}
}

// A managed identity is that of the host, or the one with the configured client id.
func TestVM_IsReadWithAManagedIdentity(t *testing.T) {
	for name, client := range map[string]string{"of the host": "",
		"with a client id": "11111111-2222-3333-4444-555555555555"} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			noCredentials(t)
			identity := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
				if q := r.URL.Query(); q.Get("client_id") != client || r.Header.Get("X-Identity-Header") != "proof" ||
					q.Get("resource") != "https://management.core.windows.net/" {
					t.Errorf("the query %q", q)
				}
				out.Header().Set("Content-Type", "application/json")
				_, _ = out.Write([]byte(armToken))
			}))
			t.Cleanup(identity.Close)
			t.Setenv("IDENTITY_ENDPOINT", identity.URL)
			t.Setenv("IDENTITY_HEADER", "proof")
			t.Setenv("AZURE_CLIENT_ID", client)
			w.make(t, nil)
			if vm, err := w.provider.VM(t.Context(), w.machine.ResourceID()); err != nil || vm.VMID != w.machine.VMID {
				t.Errorf("%+v, %v: %s", vm, err, &w.log)
			}
		})
	}
}

// Cloud Shell has no identity with a client id, and the environment has no other credentials.
func TestNew_RequiresCredentials(t *testing.T) {
	w := newFixture(t)
	noCredentials(t)
	t.Setenv("IDENTITY_ENDPOINT", "")
	t.Setenv("MSI_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("AZURE_CLIENT_ID", w.cloud.ClientID)
	p, err := azure.New(w.config, nil, outbound.Options{})
	if err == nil || p != nil || !strings.HasPrefix(err.Error(), "azure: credentials: ") {
		t.Errorf("%v, %v", p, err)
	}
}

func TestNew_UsesTheSystemsClock(t *testing.T) {
	w := newFixture(t)
	p, err := azure.New(w.config, &secret{}, outbound.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if key, err := p.Identity().Keys.Key(t.Context(), w.keyID(t)); err != nil || key == nil {
		t.Errorf("%v, %v", key, err)
	}
}

func TestVM_DeniesATextThatIsNoResourceID(t *testing.T) {
	w := newFixture(t)
	for _, id := range []string{"", "ocp-worker-1", "/", "/machines/ocp-worker-1"} {
		_, err := w.provider.VM(t.Context(), id)
		denied(t, err, reason.InstanceNotFound)
	}
}

// An answer of 1 MiB is accepted; a longer one is not, whatever it says.
func TestVM_LimitsTheSizeOfAnAnswer(t *testing.T) {
	w := newFixture(t)
	body := `{"id":"/subscriptions/a/x","properties":{"vmId":"v"}}`
	for size, accepted := range map[int]bool{1 << 20: true, 1<<20 + 1: false} {
		w.answerARM(t, func(out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Content-Type", "application/json")
			_, _ = out.Write([]byte(body + strings.Repeat(" ", size-len(body))))
		})
		vm, err := w.provider.VM(t.Context(), w.machine.ResourceID())
		if !accepted {
			denied(t, err, reason.ProviderUnavailable)
			continue
		}
		if err != nil || vm.VMID != "v" {
			t.Errorf("%d bytes: %+v, %v", size, vm, err)
		}
	}
}

// The verifier only reads. It does not register a resource provider in the subscription, as the SDK does
// by default.
func TestVM_SendsOneRequestWhateverTheAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		status     int
		code, says string
	}{
		"not registered":        {409, "MissingSubscriptionRegistration", "409"},
		"not authenticated":     {401, "AuthenticationFailed", "role Reader"},
		"temporarily not there": {503, "ServerBusy", "503"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			var asked []string
			w.answerARM(t, func(out http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.Method+" "+r.URL.Path)
				out.Header().Set("Content-Type", "application/json")
				out.WriteHeader(c.status)
				_, _ = fmt.Fprintf(out, `{"error":{"code":%q,"message":"The subscription is not registered to use `+
					`namespace 'Microsoft.Compute'."}}`, c.code)
			})
			_, err := w.provider.VM(t.Context(), w.machine.ResourceID())
			denied(t, err, reason.ProviderUnavailable)
			if len(asked) != 1 || asked[0] != "GET "+w.machine.ResourceID() || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q: %v", asked, err)
			}
		})
	}
}

// The cached answer about a machine is not that about a machine of the same name elsewhere.
func TestVM_DistinguishesMachinesOfTheSameName(t *testing.T) {
	const one, two = "aaaaaaaa-1111-2222-3333-444444444444", "bbbbbbbb-1111-2222-3333-444444444444"
	w := newFixture(t)
	w.config.Subscriptions = []string{one, strings.ToUpper(two)}
	w.answerARM(t, func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(out, `{"id":%q,"properties":{"vmId":%q}}`, r.URL.Path, "of "+r.URL.Path)
	})
	for range 2 {
		for _, subscription := range []string{one, two} {
			for _, group := range []string{"a", "b"} {
				id := "/subscriptions/" + subscription + "/resourceGroups/" + group +
					"/providers/Microsoft.Compute/virtualMachines/worker"
				if vm, err := w.provider.VM(t.Context(), id); err != nil || vm.ResourceID != id || vm.VMID != "of "+id {
					t.Errorf("%s: %+v, %v", id, vm, err)
				}
			}
		}
	}
	if len(w.calls) != 4 {
		t.Errorf("%d calls", len(w.calls))
	}
	w.later(time.Minute)
	_, err := w.provider.VM(t.Context(), w.machine.ResourceID())
	denied(t, err, reason.AccountNotAllowed)
}
