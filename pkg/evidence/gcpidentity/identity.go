// Package gcpidentity verifies the identity token of a Google Compute Engine
// instance: the JWT that its metadata server gives out under
// computeMetadata/v1/instance/service-accounts/default/identity with format=full
// (https://cloud.google.com/compute/docs/instances/verifying-instance-identity).
//
//	{ "alg":"RS256", "kid":"<one of Google's>", "typ":"JWT" }
//	{ "iss":"https://accounts.google.com", "aud":"<Audience>", "iat":..., "exp":...,
//	  "sub":"<service account's id>", "azp":"...", "email":"...", "email_verified":true,
//	  "google":{"compute_engine":{"project_id":"...", "project_number":..., "zone":"europe-west1-b",
//	    "instance_id":"2875949485074006138", "instance_name":"worker-a",
//	    "instance_creation_timestamp":..., "instance_confidentiality":1 }}}
//
// What it rests on:
//
//   - Which key signed, and nothing else. A service account signs whatever JSON its
//     owner likes, with a key that Google publishes elsewhere (CVE-2020-16251). So
//     the key is looked up by kid in the one set that Google signs its own tokens
//     with ([Keys]), and nothing in the token says where to look.
//   - The claims below google.compute_engine. Google's own keys sign the tokens of
//     people and of service accounts, too, with any audience that they ask for;
//     only the metadata server's have these claims.
//   - The audience. It holds the transcript, so a token is of one conversation.
//     An audience that never changes would make it a password for an hour.
//
// What it proves is that something on the instance, with access to its metadata
// server, took part in this conversation. Pods on the host's network have that
// access as well.
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
	// Issuer is the only iss. Google documents this one for Compute Engine; the form
	// without "https://" is for old sign-in clients
	// (https://developers.google.com/identity/openid-connect/reference) and is refused.
	Issuer = "https://accounts.google.com"
	// Leeway is how far the verifier's clock may be from Google's.
	Leeway = 5 * time.Minute
	// MaxSize is well above a token: about 1.2 kB.
	MaxSize = 4096

	minRSABits, maxRSABits = 2048, 4096
)

// Keys are Google's keys for identity tokens: those at
// https://www.googleapis.com/oauth2/v3/certs, or a copy of them ([StaticKeys]).
type Keys interface {
	// Key returns the key of that id. The error is DocumentUntrusted where there is
	// none, and ProviderUnavailable where it cannot be found out. Kid is untrusted:
	// 1 to 128 bytes of printable ASCII.
	Key(ctx context.Context, kid string) (crypto.PublicKey, error)
}

// Verifier verifies tokens of instances in some projects.
type Verifier struct {
	Keys Keys
	// Projects are the ids of the projects; of none, no token is accepted.
	Projects []string
	// Zones are where instances may be; empty: anywhere in the projects.
	Zones []string
}

var _ evidence.Verifier = (*Verifier)(nil)

// Audience is [attester.Audience].
func Audience(origin string, transcript [32]byte) string {
	return attester.Audience(origin, transcript)
}

// Verify accepts a document if all of this holds:
//
//  1. It is one token of at most [MaxSize] bytes, with no certificate and no second
//     token: three parts of base64url, each in its only spelling (DocumentInvalid).
//  2. Its header is an object without duplicates, with alg RS256, a kid, and typ
//     JWT if any; none of jku, jwk, x5u, x5c, crit or b64 is in it
//     (DocumentInvalid). Other members mean nothing.
//  3. [Keys] has the kid (DocumentUntrusted, ProviderUnavailable), and the key is
//     RSA of 2048 to 4096 bits (DocumentUntrusted).
//  4. The signature verifies (DocumentInvalid). Nothing of the payload is parsed before.
//  5. The payload is an object without duplicates in it and its known members,
//     names spelt exactly, with iss [Issuer] and every claim that follows
//     (DocumentInvalid).
//  6. Aud is one string, this conversation's [Audience] (DocumentNotFresh).
//  7. It has not expired, with [Leeway] (DocumentNotFresh), and was not issued more
//     than Leeway in the future. Since a token for this conversation cannot be older
//     or younger than it, that is the verifier's clock: Internal, which is temporary.
//  8. Each claim of google.compute_engine has its form (DocumentInvalid).
//  9. The project, and the zone if Zones has any, are allowed (AccountNotAllowed).
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
	// RS256 is this one call (RFC 7518, 3.3), and there is no other algorithm to
	// choose. Go-jose would parse the header three times more; tests hold it to be of
	// the same opinion.
	digest := sha256.Sum256(t.signed)
	if err := rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], t.signature); err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "identity token: signature of key %q", t.kid)
	}
	c, err := decode(t.payload)
	if err != nil {
		return nil, reason.Wrap(reason.DocumentInvalid, err, "identity token: claims")
	}
	if c.Issuer != Issuer {
		return nil, reason.Deny(reason.DocumentInvalid, "identity token of %.80q, not of %s", c.Issuer, Issuer)
	}
	if want := Audience(b.Origin, b.Transcript); c.Audience != want {
		return nil, reason.Deny(reason.DocumentNotFresh, "identity token for %.300q, not for %q", c.Audience, want)
	}
	if ends := time.Unix(c.Expiry, 0); !now.Before(ends.Add(Leeway)) {
		return nil, reason.Deny(reason.DocumentNotFresh, "identity token ended at %s", ends.UTC().Format(time.RFC3339))
	}
	if issued := time.Unix(c.IssuedAt, 0); issued.After(now.Add(Leeway)) {
		return nil, reason.Deny(reason.Internal, "identity token was issued at %s, in the future: this clock is not Google's",
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
		return nil, reason.Deny(reason.DocumentUntrusted, "no keys of Google's are configured")
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

// claim is what a token says; everything that is needed was signed.
type claim evidence.Statement

func (c claim) Statement() evidence.Statement { return evidence.Statement(c) }

// Confirm asks nobody. Google has signed the numeric id, the name, the zone and the
// time of creation, for this conversation: its API could only say the same again,
// by name. So all there is to do is to see that the candidate is the instance named.
//
// A Machine's providerID has the name alone, and names are used again. Whether the
// instance is the Machine's and not its successor is for the appraisal, which knows
// both times and the id that the Machine had before; Created and InstanceID are for that.
func (c claim) Confirm(_ context.Context, candidate evidence.Candidate) (evidence.Statement, error) {
	if candidate.ProviderID != c.ProviderID {
		return evidence.Statement{}, reason.Deny(reason.EvidenceDisagrees, "identity token of %q, not of %.300q",
			c.ProviderID, candidate.ProviderID)
	}
	return evidence.Statement(c), nil
}
