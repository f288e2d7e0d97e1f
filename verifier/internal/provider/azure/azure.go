// SPDX-License-Identifier: Apache-2.0

// Package azure queries Azure about its machines: Resource Manager (ARM) for the vmId of a virtual
// machine, and the login endpoint for the keys with which a tenant signs tokens.
//
// Every query goes through package outbound. ARM and the login endpoint have separate budgets, so that
// tokens with invented key ids do not use up the budget of the others.
//
//   - VM: one call for each attested document that has passed all other checks, and at most one in
//     three seconds for one virtual machine, so that another machine of the subscription cannot cause
//     one with each request.
//   - The key set: one call in an hour and, for a missing key id, at most one in five minutes. A set
//     that cannot be refreshed is valid for a day.
//
// Credentials for ARM are those of the environment, of a workload identity, or of a managed identity.
// The verifier starts no program to find some. They need the action
// Microsoft.Compute/virtualMachines/read, which is in the role Reader.
//
// Redirects are not followed, and hosts come only from the SDK or the configuration. The size of
// answers is limited.
package azure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v6"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/outbound"
)

const (
	// maxAnswer is the maximum size of an answer. That for a virtual machine has about 10 kB.
	maxAnswer = 1 << 20
	// keepVM is the time for which an answer about a virtual machine is cached. The answer is compared
	// with the vmId that Azure signed for this conversation, so an old answer admits no other machine.
	// A machine that was recreated with the same name has another vmId, and needs longer than this time
	// to boot and attest. An answer about a deleted machine is cached for no longer than a call may
	// take.
	keepVM = 3 * time.Second
)

// Provider queries Azure. It is an azureattested.Resolver.
type Provider struct {
	arm     *outbound.Caller
	clients map[string]*armcompute.VirtualMachinesClient // by subscription, lower case
	cloud   azureattested.Cloud
	keys    *outbound.KeySet // nil if no tokens are required
	config  config.Azure
}

// New returns a provider. If credential is nil, it is looked up at the first query. Only the CA files
// are read immediately.
func New(c config.Azure, credential azcore.TokenCredential, o outbound.Options) (*Provider, error) {
	p := &Provider{arm: outbound.New("azure", o), clients: map[string]*armcompute.VirtualMachinesClient{}, config: c}
	where, err := configuration(c)
	if err != nil {
		return nil, err
	}
	p.cloud, _ = azureattested.CloudNamed(c.Cloud)
	login, err := outbound.NewClient(c.Login.CA, maxAnswer)
	if err != nil {
		return nil, fmt.Errorf("azure.login: %w", err)
	}
	asker, err := outbound.NewClient(c.ARM.CA, maxAnswer)
	if err != nil {
		return nil, fmt.Errorf("azure.arm: %w", err)
	}
	if m := c.ManagedIdentity; m != nil {
		url := strings.TrimSuffix(where.ActiveDirectoryAuthorityHost, "/") + "/" + m.Tenant + "/discovery/v2.0/keys"
		p.keys = newKeys(login, url, o)
	}
	// The SDK must not retry, because callers retry.
	once := policy.RetryOptions{MaxRetries: -1}
	if credential == nil {
		if credential, err = find(policy.ClientOptions{Cloud: where, Transport: login, Retry: once},
			c.Login.URL != ""); err != nil {
			return nil, fmt.Errorf("azure: credentials: %w", err)
		}
	}
	for _, s := range c.Subscriptions {
		s = strings.ToLower(s)
		p.clients[s], err = armcompute.NewVirtualMachinesClient(s, credential, &arm.ClientOptions{
			ClientOptions:         policy.ClientOptions{Cloud: where, Transport: asker, Retry: once},
			DisableRPRegistration: true,
		})
		if err != nil {
			return nil, fmt.Errorf("azure: %w", err)
		}
	}
	return p, nil
}

// Cloud returns the configured cloud of Azure.
func (p *Provider) Cloud() azureattested.Cloud { return p.cloud }

// Identity returns the requirements for tokens, or nil if none are required.
func (p *Provider) Identity() *azureattested.Identity {
	m := p.config.ManagedIdentity
	if m == nil {
		return nil
	}
	return &azureattested.Identity{Keys: p.keys, Issuers: p.cloud.Issuers(m.Tenant), Tenant: m.Tenant,
		Resource: m.Resource}
}

// configuration returns that of the cloud, with the configured endpoints.
func configuration(c config.Azure) (cloud.Configuration, error) {
	all := map[string]cloud.Configuration{"Public": cloud.AzurePublic, "USGovernment": cloud.AzureGovernment,
		"China": cloud.AzureChina}
	where, ok := all[c.Cloud]
	if !ok {
		return where, fmt.Errorf("azure.cloud: %.40q is not Public, USGovernment or China", c.Cloud)
	}
	service := where.Services[cloud.ResourceManager]
	if c.ARM.URL != "" {
		service.Endpoint = c.ARM.URL // the audience of its tokens is still the cloud's
	}
	where.Services = map[cloud.ServiceName]cloud.ServiceConfiguration{cloud.ResourceManager: service}
	if c.Login.URL != "" {
		where.ActiveDirectoryAuthorityHost = c.Login.URL
	}
	return where, nil
}

// find returns the chain of credentials for a service in a cluster. A configured authority is used
// without validating it at another one.
func find(o policy.ClientOptions, private bool) (azcore.TokenCredential, error) {
	var chain []azcore.TokenCredential
	if c, err := azidentity.NewEnvironmentCredential(&azidentity.EnvironmentCredentialOptions{ClientOptions: o,
		DisableInstanceDiscovery: private}); err == nil {
		chain = append(chain, c)
	}
	if c, err := azidentity.NewWorkloadIdentityCredential(&azidentity.WorkloadIdentityCredentialOptions{ClientOptions: o,
		DisableInstanceDiscovery: private}); err == nil {
		chain = append(chain, c)
	}
	managed := &azidentity.ManagedIdentityCredentialOptions{ClientOptions: policy.ClientOptions{Cloud: o.Cloud,
		Retry: o.Retry}}
	if id := os.Getenv("AZURE_CLIENT_ID"); id != "" {
		managed.ID = azidentity.ClientID(id)
	}
	if c, err := azidentity.NewManagedIdentityCredential(managed); err == nil {
		chain = append(chain, c)
	}
	return azidentity.NewChainedTokenCredential(chain, nil)
}

// VM queries one virtual machine.
func (p *Provider) VM(ctx context.Context, resourceID string) (azureattested.VM, error) {
	id, err := arm.ParseResourceID(resourceID)
	if err != nil || !strings.EqualFold(id.ResourceType.String(), "Microsoft.Compute/virtualMachines") {
		return azureattested.VM{}, reason.Deny(reason.InstanceNotFound, "%.256q is not the id of a virtual machine",
			resourceID)
	}
	c, ok := p.clients[strings.ToLower(id.SubscriptionID)]
	if !ok {
		return azureattested.VM{}, reason.Deny(reason.AccountNotAllowed, "subscription %.64q is not one of the configured",
			id.SubscriptionID)
	}
	return outbound.Ask(ctx, p.arm, "VirtualMachines.Get", strings.ToLower(resourceID), keepVM,
		func(ctx context.Context) (azureattested.VM, error) {
			out, err := c.Get(ctx, id.ResourceGroupName, id.Name, nil)
			if err != nil {
				return azureattested.VM{}, understood(err, resourceID)
			}
			return answered(out.VirtualMachine)
		})
}

func answered(vm armcompute.VirtualMachine) (azureattested.VM, error) {
	if vm.ID == nil || *vm.ID == "" || vm.Properties == nil || vm.Properties.VMID == nil {
		return azureattested.VM{}, errors.New("the answer has no id or vmId")
	}
	found := azureattested.VM{ResourceID: *vm.ID, VMID: *vm.Properties.VMID}
	if s := vm.Properties.ProvisioningState; s != nil {
		found.Provisioning = *s
	}
	if at := vm.Properties.TimeCreated; at != nil {
		found.Created = *at
	}
	return found, nil
}

// understood distinguishes denials from temporary errors. A subscription that ARM does not know is one
// that the credentials cannot read.
func understood(err error, resourceID string) error {
	var answer *azcore.ResponseError
	if !errors.As(err, &answer) {
		return err
	}
	switch {
	case answer.StatusCode == http.StatusNotFound && (answer.ErrorCode == "ResourceNotFound" ||
		answer.ErrorCode == "ResourceGroupNotFound" || answer.ErrorCode == "NotFound"):
		return reason.Deny(reason.InstanceNotFound, "Azure has no virtual machine %s", resourceID)
	case answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("azure returned %d %.64q for %s: the verifier's identity needs "+
			"Microsoft.Compute/virtualMachines/read there (role Reader)", answer.StatusCode, answer.ErrorCode, resourceID)
	}
	return fmt.Errorf("azure returned %d %.64q for %s", answer.StatusCode, answer.ErrorCode, resourceID)
}
