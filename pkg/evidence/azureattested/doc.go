// SPDX-License-Identifier: Apache-2.0

// Package azureattested verifies the attested document of an Azure virtual machine and, if
// configured, a token of its managed identity.
//
// Azure's metadata service (IMDS) signs, for any process on the machine, a small JSON object with
// the vmId, the subscription, and a nonce that the caller chooses. The document is PKCS #7 in DER.
// Its signer has a certificate for a host below metadata.azure.com that chains to a public root.
// The nonce is the transcript, so the document belongs to this conversation.
//
// Microsoft changes the authorities without notice. So roots are data that can be replaced while
// the verifier runs. Intermediates may come from any source: the configured bundle, the document,
// or with the document (the agent sends none, because Azure gives it none). They are untrusted by
// themselves. The package never fetches anything that a certificate names; it sends requests only
// through its [Resolver] and its [IdentityKeys].
//
// The document contains the vmId and no name. Only Azure Resource Manager has both. So
// [Verifier.Verify] returns a claim that names no machine yet, and its Confirm asks about the
// machine that the Machine names.
//
// A token of the managed identity is a second factor, never the only one: IMDS caches it for a day,
// so it can be replayed.
package azureattested

import (
	"context"
	"crypto/x509"
	"time"
)

// Limits of a caller's input.
const (
	MaxDocument     = 32 << 10
	MaxCertificates = 8 // sent with the document, in addition to those in it
	maxCertificate  = 8 << 10
	maxToken        = 8 << 10
	maxContent      = 4 << 10
)

// leeway is how far Azure's clock may differ from the verifier's.
const leeway = 5 * time.Minute

// VM is Azure Resource Manager's description of a virtual machine.
type VM struct {
	ResourceID   string // in ARM's spelling; empty: the requested one
	VMID         string
	Provisioning string // "Creating", "Succeeded", "Updating", "Deleting", "Failed"
	Created      time.Time
}

// Resolver asks Azure Resource Manager.
type Resolver interface {
	// VM returns the virtual machine with that resource id ("/subscriptions/..."). The error is
	// InstanceNotFound if there is none, and ProviderUnavailable if the request fails.
	VM(ctx context.Context, resourceID string) (VM, error)
}

// Verifier verifies attested documents. It must not be copied. Its fields must not change after the
// first use; the result of Roots may change.
type Verifier struct {
	// Roots returns the current anchors. A new bundle must be new pools; existing pools must not
	// change. Required.
	Roots func() (roots, intermediates *x509.CertPool)
	// Names are the hosts ([Cloud.Hosts]) that the signer's certificate must name, or whose
	// subdomains it must name. Required.
	Names []string
	// Subscriptions are the allowed subscriptions. If it is empty, no document is accepted.
	Subscriptions []string
	// ResourceGroups are the allowed resource groups. Empty means every group of the subscriptions.
	ResourceGroups []string
	// Resolve returns the vmId of a machine. Required.
	Resolve Resolver
	// Identity requires a managed identity token, too. Nil means that tokens are ignored.
	Identity *Identity

	chains chains
}

// Cloud is one of Azure's clouds.
type Cloud struct {
	// Hosts are the names under which its attested documents are signed.
	Hosts []string
	// The issuer of a token is v1 or v2, then the tenant.
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

// CloudNamed returns the cloud named "Public", "USGovernment" or "China".
func CloudNamed(name string) (Cloud, bool) {
	c, ok := clouds[name]
	return c, ok
}

// Issuers returns the "iss" of a tenant's tokens, in versions 1.0 and 2.0.
func (c Cloud) Issuers(tenant string) []string {
	return []string{c.v1 + tenant + "/", c.v2 + tenant + "/v2.0"}
}
