// SPDX-License-Identifier: Apache-2.0

package azure_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	emulator "github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
	"github.com/mcs-attest/mcs-attest/verifier/internal/provider/azure"
)

// fixture is an emulated Azure with one machine, and the provider that asks it.
type fixture struct {
	cloud    *emulator.Cloud
	machine  *emulator.Instance
	provider *azure.Provider
	config   config.Azure
	log      bytes.Buffer

	mu    sync.Mutex
	now   time.Time
	calls []string
}

func (w *fixture) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *fixture) later(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

var emulated = sync.OnceValues(emulator.New)

// newFixture serves the cloud's API over HTTPS. The verifier's credentials are the
// environment's, as in a cluster.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	cloud, err := emulated()
	if err != nil {
		t.Fatal(err)
	}
	cloud.Fail(emulator.Faults{})
	w := &fixture{cloud: cloud, now: time.Now()}
	w.machine = &emulator.Instance{Name: "ocp-worker-1", ResourceGroup: "ocp-rg",
		VMID: "bd8e7443-24a0-41f3-b949-8baf4fd1c573", Identity: "system"}
	if err := cloud.Add(w.machine); err != nil {
		t.Fatal(err)
	}
	server, err := cloud.Serve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, server.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AZURE_TENANT_ID", cloud.Tenant)
	t.Setenv("AZURE_CLIENT_ID", cloud.ClientID)
	t.Setenv("AZURE_CLIENT_SECRET", cloud.ClientSecret)
	w.config = config.Azure{
		Subscriptions: []string{strings.ToUpper(cloud.Subscription)}, Cloud: "Public",
		ARM: config.Endpoint{URL: server.URL, CA: ca}, Login: config.Endpoint{URL: server.URL, CA: ca},
		ManagedIdentity: &config.ManagedIdentity{Tenant: cloud.Tenant, Resource: "api://mcs-attest"},
	}
	w.make(t, nil)
	return w
}

func (w *fixture) make(t *testing.T, credential azcore.TokenCredential) {
	t.Helper()
	var err error
	w.provider, err = azure.New(w.config, credential, outbound.Options{
		Now: w.clock, Log: slog.New(slog.NewTextHandler(&w.log, nil)),
		Called: func(provider, operation, outcome string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.calls = append(w.calls, provider+" "+operation+" "+outcome)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func denied(t *testing.T, err error, want reason.Code) {
	t.Helper()
	var d *reason.Denial
	if !errors.As(err, &d) || d.Code != want {
		t.Fatalf("want %v, got %v", want, err)
	}
}

func TestVM_IsReadWithTheRealSDK(t *testing.T) {
	w := newFixture(t)
	before := w.cloud.Calls("token")
	for range 3 {
		vm, err := w.provider.VM(t.Context(), w.machine.ResourceID())
		if err != nil {
			t.Fatal(err)
		}
		if vm.VMID != w.machine.VMID || !strings.EqualFold(vm.ResourceID, w.machine.ResourceID()) ||
			vm.Provisioning != "Succeeded" || vm.Created.IsZero() {
			t.Fatalf("%+v", vm)
		}
		w.later(4 * time.Second)
	}
	if n := w.cloud.Calls("token") - before; n != 1 {
		t.Fatalf("%d tokens for ARM", n)
	}
	if fmt.Sprint(w.calls) != "[azure VirtualMachines.Get ok azure VirtualMachines.Get ok azure VirtualMachines.Get ok]" {
		t.Fatal(w.calls)
	}
}

// A machine that tries again and again, with its own documents and the name of any
// machine of the subscription, makes one call in three seconds for each name.
func TestAttack_T51_OneMachineThatSendsRequestsWithoutEnd(t *testing.T) {
	w := newFixture(t)
	other := &emulator.Instance{Name: "ocp-worker-2", ResourceGroup: w.machine.ResourceGroup,
		VMID: "cd8e7443-24a0-41f3-b949-8baf4fd1c574"}
	if err := w.cloud.Add(other); err != nil {
		t.Fatal(err)
	}
	before := w.cloud.Calls("vm")
	for range 50 {
		for _, m := range []*emulator.Instance{w.machine, other} {
			vm, err := w.provider.VM(t.Context(), m.ResourceID())
			if err != nil || vm.VMID != m.VMID {
				t.Fatalf("%+v %v", vm, err)
			}
			// In another case it is the same machine, and the same question.
			if vm, err = w.provider.VM(t.Context(), strings.ToUpper(m.ResourceID())); err != nil || vm.VMID != m.VMID {
				t.Fatalf("%+v %v", vm, err)
			}
		}
	}
	if n := w.cloud.Calls("vm") - before; n != 2 {
		t.Fatalf("%d calls", n)
	}
	// Made again under its name: what is kept does not outlive a boot.
	again := *w.machine
	again.VMID = "dd8e7443-24a0-41f3-b949-8baf4fd1c575"
	if err := w.cloud.Add(&again); err != nil {
		t.Fatal(err)
	}
	w.later(3*time.Second + time.Millisecond)
	if vm, err := w.provider.VM(t.Context(), w.machine.ResourceID()); err != nil || vm.VMID != again.VMID {
		t.Fatalf("%+v %v", vm, err)
	}
}

func TestWhenAzureFails(t *testing.T) {
	for name, test := range map[string]struct {
		change func(w *fixture, id *string)
		want   reason.Code
		says   string
		sent   int // calls that reach ARM
	}{
		"it does not know the machine": {change: func(w *fixture, id *string) { *id += "-deleted" },
			want: reason.InstanceNotFound, sent: 1},
		"it may not be asked": {change: func(w *fixture, _ *string) {
			w.cloud.Fail(emulator.Faults{Status: 403})
		}, want: reason.ProviderUnavailable, says: "Microsoft.Compute/virtualMachines/read", sent: 1},
		"it is too much for it": {change: func(w *fixture, _ *string) {
			w.cloud.Fail(emulator.Faults{Status: 429})
		}, want: reason.ProviderUnavailable, says: "429", sent: 1},
		"it is broken": {change: func(w *fixture, _ *string) { w.cloud.Fail(emulator.Faults{Status: 503}) },
			want: reason.ProviderUnavailable, says: "503", sent: 1},
		"it knows nothing (404 of something else)": {change: func(w *fixture, _ *string) {
			w.cloud.Fail(emulator.Faults{Status: 404})
		}, want: reason.ProviderUnavailable, says: "404", sent: 1},
		"it redirects": {change: func(w *fixture, _ *string) { w.cloud.Fail(emulator.Faults{Status: 302}) },
			want: reason.ProviderUnavailable, sent: 1},
		"it answers with nonsense": {change: func(w *fixture, _ *string) {
			w.cloud.Fail(emulator.Faults{Body: []byte("<html>")})
		}, want: reason.ProviderUnavailable, sent: 1},
		"it answers with an empty one": {change: func(w *fixture, _ *string) {
			w.cloud.Fail(emulator.Faults{Body: []byte("{}")})
		}, want: reason.ProviderUnavailable, says: "no id or vmId", sent: 1},
		"it answers with 10 MB": {change: func(w *fixture, _ *string) {
			w.cloud.Fail(emulator.Faults{Body: append([]byte(`{"id":"`), bytes.Repeat([]byte("a"), 10<<20)...)})
		}, want: reason.ProviderUnavailable, sent: 1},
		"its login is broken": {change: func(w *fixture, _ *string) { w.cloud.Fail(emulator.Faults{Login: 500}) },
			want: reason.ProviderUnavailable},
		"another subscription": {change: func(_ *fixture, id *string) {
			*id = strings.Replace(*id, "0b1f6471", "0b1f6472", 1)
		}, want: reason.AccountNotAllowed},
		"a name that is no machine's": {change: func(_ *fixture, id *string) {
			*id = strings.Replace(*id, "virtualMachines", "disks", 1)
		}, want: reason.InstanceNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			id := w.machine.ResourceID()
			if _, err := w.provider.VM(t.Context(), id); err != nil {
				t.Fatalf("when it is well: %v", err)
			}
			w.make(t, nil) // without the token of before
			before := w.cloud.Calls("vm")
			test.change(w, &id)
			_, err := w.provider.VM(t.Context(), id)
			denied(t, err, test.want)
			if said := err.Error() + w.log.String(); !strings.Contains(said, test.says) {
				t.Fatalf("%s", said)
			}
			// A denial is kept for a moment: the same question is not sent again.
			_, err = w.provider.VM(t.Context(), id)
			denied(t, err, test.want)
			if n := w.cloud.Calls("vm") - before; n != test.sent {
				t.Fatalf("%d calls reached it, not %d", n, test.sent)
			}
		})
	}
}

func TestConcurrentQuestionsAreOneCall(t *testing.T) {
	w := newFixture(t)
	if _, err := w.provider.VM(t.Context(), w.machine.ResourceID()); err != nil {
		t.Fatal(err)
	}
	w.later(4 * time.Second) // past the answer that is kept
	before := w.cloud.Calls("vm")
	w.cloud.Fail(emulator.Faults{Slow: 300 * time.Millisecond})
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if _, err := w.provider.VM(context.Background(), w.machine.ResourceID()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := w.cloud.Calls("vm") - before; n < 1 || n > 5 {
		t.Fatalf("%d calls", n)
	}
}

func TestVM_RejectsAServerOfAnotherAuthority(t *testing.T) {
	w := newFixture(t)
	other := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	w.config.ARM.URL = other.URL
	w.make(t, nil)
	_, err := w.provider.VM(t.Context(), w.machine.ResourceID())
	denied(t, err, reason.ProviderUnavailable)
	if !strings.Contains(err.Error(), "certificate") {
		t.Fatal(err)
	}
}

// secret is a credential that must not be sent to anyone but ARM.
type secret struct{ scopes []string }

func (s *secret) GetToken(_ context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	s.scopes = append(s.scopes, o.Scopes...)
	return azcore.AccessToken{Token: "emulated-arm-token", ExpiresOn: time.Now().Add(time.Hour)}, nil
}

func TestVM_UsesTheAudienceOfEachCloud(t *testing.T) {
	for name, want := range map[string]string{
		"Public":       "https://management.core.windows.net//.default",
		"USGovernment": "https://management.core.usgovcloudapi.net//.default",
		"China":        "https://management.core.chinacloudapi.cn//.default",
	} {
		w := newFixture(t)
		w.config.Cloud = name
		s := &secret{}
		w.make(t, s)
		if _, err := w.provider.VM(t.Context(), w.machine.ResourceID()); err != nil {
			t.Fatal(err)
		}
		if len(s.scopes) != 1 || strings.TrimSuffix(s.scopes[0], "/.default") != strings.TrimSuffix(want, "/.default") {
			t.Errorf("%s: %q", name, s.scopes)
		}
		if len(w.provider.Cloud().Hosts) != 1 {
			t.Errorf("%s: %v", name, w.provider.Cloud())
		}
	}
}

func TestConfigurationThatCannotBeUsed(t *testing.T) {
	w := newFixture(t)
	for name, c := range map[string]struct {
		change func(*config.Azure)
		want   string
	}{
		"a cloud that is none": {func(c *config.Azure) { c.Cloud = "Mars" }, "azure.cloud: "},
		"a CA that does not exist": {func(c *config.Azure) { c.ARM.CA = filepath.Join(t.TempDir(), "none") },
			"azure.arm: "},
		"a CA that is none": {func(c *config.Azure) { c.Login.CA = os.DevNull }, "azure.login: "},
	} {
		changed := w.config
		c.change(&changed)
		if _, err := azure.New(changed, nil, outbound.Options{}); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

// The whole: a document and a token of the emulated metadata service, verified and
// confirmed with what the emulated API says.
func TestProvider_ConfirmsADocumentEndToEnd(t *testing.T) {
	w := newFixture(t)
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(w.cloud.Root())
	between.AddCert(w.cloud.Intermediate())
	v := &azureattested.Verifier{
		Roots: func() (*x509.CertPool, *x509.CertPool) { return roots, between },
		Names: w.provider.Cloud().Hosts, Subscriptions: w.config.Subscriptions, Resolve: w.provider,
		Identity: w.provider.Identity(),
	}
	attest := func() error {
		b := evidence.Binding{Transcript: [32]byte{42}}
		raw, err := w.cloud.Document(w.machine, attester.Nonce(b.Transcript))
		if err != nil {
			t.Fatal(err)
		}
		token, err := w.cloud.IdentityToken(w.machine, "api://mcs-attest", nil)
		if err != nil {
			t.Fatal(err)
		}
		claim, err := v.Verify(t.Context(), evidence.Document{Kind: evidence.AzureAttested, Raw: raw, Token: []byte(token)},
			b, time.Now())
		if err != nil {
			return err
		}
		s, err := claim.Confirm(t.Context(), evidence.Candidate{ProviderID: w.machine.ProviderID()})
		if err == nil && s.ProviderID != w.machine.ProviderID() {
			t.Fatalf("%+v", s)
		}
		return err
	}
	vm, keys, tokens := w.cloud.Calls("vm"), w.cloud.Calls("keys"), w.cloud.Calls("token")
	const n = 100
	for range n {
		if err := attest(); err != nil {
			t.Fatal(err)
		}
		w.later(4 * time.Second)
	}
	t.Logf("%d attestations: %d calls of ARM, %d for keys, %d for tokens", n, w.cloud.Calls("vm")-vm,
		w.cloud.Calls("keys")-keys, w.cloud.Calls("token")-tokens)
	if w.cloud.Calls("vm")-vm != n || w.cloud.Calls("keys")-keys != 1 || w.cloud.Calls("token")-tokens != 1 {
		t.Fatal("more calls than there need to be")
	}
	w.cloud.Fail(emulator.Faults{Status: 500})
	denied(t, attest(), reason.ProviderUnavailable)
}

func TestVM_ReadsEachAnswerOfAzure(t *testing.T) {
	const id, vmID = "/subscriptions/a/x", "bd8e7443-24a0-41f3-b949-8baf4fd1c573"
	full := `{"id":"` + id + `","properties":{"vmId":"` + vmID + `","provisioningState":"Creating",` +
		`"timeCreated":"2026-11-01T10:00:00Z"}}`
	failed := func(code string) string { return `{"error":{"code":"` + code + `","message":"m"}}` }
	for name, c := range map[string]struct {
		status int
		body   string
		want   reason.Code // 0 if the machine is returned
		says   string
	}{
		"all members":                  {200, full, 0, ""},
		"neither state nor time":       {200, `{"id":"` + id + `","properties":{"vmId":"` + vmID + `"}}`, 0, ""},
		"no id":                        {200, `{"properties":{"vmId":"` + vmID + `"}}`, reason.ProviderUnavailable, "no id or vmId"},
		"an empty id":                  {200, `{"id":"","properties":{"vmId":"v"}}`, reason.ProviderUnavailable, "no id or vmId"},
		"no properties":                {200, `{"id":"` + id + `"}`, reason.ProviderUnavailable, "no id or vmId"},
		"no vmId":                      {200, `{"id":"` + id + `","properties":{}}`, reason.ProviderUnavailable, "no id or vmId"},
		"no such machine":              {404, failed("ResourceNotFound"), reason.InstanceNotFound, "no virtual machine"},
		"no such group":                {404, failed("ResourceGroupNotFound"), reason.InstanceNotFound, "no virtual machine"},
		"not found":                    {404, failed("NotFound"), reason.InstanceNotFound, "no virtual machine"},
		"no such subscription":         {404, failed("SubscriptionNotFound"), reason.ProviderUnavailable, "404"},
		"not found, with another code": {409, failed("ResourceNotFound"), reason.ProviderUnavailable, "409"},
		"not authorized":               {403, failed("AuthorizationFailed"), reason.ProviderUnavailable, "role Reader"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			server := httptest.NewTLSServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
				out.Header().Set("Content-Type", "application/json")
				out.WriteHeader(c.status)
				_, _ = out.Write([]byte(c.body))
			}))
			t.Cleanup(server.Close)
			ca := filepath.Join(t.TempDir(), "arm.crt")
			block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			if err := os.WriteFile(ca, block, 0o600); err != nil {
				t.Fatal(err)
			}
			w.config.ARM.URL, w.config.ARM.CA = server.URL, ca
			w.make(t, &secret{})
			vm, err := w.provider.VM(t.Context(), w.machine.ResourceID())
			if c.want != 0 {
				denied(t, err, c.want)
				if said := err.Error() + w.log.String(); !strings.Contains(said, c.says) {
					t.Errorf("%s", said)
				}
				return
			}
			want := azureattested.VM{ResourceID: id, VMID: vmID}
			if c.body == full {
				want.Provisioning, want.Created = "Creating", time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC)
			}
			if err != nil || vm != want {
				t.Errorf("%+v, %v", vm, err)
			}
		})
	}
}

func TestProvider_RequiresTokensOnlyOfAConfiguredIdentity(t *testing.T) {
	w := newFixture(t)
	id := w.provider.Identity()
	if id == nil || id.Keys == nil || id.Tenant != w.cloud.Tenant || id.Resource != "api://mcs-attest" ||
		len(id.Issuers) == 0 {
		t.Errorf("%+v", id)
	}
	w.config.ManagedIdentity = nil
	w.make(t, nil)
	if id := w.provider.Identity(); id != nil {
		t.Errorf("without a managed identity: %+v", id)
	}
}
