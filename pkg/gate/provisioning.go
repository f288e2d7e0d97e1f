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

// Provisioning is what the gate needs to know of the provisioning token. What is
// limited is never a request with the right one for the sake of the wrong ones:
// a guesser costs himself alone.
type Provisioning struct {
	// View is what is known of the token now; nil knows nothing.
	View func() provisioning.View
	// Admit is asked for a request with the right token that [Config.Admit]
	// refused, so that those have an allowance of their own; nil admits it.
	Admit func(*http.Request) error
	// Wrong is told of each wrong token, and may answer by an error that the
	// source, or everyone together, shows too many of them.
	Wrong func(*http.Request) error
	// Confirm reads the token anew before a wrong one is told a final no, where the
	// view may be behind what an administrator wrote a moment ago (DESIGN, section
	// 19, rule 12). It must bound itself, since whoever asks has shown nothing; its
	// error is temporary. Nil where the view is never behind.
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

// showing is what a request shows. All of it is untrusted.
type showing struct {
	header bool // there is an Authorization header
	bearer []byte
	err    error // why there is no bearer

	parameter bool // there is a parameter in the URL, and the policy takes one
	value     []byte
	valueErr  error
}

func (c showing) none() bool { return !c.header && !c.parameter }

// show reads what a request shows.
func show(r *http.Request, p PoolPolicy) showing {
	c := showing{header: len(r.Header.Values("Authorization")) > 0}
	c.bearer, c.err = bearer(r.Header)
	if p.ProvisioningToken && p.URLParameter {
		c.value, c.parameter, c.valueErr = parameter(r.URL)
	}
	return c
}

// presented is what may be a provisioning token: the header's, or the URL's where
// there is no header.
func (c showing) presented() ([]byte, error) {
	if c.header {
		return c.bearer, c.err
	}
	return c.value, c.valueErr
}

// conflict: header and URL show two things.
func (c showing) conflict() bool {
	return c.header && c.parameter && (c.err != nil || c.valueErr != nil || !bytes.Equal(c.bearer, c.value))
}

// parameterName is the provisioning token's parameter in a URL.
const parameterName = "token"

// parameter reads a URL's parameter "token". A plus sign stands for itself:
// base64 has it, and no token has a space.
func parameter(u *url.URL) (value []byte, ok bool, err error) {
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		name, raw, _ := strings.Cut(pair, "=")
		if plain, err := url.PathUnescape(name); err != nil || plain != parameterName {
			continue
		}
		if ok {
			return nil, true, reason.Deny(reason.TokenInvalid, "two parameters %q", parameterName)
		}
		text, unescapeErr := url.PathUnescape(raw)
		if unescapeErr != nil || text == "" || len(text) > maxBearer || strings.ContainsFunc(text, notToken68) {
			ok, err = true, reason.Deny(reason.TokenInvalid, "a parameter %q that is no token", parameterName)
			continue
		}
		value, ok = []byte(text), true
	}
	if err != nil {
		return nil, true, err
	}
	return value, ok, nil
}

// provisioned reports whether the request shows a valid provisioning token.
func (g *gate) provisioned(r *request) bool {
	shown, err := r.shown.presented()
	if err != nil || r.shown.conflict() {
		return false
	}
	tokens, _ := g.Provisioning.at(g.Now())
	return tokens.Check(g.Now(), shown).Valid()
}

// unenforced: there is no provisioning token, the policy says that absence opens the
// pool, and the caller presents nothing. What is presented is never ignored.
func (g *gate) unenforced(r *request) bool {
	_, presence := g.Provisioning.at(g.Now())
	return presence == provisioning.Absent && r.policy.OpenWithoutToken && r.shown.none()
}

// provisioning decides by the provisioning token; not done if what is shown is an
// attestation token, or nothing. In order:
//
//   - there is no such token, and the policy opens without one: noted, for the caller
//   - header and URL disagree: the header must be an attestation token
//   - a valid provisioning token opens the pool
//   - there is no token to compare with, or none has been read: StoreUnavailable
//   - what is no attestation token either is confirmed to be wrong:
//     ProvisioningTokenInvalid
func (g *gate) provisioning(r *request) (done bool, err error) {
	now, c := g.Now(), r.shown
	tokens, presence := g.Provisioning.at(now)
	r.decision.Unenforced = g.unenforced(r)
	shown, err := c.presented()
	match := provisioning.None
	if err == nil {
		match = tokens.Check(now, shown)
	}
	r.decision.Provisioning = match
	switch {
	case c.conflict() && match.Valid():
		return true, reason.Deny(reason.TokenInvalid, "the provisioning token in the header, and another one in the URL")
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
	case c.header && attestation(shown):
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
			return true, reason.Wrap(reason.StoreUnavailable, err, "the provisioning token cannot be read anew")
		}
		tokens, presence = view.At(now)
		match = tokens.Check(now, shown)
		r.decision.Provisioning = match
		if match.Valid() {
			return true, nil
		}
	}
	switch {
	case match == provisioning.Expired:
		return true, reason.Deny(reason.ProvisioningTokenInvalid, "the previous provisioning token; its grace ended at %s",
			tokens.PreviousExpires.Format(time.RFC3339))
	case presence != provisioning.Present:
		return true, g.unread(presence)
	}
	return true, reason.Deny(reason.ProvisioningTokenInvalid,
		"neither the current provisioning token nor the previous one in its grace")
}

// unread is the denial while there is no token to compare with. That is never the
// caller's fault, so it is temporary.
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

// attestation reports whether a token has the outer form of ours: a compact JWS,
// whose header begins with `{"`.
func attestation(raw []byte) bool {
	return bytes.HasPrefix(raw, []byte("eyJ")) && bytes.Count(raw, []byte(".")) == 2
}
