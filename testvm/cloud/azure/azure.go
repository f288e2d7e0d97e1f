// Package azure is an emulator of the parts of Azure that an attestation meets:
// the Instance Metadata Service (IMDS) as a virtual machine sees it, and Azure
// Resource Manager (ARM) and the login endpoint as a verifier sees them.
//
// Paths, headers, status codes and the shape of every document are Azure's own;
// the signatures are made by keys of a test authority. An attested document is
// PKCS#7 in DER with the leaf alone in its bag, no signed attributes, and
// sha256WithRSAEncryption where a digest algorithm belongs, as Azure sends it.
//
// Nothing here needs the testing package: the demo uses it, too.
package azure

import (
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Cloud is one Azure with its tenant, subscription, authorities and machines.
// Its fields may be changed before it is used.
type Cloud struct {
	Tenant       string
	Subscription string
	// ClientID and ClientSecret are the verifier's service principal.
	ClientID, ClientSecret string
	// Host is the name in the certificate that signs attested documents.
	Host string
	// Bag holds more certificates (DER) for every attested document. Azure sends
	// the leaf alone; add Intermediate's to have them come with the document.
	Bag [][]byte
	// Now is the cloud's clock.
	Now func() time.Time

	pki pki

	mu        sync.Mutex
	instances map[string]*Instance // by lower-case resource id
	faults    Faults
	calls     map[string]int
	tokens    map[string]string // managed identity tokens, which IMDS keeps
}

// Instance is a virtual machine.
type Instance struct {
	Name          string
	ResourceGroup string
	Subscription  string // empty: the cloud's
	VMID          string // lower case
	// Created is when it was made; zero: when it is added.
	Created  time.Time
	Location string // empty: westeurope
	// UserData is what the machine was made with, not encoded. Nil: none.
	UserData []byte
	// Identity: "" has none, "system" a system-assigned one, and anything else is
	// the resource id of a user-assigned one.
	Identity string
	// Metadata are the faults of its metadata service.
	Metadata MetadataFaults
}

// MetadataFaults are the faults of one machine's metadata service. The counted
// ones are used up by requests.
type MetadataFaults struct {
	Off         bool          // nobody answers; the connection hangs until the client gives up
	Slow        time.Duration // before every answer
	Throttled   int           // that many 429
	Gone        int           // that many 410, as while the service is updated
	Broken      int           // that many 500
	NotFound    bool          // 404 for everything
	WrongBase64 bool          // user data and document in another encoding
	// Document replaces the attested document (DER), for one that is not honest.
	Document func(honest []byte) []byte
}

// Faults are those of ARM and the login endpoint.
type Faults struct {
	Status int           // ARM answers with this, 0: as it should
	Login  int           // so does the login endpoint
	Slow   time.Duration // before every answer of ARM
	Body   []byte        // ARM's answer instead of a virtual machine
}

// New makes a cloud without machines.
func New() (*Cloud, error) {
	c := &Cloud{
		Tenant: "72f988bf-0000-4000-8000-2d7cd011db47", Subscription: "0b1f6471-0000-4000-8000-000000000001",
		ClientID: "c11e0000-0000-4000-8000-000000000001", ClientSecret: "a secret of the test",
		Host: "metadata.azure.com", Now: time.Now,
		instances: map[string]*Instance{}, calls: map[string]int{}, tokens: map[string]string{},
	}
	var err error
	c.pki, err = newPKI(c.Now(), c.Host)
	return c, err
}

// Add puts a machine into the cloud.
func (c *Cloud) Add(i *Instance) error {
	if i.Name == "" || i.ResourceGroup == "" || i.VMID == "" {
		return errors.New("a virtual machine has a name, a resource group and a vmId")
	}
	if i.Subscription == "" {
		i.Subscription = c.Subscription
	}
	if i.Location == "" {
		i.Location = "westeurope"
	}
	if i.Created.IsZero() {
		i.Created = c.Now()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instances[strings.ToLower(i.ResourceID())] = i
	return nil
}

// Remove deletes a machine: ARM no longer knows it.
func (c *Cloud) Remove(i *Instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.instances, strings.ToLower(i.ResourceID()))
}

// ResourceID is the machine's name in ARM.
func (i *Instance) ResourceID() string {
	return fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Compute/virtualMachines/%s",
		i.Subscription, i.ResourceGroup, i.Name)
}

// ProviderID is the machine's name in a Machine's spec.providerID.
func (i *Instance) ProviderID() string { return "azure://" + i.ResourceID() }

// Root is the authority above the one that signs attested documents.
func (c *Cloud) Root() *x509.Certificate { return c.pki.root }

// Intermediate issued the leaf.
func (c *Cloud) Intermediate() *x509.Certificate { return c.pki.intermediate }

// Leaf signs attested documents, with its key.
func (c *Cloud) Leaf() (*x509.Certificate, *rsa.PrivateKey) { return c.pki.leaf, c.pki.leafKey }

// AnchorsPEM is what a verifier is configured with: root and intermediate.
func (c *Cloud) AnchorsPEM() []byte {
	return append(encode("# Test root of the emulated Azure\n", c.pki.root),
		encode("# Its intermediate\n", c.pki.intermediate)...)
}

// Fail sets the faults of ARM and login.
func (c *Cloud) Fail(f Faults) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = f
}

// Calls is how often an operation was asked for: "vm", "token", "openid" or "keys".
func (c *Cloud) Calls(operation string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[operation]
}

func (c *Cloud) count(operation string) Faults {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[operation]++
	return c.faults
}
