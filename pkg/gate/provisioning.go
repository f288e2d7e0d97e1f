// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Provisioning gives the gate access to the provisioning token. Requests with the right
// token have their own rate limit, so that wrong guesses never lock them out.
type Provisioning struct {
	// View returns the current state of the token. If it is nil, the token is unknown.
	View func() provisioning.View
	// Admit decides about a request with the right token that [Config.Admit] rejected. If it
	// is nil, the gate admits such requests.
	Admit func(*http.Request) error
	// Wrong is called for each wrong token. It returns an error if the source, or all sources
	// together, exceed the limit of wrong tokens.
	Wrong func(*http.Request) error
	// Confirm reads the token live before a final denial of a wrong one, because View may be
	// older than an administrator's last change (rule 12 of docs/security-rules.md). It must
	// limit its own rate, because the caller has proven nothing. Its error leads to a
	// temporary denial. It is nil if View is never stale.
	Confirm func(context.Context) (provisioning.View, error)
}

func (p Provisioning) at(now time.Time) (provisioning.Tokens, provisioning.Presence) {
	if p.View == nil {
		return provisioning.Tokens{}, provisioning.Unknown
	}
	return p.View().At(now)
}

func (p Provisioning) admit(r *http.Request) error {
	if p.Admit == nil {
		return nil
	}
	return p.Admit(r)
}

// presentedTokens has the tokens that a request presents. All of it is untrusted.
type presentedTokens struct {
	header bool // an Authorization header exists
	bearer []byte
	err    error // why bearer is nil

	parameter bool // the URL has a parameter, and the policy accepts it
	value     []byte
	valueErr  error
}

func (c presentedTokens) none() bool { return !c.header && !c.parameter }

// readTokens reads the tokens of a request.
func readTokens(r *http.Request, p PoolPolicy) presentedTokens {
	c := presentedTokens{header: len(r.Header.Values("Authorization")) > 0}
	c.bearer, c.err = bearer(r.Header)
	if p.ProvisioningToken && p.URLParameter {
		c.value, c.parameter, c.valueErr = parameter(r.URL)
	}
	return c
}

// candidate returns the token that may be a provisioning token: that of the header, or
// that of the URL if there is no header.
func (c presentedTokens) candidate() ([]byte, error) {
	if c.header {
		return c.bearer, c.err
	}
	return c.value, c.valueErr
}

// conflict reports whether header and URL have different tokens, of which one may be invalid.
func (c presentedTokens) conflict() bool {
	return c.header && c.parameter && !bytes.Equal(c.bearer, c.value)
}

// parameterName is the provisioning token's parameter in a URL.
const parameterName = "token"

// parameter reads the URL parameter "token". A plus sign is not a space: base64 uses it,
// and no token contains a space.
func parameter(u *url.URL) (value []byte, ok bool, err error) {
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		name, raw, _ := strings.Cut(pair, "=")
		if plain, _ := url.PathUnescape(name); plain != parameterName { // plain is "" after an error
			continue
		}
		if ok {
			return nil, true, reason.Deny(reason.TokenInvalid, "the URL has two parameters %q", parameterName)
		}
		ok = true
		text, _ := url.PathUnescape(raw)
		if text == "" || len(text) > maxBearer || strings.ContainsFunc(text, notToken68) {
			return nil, true, reason.Deny(reason.TokenInvalid, "the URL parameter %q is not a valid token", parameterName)
		}
		value = []byte(text)
	}
	return value, ok, nil
}

// provisioned reports whether the request has a valid provisioning token.
func (g *gate) provisioned(r *request) bool {
	presented, _ := r.presented.candidate()
	tokens, _ := g.Provisioning.at(g.Now())
	return tokens.Check(g.Now(), presented).Valid()
}

// unenforced reports whether the pool is open because no provisioning token exists. A
// presented token is never ignored.
func (g *gate) unenforced(r *request) bool {
	_, presence := g.Provisioning.at(g.Now())
	return presence == provisioning.Absent && r.policy.OpenWithoutToken && r.presented.none()
}

// provisioning decides about a request by its provisioning token. It returns done=false if
// an attestation token, or the lack of a token, must decide instead. In order:
//
//   - if no provisioning token exists and the policy then opens the pool, this is
//     recorded in the decision
//   - header and URL differ: the header must be an attestation token
//   - a valid provisioning token suffices
//   - the provisioning token does not exist, or was not read yet: StoreUnavailable
//   - a token that is not an attestation token either is confirmed to be wrong:
//     ProvisioningTokenInvalid
func (g *gate) provisioning(r *request) (done bool, err error) {
	now, c := g.Now(), r.presented
	tokens, presence := g.Provisioning.at(now)
	r.decision.Unenforced = g.unenforced(r)
	presented, err := c.candidate()
	match := provisioning.None
	if err == nil {
		match = tokens.Check(now, presented)
	}
	r.decision.Provisioning = match
	switch {
	case c.conflict() && match.Valid():
		return true, reason.Deny(reason.TokenInvalid, "the header has the provisioning token, but the URL has another one")
	case c.conflict():
		return false, nil
	case match.Valid():
		return true, nil
	case c.none():
		if presence == provisioning.Present || !r.policy.OnlyProvisioningToken || r.decision.Unenforced {
			return false, nil
		}
		return true, g.unread(presence)
	case err != nil:
		return true, err
	case c.header && attestation(presented):
		return false, nil
	case presence != provisioning.Present:
		return true, g.unread(presence)
	}
	if g.Provisioning.Wrong != nil {
		if err := g.Provisioning.Wrong(r.Request); err != nil {
			return true, err
		}
	}
	if g.Provisioning.Confirm != nil {
		view, err := g.Provisioning.Confirm(r.Context())
		if err != nil {
			return true, reason.Wrap(reason.StoreUnavailable, err, "read the provisioning token again")
		}
		tokens, presence = view.At(now)
		match = tokens.Check(now, presented)
		r.decision.Provisioning = match
		if match.Valid() {
			return true, nil
		}
	}
	switch {
	case match == provisioning.Expired:
		return true, reason.Deny(reason.ProvisioningTokenInvalid,
			"the previous provisioning token, whose grace period ended at %s",
			tokens.PreviousExpires.Format(time.RFC3339))
	case presence != provisioning.Present:
		return true, g.unread(presence)
	}
	return true, reason.Deny(reason.ProvisioningTokenInvalid,
		"neither the current provisioning token nor the previous one within its grace period")
}

// unread returns the denial while there is no token to compare with. It is temporary,
// because the caller is not at fault.
func (g *gate) unread(presence provisioning.Presence) error {
	if presence == provisioning.Absent {
		return reason.Deny(reason.StoreUnavailable, "there is no provisioning token")
	}
	if g.Provisioning.View != nil {
		if err := g.Provisioning.View().Err(); err != nil {
			return reason.Wrap(reason.StoreUnavailable, err, "the provisioning token cannot be read")
		}
	}
	return reason.Deny(reason.StoreUnavailable, "the provisioning token has not been read yet")
}

// attestation reports whether a token has the form of an attestation token: a compact
// JWS whose header begins with `{"`.
func attestation(raw []byte) bool {
	return bytes.HasPrefix(raw, []byte("eyJ")) && bytes.Count(raw, []byte(".")) == 2
}
