package azureattested

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rsa"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// IdentityKeys are the keys with which a tenant signs tokens.
type IdentityKeys interface {
	// Key returns a key by its id, which is untrusted. The error is
	// DocumentUntrusted where there is none, and ProviderUnavailable where that
	// cannot be found out.
	Key(ctx context.Context, kid string) (crypto.PublicKey, error)
}

// Identity is what a token of a managed identity must be:
//
//  1. One compact JWS of at most 8 KiB, signed with RS256 and nothing else, by a
//     key of the tenant's.
//  2. Issued by the tenant, for this resource alone. In a token of version 1.0 the
//     audience is the resource as it was asked for, in one of version 2.0 always the
//     application's client id. So a Resource that is the client id fits both.
//  3. Valid now. One that begins in the future has not been replayed: that is the
//     verifier's clock, and Internal, which is temporary. One that has ended may have
//     been kept since, for a token is not of this conversation.
//  4. It names a virtual machine: in xms_az_rid where the identity is the user's,
//     else in xms_mirid.
//
// That the machine is the candidate, Confirm sees to.
type Identity struct {
	Keys IdentityKeys
	// Issuers are the tenant's ([Cloud.Issuers]); any one.
	Issuers []string
	// Tenant is the id of the tenant.
	Tenant string
	// Resource is what the agent asks for, and the audience.
	Resource string
}

const maxKeyID = 128

// tokenClaims are those that count.
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
	// There is one way to write a token: no line breaks, which base64 would step
	// over, and the bits that the last character of a part has to spare are zero.
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
	case time.Unix(c.notBefore, 0).After(now.Add(leeway)):
		return nil, reason.Deny(reason.Internal, "the token is valid from %s, which is to come: this clock is not Azure's",
			time.Unix(c.notBefore, 0).UTC().Format(time.RFC3339))
	case !now.Before(time.Unix(c.expires, 0).Add(leeway)):
		return nil, reason.Deny(reason.DocumentNotFresh, "the token expired at %d", c.expires)
	}
	named := c.resource
	if named == "" {
		named = c.identity
	}
	r, err := parseResourceID(named)
	if err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "the token names no virtual machine, but %.256q", named)
	}
	return &r, nil
}

func parseToken(payload []byte) (tokenClaims, error) {
	var c tokenClaims
	err := readObject(payload, []field{
		{name: "iss", text: &c.issuer}, {name: "aud", text: &c.audience}, {name: "tid", text: &c.tenant},
		{name: "nbf", number: &c.notBefore}, {name: "exp", number: &c.expires},
		{name: "xms_mirid", text: &c.identity}, {name: "xms_az_rid", text: &c.resource, optional: true},
	})
	return c, err
}
