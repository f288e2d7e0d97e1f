package clouds

import (
	"fmt"
	"net/http"

	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const azureGroup = "demo-x7k2p-rg"

type microsoft struct {
	cloud    *azure.Cloud
	machines int
}

func newAzure(t rig.TB) provider {
	t.Helper()
	c, err := azure.New()
	if err != nil {
		t.Fatalf("emulated Azure: %v", err)
	}
	return &microsoft{cloud: c}
}

func (m *microsoft) section(t rig.TB, _ string) (string, map[string]string, []string) {
	t.Helper()
	api, err := m.cloud.Serve()
	if err != nil {
		t.Fatalf("emulated Azure: %v", err)
	}
	t.Cleanup(func() {
		if err := api.Close(); err != nil {
			t.Logf("emulated Azure: %v", err)
		}
	})
	text := fmt.Sprintf(`
azure:
  subscriptions: [%s]
  resourceGroups: [%s]
  arm: {url: %q, ca: azure-api.crt}
  login: {url: %q, ca: azure-api.crt}
`, m.cloud.Subscription, azureGroup, api.URL, api.URL)
	return text, map[string]string{
			"azure-api.crt":            string(api.CA),
			"azure-roots/emulated.pem": string(m.cloud.AnchorsPEM()),
		}, []string{
			"AZURE_TENANT_ID=" + m.cloud.Tenant, "AZURE_CLIENT_ID=" + m.cloud.ClientID, "AZURE_CLIENT_SECRET=" + m.cloud.ClientSecret,
		}
}

func (m *microsoft) add(t rig.TB, name string, userData []byte, _ *rig.TPM) (string, http.Handler) {
	t.Helper()
	m.machines++
	i := &azure.Instance{Name: name, ResourceGroup: azureGroup, VMID: fmt.Sprintf("02aab8a4-74ef-476e-8182-f6d2ba4166%02d", m.machines), UserData: userData}
	if err := m.cloud.Add(i); err != nil {
		t.Fatalf("emulated Azure: %v", err)
	}
	return i.ProviderID(), m.cloud.Metadata(i)
}
