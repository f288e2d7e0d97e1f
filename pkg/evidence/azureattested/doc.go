// Package azureattested verifies the attested document of an Azure virtual
// machine, and, where it is asked for, a token of its managed identity.
//
// The metadata service of Azure (IMDS) signs, for whoever runs on the machine, a
// small JSON object with the vmId, the subscription, and a nonce of the caller's.
// The document is PKCS #7 in DER. Its signer has a certificate for a host below
// metadata.azure.com that chains to a public root. The nonce is the transcript,
// so the document is of this conversation.
//
// Microsoft changes the authorities without notice. So roots are data that can be
// replaced while the verifier runs, and intermediates may come from anyone: from
// the configured bundle, the document, or beside it (the agent sends none, for
// Azure gives it none). They vouch for nothing by themselves. Nothing that a certificate names is ever fetched; this
// package can
// call nobody but its [Resolver] and its [IdentityKeys].
//
// The document holds the vmId and no name. Which virtual machine has it, Azure
// Resource Manager says: [Verifier.Verify] returns a claim that names no machine
// yet, and its Confirm asks for the one that the Machine names.
//
// A token of the managed identity is a second factor, never the only one: IMDS
// keeps it for a day, so it can be replayed.
package azureattested

import (
	"context"
	"crypto/x509"
	"time"
)

// Limits of what a caller sends.
const (
	MaxDocument     = 32 << 10
	MaxCertificates = 8 // that come with the document, beside those in it
	maxCertificate  = 8 << 10
	maxToken        = 8 << 10
	maxContent      = 4 << 10
)

// leeway is by how much Azure's clock may differ from ours.
const leeway = 5 * time.Minute

// VM is what Azure Resource Manager says of a virtual machine.
type VM struct {
	ResourceID   string // as ARM writes it; empty: as it was asked for
	VMID         string
	Provisioning string // "Creating", "Succeeded", "Updating", "Deleting", "Failed"
	Created      time.Time
}

// Resolver asks Azure Resource Manager.
type Resolver interface {
	// VM looks a virtual machine up by its resource id ("/subscriptions/..."). The
	// error is InstanceNotFound where there is none, and ProviderUnavailable where
	// that cannot be found out.
	VM(ctx context.Context, resourceID string) (VM, error)
}

// Verifier verifies attested documents. It must not be copied. Its fields are not
// changed once it is used; what Roots returns may change.
type Verifier struct {
	// Roots are the anchors of this moment. A new bundle comes as new pools; the
	// pools themselves must not change. Required.
	Roots func() (roots, intermediates *x509.CertPool)
	// Names are the hosts for which the signer's certificate may be, or hosts below
	// them: [Cloud.Hosts]. Required.
	Names []string
	// Subscriptions are those that count. Empty: none does.
	Subscriptions []string
	// ResourceGroups are where machines may be. Empty: anywhere in the subscriptions.
	ResourceGroups []string
	// Resolve tells which machine has a vmId. Required.
	Resolve Resolver
	// Identity asks for a managed identity token, too. Nil: none is looked at.
	Identity *Identity

	chains chains
}

// Cloud is one of Azure's clouds.
type Cloud struct {
	// Hosts are the names that its attested documents are signed under.
	Hosts []string
	// issuers of tokens, before and after the tenant.
	v1, v2 string
}

var clouds = map[string]Cloud{
	"Public": {Hosts: []string{"metadata.azure.com"}, v1: "https://sts.windows.net/",
		v2: "https://login.microsoftonline.com/"},
	"USGovernment": {Hosts: []string{"metadata.azure.us"}, v1: "https://sts.windows.net/",
		v2: "https://login.microsoftonline.us/"},
	"China": {Hosts: []string{"metadata.azure.cn"}, v1: "https://sts.chinacloudapi.cn/",
		v2: "https://login.partner.microsoftonline.cn/"},
}

// CloudNamed is one of "Public", "USGovernment" and "China".
func CloudNamed(name string) (Cloud, bool) {
	c, ok := clouds[name]
	return c, ok
}

// Issuers are the "iss" of a tenant's tokens, in versions 1.0 and 2.0.
func (c Cloud) Issuers(tenant string) []string {
	return []string{c.v1 + tenant + "/", c.v2 + tenant + "/v2.0"}
}
