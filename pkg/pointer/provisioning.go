// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// tokenParameter is the URL parameter for the provisioning token.
const tokenParameter = "token"

// Unchanged is the reason for which user data was not changed.
type Unchanged struct {
	Why string
	// NotAccepted is true if the pools of the sources do not accept the token, so nothing is
	// missing.
	NotAccepted bool
}

func (l *Unchanged) Error() string { return "unchanged: " + l.Why }

func unchanged(format string, a ...any) error { return &Unchanged{Why: fmt.Sprintf(format, a...)} }

// Provisioning is a provisioning token and where it may be added.
type Provisioning struct {
	Token   secret.Bytes
	Origins []string // "https://host:port", lower case, port explicit
	// Pool reports whether a pool accepts the token, and whether it also accepts it in the URL,
	// where configs without headers present it. Nil means that every pool accepts it in the header.
	Pool func(pool string) (accepts, inURL bool)
	// Ours reports whether a token in a config is an earlier provisioning token, which may be
	// replaced. Nil means that none is. Any other token belongs to a third party.
	Ours func(token secret.Bytes) bool
}

// Provision returns the user data with the token on every source of the origins whose pool accepts
// it. It is for the pointer configs of a cluster's machines and changes nothing else that a machine
// could notice:
//
//   - Specification 3.1 and later: it sets the header "Authorization: Bearer TOKEN" and removes a
//     parameter "token" from the URL.
//   - 2.x and 3.0, which have no headers: it sets the URL parameter "token", if that is allowed.
//     The version never changes, because an old boot image must be able to read the config.
//   - Everything else, including unknown keys, stays byte for byte.
//
// The operation is idempotent. If it changes nothing, the error is an [*Unchanged] with the reason:
// the user data is not an Ignition config, has no such source, or contains other credentials, such
// as a third party's bearer token.
func Provision(raw []byte, p Provisioning) ([]byte, error) {
	if !isToken68(p.Token.Expose()) {
		return nil, errors.New("the token has characters that are not allowed in a bearer token")
	}
	c, err := parseAny(raw)
	if err != nil {
		return nil, unchanged("%v", err)
	}
	edits, n, err := c.provision(p)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		if pools := c.others(p); len(pools) > 0 {
			return nil, &Unchanged{Why: fmt.Sprintf("no policy of pool %s accepts the provisioning token",
				strings.Join(pools, " or ")), NotAccepted: true}
		}
		return nil, unchanged("no source refers to %s", strings.Join(p.Origins, " or "))
	}
	if len(edits) == 0 {
		return raw, nil
	}
	out := jsonspan.Apply(c.doc.Text, edits)
	// The result must parse as intended and need no further change.
	again, err := parseAny(out)
	if err == nil {
		edits, _, err = again.provision(p)
	}
	if err != nil || len(edits) > 0 {
		return nil, errors.New("the changed pointer config does not parse as it was written")
	}
	return out, nil
}

// parseAny reads the specifications of pointer configs: 3.x with Ignition's own package, and 2.x.
func parseAny(raw []byte) (*Config, error) {
	c, err := Parse(raw)
	if errors.Is(err, ErrVersion) {
		if old, ok := parse2(raw); ok {
			return old, nil
		}
	}
	return c, err
}

func (p Provisioning) leads(s Source) bool { return s.Secure && slices.Contains(p.Origins, s.Origin) }

func (p Provisioning) accepts(pool string) (accepts, inURL bool) {
	if p.Pool == nil {
		return true, false
	}
	return p.Pool(pool)
}

// ours reports whether an existing token may be replaced.
func (p Provisioning) ours(token string) bool {
	return token == "" || token == string(p.Token.Expose()) || p.Ours != nil && p.Ours(secret.New([]byte(token)))
}

// others returns the pools of the origins' sources.
func (c *Config) others(p Provisioning) (pools []string) {
	for _, r := range c.refs {
		switch {
		case r.server && p.leads(r.at):
			pools = append(pools, fmt.Sprintf("%.64q", r.at.Pool))
		case r.inner != nil:
			pools = append(pools, r.inner.others(p)...)
		}
	}
	slices.Sort(pools)
	return slices.Compact(pools)
}

// headers reports whether the config's specification has httpHeaders.
func (c *Config) headers() bool {
	v := c.Version()
	return v != "3.0.0" && !strings.HasPrefix(v, "2.")
}

func (c *Config) provision(p Provisioning) (edits []edit, count int, err error) {
	for _, r := range c.refs {
		var own []edit
		switch {
		case r.server && p.leads(r.at):
			accepts, inURL := p.accepts(r.at.Pool)
			if !accepts {
				continue
			}
			count++
			if c.headers() {
				own, err = r.setHeader(p)
			} else {
				own, err = r.setURL(c.Version(), inURL, p)
			}
		case r.inner != nil:
			var n int
			own, n, err = r.inner.provision(p)
			count += n
			if len(own) > 0 {
				own = r.inline(jsonspan.Apply(r.inner.doc.Text, own))
			}
		}
		if err != nil {
			return nil, 0, err
		}
		edits = append(edits, own...)
	}
	return edits, count, nil
}

func (r reference) setHeader(p Provisioning) ([]edit, error) {
	values, err := authorizations(r.object)
	if err != nil {
		return nil, unchanged("%s: %v", r.where, err)
	}
	for _, v := range values {
		token, ok := bearerOf(v)
		if !ok {
			return nil, unchanged("%s has credentials other than a bearer token", r.where)
		}
		if !p.ours(token) {
			return nil, unchanged("%s has a bearer token that is not a known provisioning token", r.where)
		}
	}
	if err := r.thirdParty(p); err != nil {
		return nil, err
	}
	var edits []edit
	if len(values) != 1 || values[0] != "Bearer "+string(p.Token.Expose()) {
		e, err := withBearer(r.object, p.Token)
		if err != nil {
			return nil, unchanged("%s: %v", r.where, err)
		}
		edits = append(edits, e)
	}
	if without := setParameter(r.at.URL, nil); without != r.at.URL {
		edits = append(edits, r.source.with(quote(without)))
	}
	return edits, nil
}

// thirdParty returns an error if the URL contains a third party's token.
func (r reference) thirdParty(p Provisioning) error {
	for _, v := range parameters(r.at.URL) {
		if !p.ours(v) {
			return unchanged("the URL of %s has a token that is not a known provisioning token", r.where)
		}
	}
	return nil
}

func (r reference) setURL(version string, inURL bool, p Provisioning) ([]edit, error) {
	if !inURL {
		return nil, unchanged("specification %s has no headers, and the policy does not allow the token in the URL", version)
	}
	if err := r.thirdParty(p); err != nil {
		return nil, err
	}
	if values := parameters(r.at.URL); len(values) == 1 && values[0] == string(p.Token.Expose()) {
		return nil, nil
	}
	with := setParameter(r.at.URL, p.Token.Expose())
	return []edit{r.source.with(quote(with))}, nil
}

// authorizations returns the values of an entry's Authorization headers.
func authorizations(object value) (values []string, err error) {
	_, own, _, err := object.headers()
	for _, h := range own {
		text, err := h.text("value")
		if err != nil {
			return nil, err
		}
		values = append(values, text)
	}
	return values, err
}

func bearerOf(authorization string) (token string, ok bool) {
	scheme, token, ok := strings.Cut(authorization, " ")
	return token, ok && strings.EqualFold(scheme, "Bearer")
}

// parameters returns the values of a URL's parameter "token". As in the gate, a plus sign is not a
// space.
func parameters(raw string) []string {
	var values []string
	for _, pair := range pairs(raw) {
		if value, ok := isParameter(pair); ok {
			values = append(values, value)
		}
	}
	return values
}

func pairs(raw string) []string {
	raw, _, _ = strings.Cut(raw, "#")
	_, query, ok := strings.Cut(raw, "?")
	if !ok {
		return nil
	}
	return strings.Split(query, "&")
}

func isParameter(pair string) (value string, ok bool) {
	name, value, _ := strings.Cut(pair, "=")
	if plain, err := url.PathUnescape(name); err != nil || plain != tokenParameter {
		return "", false
	}
	if plain, err := url.PathUnescape(value); err == nil {
		value = plain
	}
	return value, true
}

// setParameter returns the URL with exactly one parameter "token", or without it if token is nil.
func setParameter(raw string, token []byte) string {
	rest, fragment, hasFragment := strings.Cut(raw, "#")
	path, _, hasQuery := strings.Cut(rest, "?")
	kept := pairs(raw)
	before := len(kept)
	kept = slices.DeleteFunc(kept, func(pair string) bool { _, ok := isParameter(pair); return ok })
	if token == nil && len(kept) == before {
		return raw
	}
	if token != nil {
		if !hasQuery || len(kept) == 1 && kept[0] == "" {
			kept = nil
		}
		kept = append(kept, tokenParameter+"="+url.QueryEscape(string(token)))
	}
	if len(kept) > 0 {
		path += "?" + strings.Join(kept, "&")
	}
	if hasFragment {
		path += "#" + fragment
	}
	return path
}

// parse2 finds the sources of a config of specification 2.x. It does not validate the config,
// because no machine uses this package to run it.
func parse2(raw []byte) (*Config, bool) {
	doc, ok := document(raw)
	if !ok || len(raw) > MaxSize {
		return nil, false
	}
	c := &Config{doc: doc}
	ignition, ok, err := doc.find("ignition")
	if err != nil || !ok {
		return nil, false
	}
	if c.version, ok, err = ignition.get("version"); err != nil || !ok || !strings.HasPrefix(c.Version(), "2.") {
		return nil, false
	}
	config, ok, err := ignition.find("config")
	if err != nil {
		return nil, false
	}
	if !ok {
		return c, true
	}
	entries, err := config.sources("append")
	if err != nil {
		return nil, false
	}
	for i, e := range entries {
		// A config in a data source has an unknown specification here.
		if err := c.addReference(e, fmt.Sprintf("source %d of ignition.config", i), MaxDepth, nil); err != nil {
			return nil, false
		}
	}
	return c, true
}

// Presented returns the provisioning token that the config presents to the server of that origin
// and pool, from the Authorization header or else from the URL, and whether it was in the header. A
// token with the form of an attestation's token does not count.
func (c *Config) Presented(origin, pool string) (token secret.Bytes, inHeader bool) {
	for _, r := range c.refs {
		if r.inner != nil {
			if token, inHeader = r.inner.Presented(origin, pool); !token.Empty() {
				return token, inHeader
			}
		}
		if !r.server || !r.at.matches(origin, pool) {
			continue
		}
		values, err := authorizations(r.object)
		if err == nil && len(values) == 1 {
			if text, ok := bearerOf(values[0]); ok && isToken68([]byte(text)) && !isJWS(text) {
				return secret.New([]byte(text)), true
			}
		}
		if values := parameters(r.at.URL); len(values) == 1 && isToken68([]byte(values[0])) {
			return secret.New([]byte(values[0])), false
		}
	}
	return secret.Bytes{}, false
}

// isJWS reports whether a token is a compact JWS, like an attestation's token.
func isJWS(text string) bool { return strings.HasPrefix(text, "eyJ") && strings.Count(text, ".") == 2 }
