// SPDX-License-Identifier: Apache-2.0

package azureattested

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/rsa"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// IdentityKeys are the keys with which a tenant signs tokens.
type IdentityKeys interface {
	// Key returns the key with that id, which is untrusted. The error is DocumentUntrusted if there
	// is none, and ProviderUnavailable if the request fails.
	Key(ctx context.Context, kid string) (crypto.PublicKey, error)
}

// Identity defines the requirements for a token of a managed identity:
//
//  1. It is one compact JWS of at most 8 KiB, signed with RS256 by a key of the tenant.
//  2. The tenant issued it for exactly this resource. In a token of version 1.0 the audience is the
//     requested resource, in version 2.0 it is always the application's client id. So a Resource
//     that is the client id fits both.
//  3. It is valid now. If it begins in the future, the verifier's clock is wrong, because a
//     replayed token is older: the reason is Internal, which is temporary. An expired token may
//     have been stored, because a token is not bound to this conversation.
//  4. It names a virtual machine: in xms_az_rid for a user-assigned identity, otherwise in
//     xms_mirid.
//
// Confirm checks that this machine is the candidate.
type Identity struct {
	Keys IdentityKeys
	// Issuers are the tenant's issuers ([Cloud.Issuers]); the token must have one of them.
	Issuers []string
	// Tenant is the id of the tenant.
	Tenant string
	// Resource is the resource that the agent requests, and the audience.
	Resource string
}

const maxKeyID = 128

// tokenClaims are the claims that are checked.
type tokenClaims struct {
	issuer, audience, tenant string
	notBefore, expires       int64
	identity, resource       string // xms_mirid, xms_az_rid
}

func (i *Identity) verify(ctx context.Context, raw []byte, now time.Time) (*resource, error) {
	if len(raw) == 0 {
		return nil, reason.Deny(reason.EvidenceMissing, "no token of a managed identity")
	}
	if len(raw) > maxToken {
		return nil, reason.Deny(reason.DocumentInvalid, "a token of %d bytes; at most %d", len(raw), maxToken)
	}
	// A token has only one encoding: no line breaks, which base64 would ignore, and the unused bits
	// in the last character of a part are zero.
	for part := range bytes.SplitSeq(raw, []byte(".")) {
		if _, err := base64.RawURLEncoding.Strict().DecodeString(string(part)); err != nil ||
			bytes.ContainsAny(part, "\r\n") {
			return nil, reason.Deny(reason.DocumentInvalid, "the token is not base64url")
		}
	}
	jws, err := jose.ParseSignedCompact(string(raw), []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "the token")
	}
	kid := jws.Signatures[0].Protected.KeyID
	if kid == "" || len(kid) > maxKeyID {
		return nil, reason.Deny(reason.DocumentInvalid, "the token: a key id of %d characters", len(kid))
	}
	key, err := i.Keys.Key(ctx, kid)
	if err != nil {
		return nil, err
	}
	public, ok := key.(*rsa.PublicKey)
	if !ok || public.N.BitLen() < minRSABits || public.N.BitLen() > maxRSABits {
		return nil, reason.Deny(reason.DocumentUntrusted, "the token: the key %.64q is not RSA of 2048 to 4096 bits", kid)
	}
	payload, err := jws.Verify(public)
	if err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "the token")
	}
	c, err := parseToken(payload)
	if err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "the token")
	}
	begins := time.Unix(c.notBefore, 0)
	switch {
	case !slices.Contains(i.Issuers, c.issuer) || !strings.EqualFold(c.tenant, i.Tenant):
		return nil, reason.Deny(reason.AccountNotAllowed, "the token is of tenant %.64q, issued by %.128q",
			c.tenant, c.issuer)
	case i.Resource == "" || c.audience != i.Resource:
		if _, id := parseGUID(c.audience); id {
			return nil, reason.Deny(reason.DocumentNotFresh, "the token is for %s, not for %.128q: if that is the "+
				"application's client id, its tokens are of version 2.0, and the client id has to be the resource", c.audience,
				i.Resource)
		}
		return nil, reason.Deny(reason.DocumentNotFresh, "the token is for %.128q, not for %.128q", c.audience, i.Resource)
	case begins.After(now.Add(leeway)):
		return nil, reason.Deny(reason.Internal, "the token is valid from %s, in the future: this clock differs from Azure's",
			begins.UTC().Format(time.RFC3339))
	case !now.Before(time.Unix(c.expires, 0).Add(leeway)):
		return nil, reason.Deny(reason.DocumentNotFresh, "the token expired at %d", c.expires)
	}
	named := c.resource
	named = cmp.Or(named, c.identity)
	r, err := parseResourceID(named)
	if err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "the token names no virtual machine, but %.256q", named)
	}
	return &r, nil
}

func parseToken(payload []byte) (tokenClaims, error) {
	var c tokenClaims
	err := jsonspan.ReadObject(payload, []jsonspan.Field{
		{Name: "iss", Text: &c.issuer}, {Name: "aud", Text: &c.audience}, {Name: "tid", Text: &c.tenant},
		{Name: "nbf", Number: &c.notBefore}, {Name: "exp", Number: &c.expires},
		{Name: "xms_mirid", Text: &c.identity}, {Name: "xms_az_rid", Text: &c.resource, Optional: true},
	})
	return c, err
}
