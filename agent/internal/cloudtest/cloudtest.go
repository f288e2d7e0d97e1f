// SPDX-License-Identifier: Apache-2.0

// Package cloudtest provides emulated clouds with one machine each for the agent's tests, and the
// verifiers that appraise that machine's evidence.
package cloudtest

import (
	"context"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awsiid"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/awssts/request"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/aws"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
	"github.com/mcs-attest/mcs-attest/testvm/cloud/gcp"
)

// Machine is one machine in its cloud.
type Machine struct {
	Platform   string // Ignition's name
	ProviderID string
	Metadata   http.Handler // the service at 169.254.169.254
	// Verifiers has one verifier for each kind of evidence that the machine can present.
	Verifiers map[evidence.Kind]evidence.Verifier
}

// Serve starts the metadata service and returns its address.
func (m *Machine) Serve(t testing.TB) string {
	t.Helper()
	s := httptest.NewServer(m.Metadata)
	t.Cleanup(s.Close)
	return s.URL
}

// TokenResource is the resource for which Azure's verifier requires a managed identity token.
const TokenResource = attester.TokenResource

// AWS returns an EC2 instance; change modifies it before it starts.
func AWS(t testing.TB, change func(*aws.Instance)) *Machine {
	t.Helper()
	cloud := aws.New(aws.Options{})
	i := aws.Instance{Zone: "eu-central-1a", Role: "worker"}
	if change != nil {
		change(&i)
	}
	i = cloud.Add(i)
	certificates, err := awsiid.ParseCertificates("aws.pem", cloud.RegionCertificates(i.Region()))
	fatal(t, err)
	trusted := awsiid.Defaults().With(certificates...)
	accounts, regions := []string{i.Account}, []string{i.Region()}
	return &Machine{
		Platform: "aws", ProviderID: i.ProviderID(), Metadata: cloud.Metadata(i.ID),
		Verifiers: map[evidence.Kind]evidence.Verifier{
			evidence.AWSIID: &awsiid.Verifier{Certificates: func() *awsiid.Certificates { return trusted }, Accounts: accounts,
				Regions: regions},
			evidence.AWSSTS: &awssts.Verifier{Caller: sts{cloud.API()}, Accounts: accounts, Regions: regions,
				Roles: []string{"worker"}},
		},
	}
}

// sts calls the emulated STS without a network.
type sts struct{ api http.Handler }

func (s sts) GetCallerIdentity(ctx context.Context, r awssts.Request) (int, string, []byte, error) {
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "https://"+r.Host+"/", strings.NewReader(request.Body))
	for name, value := range r.Headers {
		req.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	s.api.ServeHTTP(w, req)
	return w.Code, w.Header().Get("Content-Type"), w.Body.Bytes(), nil
}

// GCP returns a Google Compute Engine instance.
func GCP(t testing.TB, change func(*gcp.Instance)) *Machine {
	t.Helper()
	cloud, err := gcp.New(gcp.Options{})
	fatal(t, err)
	i := gcp.Instance{Project: "demo-project", Zone: "europe-west1-b", Name: "worker-a"}
	if change != nil {
		change(&i)
	}
	id := cloud.Add(i)
	keys, err := gcpidentity.ParseKeys("keys.json", cloud.Keys())
	fatal(t, err)
	return &Machine{
		Platform: "gcp", ProviderID: i.ProviderID(), Metadata: cloud.Metadata(id),
		Verifiers: map[evidence.Kind]evidence.Verifier{
			evidence.GCPIdentity: &gcpidentity.Verifier{Keys: keys, Projects: []string{i.Project}},
		},
	}
}

// Azure returns an Azure virtual machine with a managed identity.
func Azure(t testing.TB, change func(*azure.Instance)) *Machine {
	t.Helper()
	cloud, err := azure.New()
	fatal(t, err)
	i := &azure.Instance{Name: "worker-a", ResourceGroup: "demo-rg", VMID: "02aab8a4-74ef-476e-8182-f6d2ba4166a6",
		Identity: "system"}
	if change != nil {
		change(i)
	}
	fatal(t, cloud.Add(i))
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(cloud.Root())
	intermediates.AddCert(cloud.Intermediate())
	// Both clouds publish their keys in the same form.
	keys, err := gcpidentity.ParseKeySet(cloud.KeysJSON())
	fatal(t, err)
	public, ok := azureattested.CloudNamed("Public")
	if !ok {
		t.Fatal("the public Azure cloud is missing")
	}
	return &Machine{
		Platform: "azure", ProviderID: i.ProviderID(), Metadata: cloud.Metadata(i),
		Verifiers: map[evidence.Kind]evidence.Verifier{
			evidence.AzureAttested: &azureattested.Verifier{
				Roots:         func() (*x509.CertPool, *x509.CertPool) { return roots, intermediates },
				Names:         public.Hosts,
				Subscriptions: []string{i.Subscription},
				Resolve:       arm{i},
				Identity: &azureattested.Identity{Keys: keys, Issuers: public.Issuers(cloud.Tenant), Tenant: cloud.Tenant,
					Resource: TokenResource},
			},
		},
	}
}

// arm is an Azure Resource Manager that has one machine.
type arm struct{ i *azure.Instance }

func (a arm) VM(context.Context, string) (azureattested.VM, error) {
	return azureattested.VM{VMID: a.i.VMID, Provisioning: "Succeeded"}, nil
}

func fatal(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
