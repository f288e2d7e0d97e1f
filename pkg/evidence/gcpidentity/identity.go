// SPDX-License-Identifier: Apache-2.0

// Package gcpidentity verifies the identity token of a Google Compute Engine instance: the JWT that
// its metadata server issues at computeMetadata/v1/instance/service-accounts/default/identity with
// format=full (https://cloud.google.com/compute/docs/instances/verifying-instance-identity).
//
//	{ "alg":"RS256", "kid":"<one of Google's>", "typ":"JWT" }
//	{ "iss":"https://accounts.google.com", "aud":"<Audience>", "iat":..., "exp":...,
//	  "sub":"<service account's id>", "azp":"...", "email":"...", "email_verified":true,
//	  "google":{"compute_engine":{"project_id":"...", "project_number":..., "zone":"europe-west1-b",
//	    "instance_id":"2875949485074006138", "instance_name":"worker-a",
//	    "instance_creation_timestamp":..., "instance_confidentiality":1 }}}
//
// The verification depends on three things:
//
//   - The signing key. A service account signs any JSON that its owner chooses, with a key that
//     Google publishes elsewhere (CVE-2020-16251). So the key is looked up by kid only in the set
//     with which Google signs its own tokens ([Keys]), and the token cannot name another place.
//   - The claims in google.compute_engine. Google's own keys also sign the tokens of users and
//     service accounts, with any audience that they request. Only tokens of the metadata server
//     have these claims.
//   - The audience. It contains the transcript, so a token belongs to one conversation. With a
//     constant audience, a token would be a password for an hour.
//
// A token proves that a process on the instance, with access to its metadata server, took part in
// this conversation. Pods on the host's network also have that access.
package gcpidentity

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"slices"
	"strconv"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/gcpidentity/attester"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

const (
	// Issuer is the only accepted iss. Google documents it for Compute Engine. The form without
	// "https://" is for old sign-in clients
	// (https://developers.google.com/identity/openid-connect/reference) and is rejected.
	Issuer = "https://accounts.google.com"
	// Leeway is how far the verifier's clock may differ from Google's.
	Leeway = 5 * time.Minute
	// MaxSize is well above the size of a token, about 1.2 kB.
	MaxSize = 4096

	minRSABits, maxRSABits = 2048, 4096
)

// Keys are Google's keys for identity tokens: those at https://www.googleapis.com/oauth2/v3/certs,
// or a copy ([StaticKeys]).
type Keys interface {
	// Key returns the key with that id. The error is DocumentUntrusted if there is none, and
	// ProviderUnavailable if the request fails. Kid is untrusted: 1 to 128 bytes of printable
	// ASCII.
	Key(ctx context.Context, kid string) (crypto.PublicKey, error)
}

// Verifier verifies tokens of instances in some projects.
type Verifier struct {
	Keys Keys
	// Projects are the ids of the allowed projects. If it is empty, no token is accepted.
	Projects []string
	// Zones are the allowed zones. Empty means every zone of the projects.
	Zones []string
}

var _ evidence.Verifier = (*Verifier)(nil)

// Audience calls [attester.Audience].
func Audience(origin string, transcript [32]byte) string {
	return attester.Audience(origin, transcript)
}

// Verify checks:
//
//  1. It is one token of at most [MaxSize] bytes, without certificates and without a second token:
//     three parts in canonical base64url (DocumentInvalid).
//  2. Its header is an object without duplicates, with alg RS256, a kid, and typ JWT if present. It
//     has none of jku, jwk, x5u, x5c, crit and b64 (DocumentInvalid). Other members are ignored.
//  3. [Keys] has the kid (DocumentUntrusted, ProviderUnavailable), and the key is RSA of 2048 to
//     4096 bits (DocumentUntrusted).
//  4. The signature verifies (DocumentInvalid). The payload is not parsed before this.
//  5. The payload is an object without duplicates in it and in its known members. Names are spelled
//     exactly, iss is [Issuer], and all required claims are present (DocumentInvalid).
//  6. Aud is one string, this conversation's [Audience] (DocumentNotFresh).
//  7. It has not expired, and was not issued in the future, with [Leeway]. A token for this
//     conversation has the age of the conversation, so otherwise the verifier's clock is wrong:
//     Internal, which is temporary.
//  8. Each claim of google.compute_engine has its form (DocumentInvalid).
//  9. The project, and the zone if Zones is not empty, are allowed (AccountNotAllowed).
func (v *Verifier) Verify(ctx context.Context, d evidence.Document, b evidence.Binding,
	now time.Time) (evidence.Claim, error) {
	if len(d.Certificates) > 0 || len(d.Token) > 0 {
		return nil, reason.Deny(reason.DocumentInvalid,
			"%d certificates and %d bytes of a second token with a kind that has neither", len(d.Certificates), len(d.Token))
	}
	t, err := split(d.Raw)
	if err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "identity token")
	}
	key, err := v.key(ctx, t.kid)
	if err != nil {
		return nil, err
	}
	// RS256, the only supported algorithm, is this one call (RFC 7518, 3.3). go-jose would
	// parse the header three more times. Tests check that go-jose gives the same result.
	digest := sha256.Sum256(t.signed)
	if err := rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], t.signature); err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "identity token: signature of key %q", t.kid)
	}
	c, err := decode(t.payload)
	if err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "identity token: claims")
	}
	if c.Issuer != Issuer {
		return nil, reason.Deny(reason.DocumentInvalid, "identity token issued by %.80q, not by %s", c.Issuer, Issuer)
	}
	if want := Audience(b.Origin, b.Transcript); c.Audience != want {
		return nil, reason.Deny(reason.DocumentNotFresh, "identity token for %.300q, not for %q", c.Audience, want)
	}
	if ends := time.Unix(c.Expiry, 0); !now.Before(ends.Add(Leeway)) {
		return nil, reason.Deny(reason.Internal, "identity token expired at %s: this clock differs from Google's",
			ends.UTC().Format(time.RFC3339))
	}
	if issued := time.Unix(c.IssuedAt, 0); issued.After(now.Add(Leeway)) {
		return nil, reason.Deny(reason.Internal, "identity token was issued at %s, in the future: "+
			"this clock differs from Google's",
			issued.UTC().Format(time.RFC3339))
	}
	if err := c.check(); err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "identity token: claims")
	}
	engine := &c.Engine
	if !slices.Contains(v.Projects, engine.ProjectID) {
		return nil, reason.Deny(reason.AccountNotAllowed, "instance of project %q", engine.ProjectID)
	}
	if len(v.Zones) > 0 && !slices.Contains(v.Zones, engine.Zone) {
		return nil, reason.Deny(reason.AccountNotAllowed, "instance in zone %q", engine.Zone)
	}
	return claim(c.statement()), nil
}

func (v *Verifier) key(ctx context.Context, kid string) (*rsa.PublicKey, error) {
	if v.Keys == nil {
		return nil, reason.Deny(reason.DocumentUntrusted, "no Google keys are configured")
	}
	public, err := v.Keys.Key(ctx, kid)
	if err != nil {
		return nil, err
	}
	key, ok := public.(*rsa.PublicKey)
	if !ok || key.N.BitLen() < minRSABits || key.N.BitLen() > maxRSABits {
		return nil, reason.Deny(reason.DocumentUntrusted, "key %q is not RSA of %d to %d bits", kid, minRSABits, maxRSABits)
	}
	return key, nil
}

func (c *claims) statement() evidence.Statement {
	e := &c.Engine
	s := evidence.Statement{
		Kind:       evidence.GCPIdentity,
		ProviderID: "gce://" + e.ProjectID + "/" + e.Zone + "/" + e.InstanceName,
		InstanceID: "gcp:" + e.InstanceID,
		Created:    time.Unix(e.Created, 0).UTC(),
		Bound:      true,
		Summary: map[string]string{
			"project": e.ProjectID, "projectNumber": strconv.FormatInt(e.ProjectNumber, 10),
			"zone": e.Zone, "instance": e.InstanceName, "instanceID": e.InstanceID,
		},
	}
	if c.EmailVerified && c.Email != "" {
		s.Summary["serviceAccount"] = c.Email
	}
	if e.Confidentiality > 0 {
		s.Summary["confidential"] = "true"
	}
	return s
}

// claim is the content of a token. All needed values were signed.
type claim evidence.Statement

func (c claim) Statement() evidence.Statement { return evidence.Statement(c) }

// Confirm sends no request. Google signed the numeric id, the name, the zone and the time of
// creation for this conversation; its API could only repeat them. So Confirm only checks that the
// candidate is the named instance.
//
// A Machine's providerID has only the name, and names can be reused. The appraisal decides whether
// the instance is the Machine's or a later one with the same name. It uses both times and the id
// that the Machine had before; Created and InstanceID are for that purpose.
func (c claim) Confirm(_ context.Context, candidate evidence.Candidate) (evidence.Statement, error) {
	if candidate.ProviderID != c.ProviderID {
		return evidence.Statement{}, reason.Deny(reason.EvidenceDisagrees, "identity token of %q, not of %.300q",
			c.ProviderID, candidate.ProviderID)
	}
	return evidence.Statement(c), nil
}
