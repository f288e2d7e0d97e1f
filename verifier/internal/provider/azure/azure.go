// Package azure asks Azure about the machines that say they are its: Resource
// Manager (ARM) which vmId a virtual machine has, and the login endpoint with
// which keys a tenant signs tokens.
//
// Every question goes through package outbound, with a budget each for ARM and
// for the login endpoint, so that tokens with made-up key ids do not use up what
// the others need.
//
//   - VM: one call for each attested document that has passed everything else, and
//     at most one in three seconds for one virtual machine, so that another machine
//     of the subscription cannot make one with each try.
//   - The key set: one call in an hour, and, for a key id that it has not, at most
//     one in five minutes. A set that cannot be refreshed counts for a day.
//
// Credentials for ARM are those of the environment, of a workload identity, or of
// a managed identity; no programs are started to find some. They need the action
// Microsoft.Compute/virtualMachines/read, which the role Reader has.
//
// Nothing is followed anywhere: no redirects, and hosts come from the SDK or the
// configuration. Answers are bounded.
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
	// maxAnswer bounds what is read of an answer: a virtual machine is some 10 kB.
	maxAnswer = 1 << 20
	// keepVM is how long an answer about a virtual machine counts. What it says is
	// compared with the vmId that Azure signed for this conversation, so an old
	// answer lets nobody in who is another machine: one that was made again under
	// the name has another vmId, and takes longer than this to boot and to ask.
	// One that was deleted counts no longer than a call may take.
	keepVM = 3 * time.Second
)

// Provider asks Azure. It is an azureattested.Resolver.
type Provider struct {
	arm     *outbound.Caller
	clients map[string]*armcompute.VirtualMachinesClient // by subscription, lower case
	cloud   azureattested.Cloud
	keys    *Keys // nil: no tokens
	config  config.Azure
}

// New makes a provider. Without a credential it is looked for when the first
// question is asked. Only the CA files are read now.
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
	// One call is one call: whoever asks comes again.
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

// Cloud is the configured one of Azure's clouds.
func (p *Provider) Cloud() azureattested.Cloud { return p.cloud }

// Identity is what tokens must be; nil where none are asked for.
func (p *Provider) Identity() *azureattested.Identity {
	m := p.config.ManagedIdentity
	if m == nil {
		return nil
	}
	return &azureattested.Identity{Keys: p.keys, Issuers: p.cloud.Issuers(m.Tenant), Tenant: m.Tenant,
		Resource: m.Resource}
}

// configuration is the cloud's, with the endpoints that were configured instead.
func configuration(c config.Azure) (cloud.Configuration, error) {
	all := map[string]cloud.Configuration{"Public": cloud.AzurePublic, "USGovernment": cloud.AzureGovernment,
		"China": cloud.AzureChina}
	where, ok := all[c.Cloud]
	if !ok {
		return where, fmt.Errorf("azure.cloud: %.40q is not Public, USGovernment or China", c.Cloud)
	}
	service := where.Services[cloud.ResourceManager]
	if c.ARM.URL != "" {
		service.Endpoint = c.ARM.URL // the audience of its tokens stays the cloud's
	}
	where.Services = map[cloud.ServiceName]cloud.ServiceConfiguration{cloud.ResourceManager: service}
	if c.Login.URL != "" {
		where.ActiveDirectoryAuthorityHost = c.Login.URL
	}
	return where, nil
}

// find makes the chain of credentials that a service in a cluster can have. Of an
// authority that was configured nobody else is asked whether it is one.
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

// VM asks for one virtual machine.
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
		return azureattested.VM{}, errors.New("an answer without id or vmId")
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

// understood tells a no from what cannot be found out. A subscription that ARM
// does not know is one that our credentials cannot see.
func understood(err error, resourceID string) error {
	var answer *azcore.ResponseError
	if !errors.As(err, &answer) {
		return err
	}
	switch {
	case answer.StatusCode == http.StatusNotFound && (answer.ErrorCode == "ResourceNotFound" ||
		answer.ErrorCode == "ResourceGroupNotFound" || answer.ErrorCode == "NotFound"):
		return reason.Deny(reason.InstanceNotFound, "Azure does not know %s", resourceID)
	case answer.StatusCode == http.StatusForbidden || answer.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("azure answers %d %.64q about %s: the verifier's identity needs "+
			"Microsoft.Compute/virtualMachines/read there (role Reader)", answer.StatusCode, answer.ErrorCode, resourceID)
	}
	return fmt.Errorf("azure answers %d %.64q about %s", answer.StatusCode, answer.ErrorCode, resourceID)
}
