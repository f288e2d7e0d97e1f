// SPDX-License-Identifier: Apache-2.0

package azureattested

import (
	"bytes"
	"context"
	"crypto/subtle"
	"slices"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/cms"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Verify checks a document. The checks, in this order:
//
//  1. Sizes; one whole PKCS #7 message with one signer, without trailing bytes.
//  2. The transcript's nonce is somewhere in the content, which is neither trusted nor parsed yet.
//     This proves nothing. It only prevents an attacker from sending one document repeatedly to
//     have its certificates verified.
//  3. At most 2 certificates with the issuer and serial number of the SignerInfo, and at most 8 of
//     authorities. Those that do not parse, are too long, or have weak or slow keys are ignored.
//     The signer's key is RSA.
//  4. The certificate that the SignerInfo names chains to a root, now, and is for one of Names.
//  5. It signed the content. The content is not parsed before this.
//  6. The content is one JSON object with each of its names once.
//  7. The nonce is that of the transcript, compared in constant time.
//  8. It was not created in the future, and has not expired. A document with the nonce of this
//     conversation has the age of the conversation, so otherwise the verifier's clock is wrong:
//     Internal, which is temporary.
//  9. The subscription is allowed.
//  10. If Identity is set: the token meets the requirements of [Identity].
func (v *Verifier) Verify(ctx context.Context, d evidence.Document, b evidence.Binding,
	now time.Time) (evidence.Claim, error) {
	switch {
	case d.Kind != evidence.AzureAttested:
		return nil, reason.Deny(reason.DocumentInvalid, "a document of kind %s", d.Kind)
	case len(d.Raw) > MaxDocument:
		return nil, reason.Deny(reason.DocumentInvalid, "a document of %d bytes; at most %d", len(d.Raw), MaxDocument)
	case len(d.Certificates) > MaxCertificates:
		return nil, reason.Deny(reason.DocumentInvalid, "%d certificates with the document; at most %d", len(d.Certificates),
			MaxCertificates)
	}
	message, err := cms.Parse(d.Raw, cms.Options{SHA256WithRSAAsDigest: true, AttributesOptional: true})
	if err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "the attested document")
	}
	nonce := []byte(attester.Nonce(b.Transcript))
	if !bytes.Contains(message.Content, nonce) {
		return nil, reason.Deny(reason.DocumentNotFresh, "the content does not contain the transcript's nonce")
	}
	raw, signer, err := v.signed(message, d.Certificates, now)
	if err != nil {
		return nil, err
	}
	doc, err := parseContent(raw)
	if err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "the content")
	}
	switch {
	case subtle.ConstantTimeCompare([]byte(doc.nonce), nonce) != 1:
		return nil, reason.Deny(reason.DocumentNotFresh, "the nonce %.40q is not the transcript's", doc.nonce)
	case doc.created.After(now.Add(leeway)):
		return nil, reason.Deny(reason.Internal, "created at %s, which is in the future: this clock differs from Azure's",
			doc.created.UTC().Format(time.RFC3339))
	case !now.Before(doc.expires.Add(leeway)):
		return nil, reason.Deny(reason.Internal,
			"expired at %s, and was created for this conversation: this clock differs from Azure's",
			doc.expires.UTC().Format(time.RFC3339))
	case !slices.ContainsFunc(v.Subscriptions, func(s string) bool { return strings.EqualFold(s, doc.subscription) }):
		return nil, reason.Deny(reason.AccountNotAllowed, "subscription %s", doc.subscription)
	}
	c := &claim{v: v, doc: doc, signer: signer}
	if v.Identity != nil {
		if c.identity, err = v.Identity.verify(ctx, d.Token, now); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// claim is a verified document. Only Verify creates one.
type claim struct {
	v        *Verifier
	doc      content
	signer   string
	identity *resource // the machine that the token names; nil: no token is required
}

// Statement returns what the document states by itself: a vmId, which no Machine has.
func (c *claim) Statement() evidence.Statement {
	s := evidence.Statement{
		Kind: evidence.AzureAttested, InstanceID: "azure:" + c.doc.vmID, Bound: true,
		Summary: map[string]string{"vmId": c.doc.vmID, "subscriptionId": c.doc.subscription, "signer": c.signer},
	}
	if c.doc.sku != "" {
		s.Summary["sku"] = c.doc.sku
	}
	if c.identity != nil {
		s.Summary["managedIdentity"] = c.identity.String()
	}
	return s
}

// Confirm checks that the candidate is the machine of the document. The checks, in this order:
//
//  1. The candidate's provider id is a virtual machine of Azure, in the document's subscription.
//  2. Its resource group is allowed.
//  3. The token, if there is one, names it.
//  4. Azure Resource Manager returns it: one call.
//  5. It has the document's vmId.
//  6. It is not being deleted.
//
// The name of a machine can be used again, and Created distinguishes the new machine from the old
// one. If Azure does not return the time, the statement has a warning.
func (c *claim) Confirm(ctx context.Context, candidate evidence.Candidate) (evidence.Statement, error) {
	none := evidence.Statement{}
	r, err := parseProviderID(candidate.ProviderID)
	switch {
	case err != nil:
		return none, reason.Wrap(reason.EvidenceDisagrees, err, "the Machine is not a virtual machine of Azure")
	case r.subscription != c.doc.subscription:
		return none, reason.Deny(reason.EvidenceDisagrees, "the Machine is in subscription %s, the document is of %s",
			r.subscription, c.doc.subscription)
	case len(c.v.ResourceGroups) > 0 &&
		!slices.ContainsFunc(c.v.ResourceGroups, func(g string) bool { return strings.EqualFold(g, r.group) }):
		return none, reason.Deny(reason.AccountNotAllowed, "resource group %q", r.group)
	case c.identity != nil && !c.identity.equal(r):
		return none, reason.Deny(reason.EvidenceDisagrees, "the token is of %s, the Machine is %s", c.identity, r)
	case c.v.Resolve == nil:
		return none, reason.Deny(reason.ProviderUnavailable, "no resolver for virtual machines is configured")
	}
	vm, err := c.v.Resolve.VM(ctx, r.String())
	if err != nil {
		return none, err
	}
	if vm.ResourceID != "" {
		if answered, err := parseResourceID(vm.ResourceID); err != nil || !answered.equal(r) {
			return none, reason.Deny(reason.ProviderUnavailable, "asked about %s, Azure answered about %.256q", r, vm.ResourceID)
		}
	}
	id, ok := parseGUID(vm.VMID)
	switch {
	case !ok:
		return none, reason.Deny(reason.ProviderUnavailable, "Azure returned no vmId for %s", r)
	case id != c.doc.vmID:
		return none, reason.Deny(reason.EvidenceDisagrees, "the document is of vmId %s, %s has %s", c.doc.vmID, r, id)
	case strings.EqualFold(vm.Provisioning, "Deleting"):
		return none, reason.Deny(reason.InstanceUnacceptable, "%s is being deleted", r)
	}
	s := c.Statement()
	s.ProviderID, s.Created = candidate.ProviderID, vm.Created
	if s.Created.IsZero() {
		s.Warnings = append(s.Warnings,
			"Azure does not return when the instance was created, so a reused name cannot be detected")
	}
	return s, nil
}
