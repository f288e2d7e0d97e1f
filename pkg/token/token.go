// SPDX-License-Identifier: Apache-2.0

// Package token creates and checks the attestation result: the token that gives a machine access to
// its config at the gate.
//
// A token is a JWT (RFC 7519) in compact form with the media type eat+jwt (RFC 9782), always signed
// with ES256. Its claims have the form of an EAT Attestation Result (draft-ietf-rats-ear-04) under
// the profile [Profile]. The profile is specific to this project, because the draft still changes.
// A golden test fixes every byte.
//
//	{ "typ":"eat+jwt", "alg":"ES256", "kid":"<RFC 7638 thumbprint>" }
//	{ "iss":"https://api-int.example:22623", "aud":"mcs", "sub":"openshift-machine-api/worker-a",
//	  "iat":..., "nbf":..., "exp":..., "jti":"...",
//	  "eat_profile":"tag:mcs-attest.dev,2026:mcs-token#1",
//	  "ear_verifier_id":{"developer":"mcs-attest","build":"v0.1.0"},
//	  "ear_status":"affirming", "submods":{"tpm2":{"ear_status":"affirming"}},
//	  "pool":"worker", "machine_uid":"..." }
//
// Every replica verifies every token offline, with the keys of the shared [KeySet]. What changes
// after a token is issued is on the machine's record, and the gate checks it there: remaining
// uses, quarantine, and whether the machine has joined.
//
// Clocks: a token expires exactly at its exp. A token whose iat is in the future is accepted up to
// [Leeway], the maximum difference between the replicas' clocks. Beyond that the denial is
// temporary, because the machine is not at fault.
//
// A token never appears in a URL or a log: [KeySet.Sign] returns it as a secret.
package token

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

const (
	// Profile is the eat_profile claim. Its number increases when the meaning of a claim changes.
	Profile = "tag:mcs-attest.dev,2026:mcs-token#1"
	// Type is the JOSE typ header: the media type of RFC 9782 without "application/".
	Type = "eat+jwt"
	// Audience is the aud claim of a token for the gate.
	Audience = "mcs"
	// Leeway is the maximum difference between the replicas' clocks.
	Leeway = 5 * time.Minute
	// MaxLifetime is the longest lifetime of a token that Verify accepts.
	MaxLifetime = time.Hour
	// maxSize is well above the size of a token with every submodule, about 1.2 kB.
	maxSize = 4096
)

// Verify checks a token and returns its claims. The checks are:
//
//   - The token has at most 4096 bytes: three parts in canonical unpadded base64url.
//   - Its header has exactly alg ES256, typ eat+jwt and a kid.
//   - The key set has that key, and the key has not expired. This replica may not have received an
//     unknown key yet: reason TokenKeyUnknown, unless the token itself states that it has expired.
//   - The signature verifies.
//   - The profile is [Profile], the audience is [Audience], and every claim is present.
//   - Its lifetime is at most MaxLifetime, and its key was in use when it was issued.
//   - It was issued, and is valid, not more than Leeway in the future: reason Internal, which is
//     temporary.
//   - It has not expired: reason TokenExpired.
//
// Every other failure has the reason TokenInvalid.
func (s KeySet) Verify(now time.Time, raw []byte) (Claims, error) {
	kid, payload, err := split(raw)
	if err != nil {
		return Claims{}, reason.Wrap(reason.TokenInvalid, err, "token")
	}
	key, ok := s.find(kid, now)
	if !ok {
		if c, err := decode(payload); err == nil && !now.Before(c.Expiry) {
			return Claims{}, reason.Deny(reason.TokenExpired, "and its key %.64q is unknown", kid)
		}
		return Claims{}, reason.Deny(reason.TokenKeyUnknown, "key %.64q", kid)
	}
	jws, err := jose.ParseSignedCompact(string(raw), []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return Claims{}, reason.Wrap(reason.TokenInvalid, err, "token")
	}
	if payload, err = jws.Verify(&key.private.PublicKey); err != nil {
		return Claims{}, reason.Wrap(reason.TokenInvalid, err, "signature of key %s", key.ID)
	}
	c, err := decode(payload)
	if err != nil {
		return Claims{}, reason.Wrap(reason.TokenInvalid, err, "claims")
	}
	if c.Audience != Audience {
		return Claims{}, reason.Deny(reason.TokenInvalid, "audience %.64q, want %q", c.Audience, Audience)
	}
	if err := c.check(); err != nil {
		return Claims{}, reason.Wrap(reason.TokenInvalid, err, "claims")
	}
	if s.tooEarly(key, c.IssuedAt) || !key.NotAfter.IsZero() && c.IssuedAt.After(key.NotAfter.Add(Leeway)) {
		return Claims{}, reason.Deny(reason.TokenInvalid, "key %s was not in use at %s", key.ID,
			c.IssuedAt.UTC().Format(time.RFC3339))
	}
	if limit := now.Add(Leeway); c.IssuedAt.After(limit) || c.NotBefore.After(limit) {
		return Claims{}, reason.Deny(reason.Internal,
			"token issued at %s, in the future: replicas' clocks differ by more than %s",
			c.IssuedAt.UTC().Format(time.RFC3339), Leeway)
	}
	if !now.Before(c.Expiry) {
		return Claims{}, reason.Deny(reason.TokenExpired, "at %s", c.Expiry.UTC().Format(time.RFC3339))
	}
	return c, nil
}

// Sign issues a token with the key that is current at now. The claims must be complete; IssuedAt
// and NotBefore default to now.
func (s KeySet) Sign(now time.Time, c Claims) (secret.Bytes, error) {
	key, err := s.current(now)
	if err != nil {
		return secret.Bytes{}, err
	}
	if c.IssuedAt.IsZero() {
		c.IssuedAt = now
	}
	if c.NotBefore.IsZero() {
		c.NotBefore = c.IssuedAt
	}
	if err := c.check(); err != nil {
		return secret.Bytes{}, fmt.Errorf("sign token: %w", err)
	}
	payload, err := json.Marshal(c.wire())
	if err != nil {
		return secret.Bytes{}, fmt.Errorf("sign token: %w", err)
	}
	options := (&jose.SignerOptions{}).WithType(Type).WithHeader("kid", key.ID)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key.private}, options)
	if err != nil {
		return secret.Bytes{}, fmt.Errorf("sign token: %w", err)
	}
	jws, err := signer.Sign(payload)
	if err != nil {
		return secret.Bytes{}, fmt.Errorf("sign token: %w", err)
	}
	raw, err := jws.CompactSerialize()
	if err != nil {
		return secret.Bytes{}, fmt.Errorf("sign token: %w", err)
	}
	return secret.New([]byte(raw)), nil
}

// header is the JOSE header of every token.
type header struct {
	Algorithm string `json:"alg"`
	KeyID     string `json:"kid"`
	Type      string `json:"typ"`
}

// split parses a token without verifying it. It is stricter than go-jose: each value has only one
// base64 form, and the header has only the three known members. So jwk, jku, x5u and crit are never
// processed.
func split(raw []byte) (kid string, payload []byte, err error) {
	if len(raw) > maxSize {
		return "", nil, fmt.Errorf("%d bytes", len(raw))
	}
	parts := strings.Split(string(raw), ".")
	if len(parts) != 3 {
		return "", nil, fmt.Errorf("%d parts, want 3", len(parts))
	}
	var decoded [3][]byte
	for i, p := range parts {
		// The standard library's decoder ignores line breaks.
		if strings.ContainsAny(p, "\r\n") {
			return "", nil, errors.New("line break")
		}
		if decoded[i], err = base64.RawURLEncoding.Strict().DecodeString(p); err != nil {
			return "", nil, err
		}
	}
	var head header
	if err := decodeStrict(decoded[0], &head, "alg", "kid", "typ"); err != nil {
		return "", nil, fmt.Errorf("header: %w", err)
	}
	switch {
	case head.Algorithm != string(jose.ES256):
		return "", nil, fmt.Errorf("alg %.20q, want ES256", head.Algorithm)
	case head.Type != Type:
		return "", nil, fmt.Errorf("typ %.20q, want %s", head.Type, Type)
	case head.KeyID == "":
		return "", nil, errors.New("no kid")
	}
	return head.KeyID, decoded[1], nil
}

// decodeStrict decodes an object with only the given names, in that spelling and each at most once.
// By itself, encoding/json accepts "ALG" for "alg", and the last of two members.
func decodeStrict(raw []byte, into any, names ...string) error {
	seen, err := keys(raw)
	if err != nil {
		return err
	}
	for _, k := range seen {
		if !slices.Contains(names, k) {
			return fmt.Errorf("member %.40q", k)
		}
	}
	return json.Unmarshal(raw, into)
}

// keys returns the member names of a JSON object. It rejects duplicates and trailing bytes.
func keys(raw []byte) ([]string, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, err
	}
	d := json.NewDecoder(strings.NewReader(string(raw)))
	if _, err := d.Token(); err != nil { // {
		return nil, err
	}
	var names []string
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		names = append(names, name.(string))
	}
	if len(names) != len(object) {
		return nil, errors.New("a member occurs twice")
	}
	return names, nil
}
