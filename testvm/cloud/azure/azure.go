// SPDX-License-Identifier: Apache-2.0

// Package azure emulates the parts of Azure that an attestation uses: the Instance Metadata Service
// (IMDS) of a virtual machine, and Azure Resource Manager (ARM) and the login endpoint that a
// verifier calls.
//
// Paths, headers, status codes and the form of every document are Azure's own. Keys of a test
// authority make the signatures. As in Azure, an attested document is PKCS#7 in DER that contains
// only the leaf certificate, has no signed attributes, and has sha256WithRSAEncryption as digest
// algorithm.
//
// The package does not use the testing package, because the demo uses it, too.
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

// Cloud is one Azure with its tenant, subscription, authorities and machines. Its fields may be
// changed before the first use.
type Cloud struct {
	Tenant       string
	Subscription string
	// ClientID and ClientSecret are the verifier's service principal.
	ClientID, ClientSecret string
	// Host is the name in the certificate that signs attested documents.
	Host string
	// Bag has more certificates (DER) for every attested document. Azure sends only the leaf. Add
	// the Intermediate to include it in the document.
	Bag [][]byte
	// Now is the cloud's clock.
	Now func() time.Time

	pki pki

	mu        sync.Mutex
	instances map[string]*Instance // by lower-case resource id
	faults    Faults
	calls     map[string]int
	tokens    map[string]string // managed identity tokens, which IMDS caches
}

// Instance is a virtual machine.
type Instance struct {
	Name          string
	ResourceGroup string
	Subscription  string // empty: the cloud's
	VMID          string // lower case
	// Created is when it was created; zero means when it is added.
	Created  time.Time
	Location string // empty: westeurope
	// UserData is the user data, not encoded. Nil means none.
	UserData []byte
	// Identity is "" for no identity, "system" for a system-assigned one, and otherwise the
	// resource id of a user-assigned one.
	Identity string
	// Metadata are the faults of its metadata service.
	Metadata MetadataFaults
}

// MetadataFaults are the faults of one machine's metadata service. Requests use up the counted
// ones.
type MetadataFaults struct {
	Off         bool          // no response; the connection hangs until the client gives up
	Slow        time.Duration // before every response
	Throttled   int           // how many 429
	Gone        int           // how many 410, as while the service is updated
	Broken      int           // how many 500
	NotFound    bool          // 404 for everything
	WrongBase64 bool          // user data and document in another encoding
	// Document replaces the attested document (DER), for example with a forged one.
	Document func(honest []byte) []byte
}

// Faults are the faults of ARM and the login endpoint.
type Faults struct {
	Status int           // ARM's status; 0 means the correct one
	Login  int           // the login endpoint's status, likewise
	Slow   time.Duration // before every response of ARM
	Body   []byte        // ARM's response instead of a virtual machine
}

// New returns a cloud without machines.
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

// Add adds a machine to the cloud.
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

// Remove deletes a machine, so that ARM no longer returns it.
func (c *Cloud) Remove(i *Instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.instances, strings.ToLower(i.ResourceID()))
}

// ResourceID returns the machine's resource id in ARM.
func (i *Instance) ResourceID() string {
	return fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Compute/virtualMachines/%s",
		i.Subscription, i.ResourceGroup, i.Name)
}

// ProviderID returns the spec.providerID of its Machine.
func (i *Instance) ProviderID() string { return "azure://" + i.ResourceID() }

// Root returns the authority above the one that signs attested documents.
func (c *Cloud) Root() *x509.Certificate { return c.pki.root }

// Intermediate returns the certificate of the leaf's issuer.
func (c *Cloud) Intermediate() *x509.Certificate { return c.pki.intermediate }

// Leaf returns the certificate and key that sign attested documents.
func (c *Cloud) Leaf() (*x509.Certificate, *rsa.PrivateKey) { return c.pki.leaf, c.pki.leafKey }

// AnchorsPEM returns the verifier's anchors: root and intermediate.
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

// Calls returns how often an operation was called: "vm", "token", "openid" or "keys".
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
