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

// tokenParameter is the provisioning token's parameter in a URL.
const tokenParameter = "token"

// LeftAlone is why user data was not changed.
type LeftAlone struct {
	Why string
	// NotTaken: its sources are of pools that do not take the token, so nothing
	// is missing.
	NotTaken bool
}

func (l *LeftAlone) Error() string { return "left alone: " + l.Why }

func leftAlone(format string, a ...any) error { return &LeftAlone{Why: fmt.Sprintf(format, a...)} }

// Provisioning is a provisioning token and where it may go.
type Provisioning struct {
	Token   secret.Bytes
	Origins []string // "https://host:port", lower case, port explicit
	// Pool says whether a pool takes the token, and whether in the URL, too, which
	// is where configs that have no headers show it. Nil: each pool, in the header.
	Pool func(pool string) (takes, inURL bool)
	// Ours reports whether a token that a config shows is a provisioning token of
	// before, to be replaced. Nil: none is. Any other is somebody else's.
	Ours func(token secret.Bytes) bool
}

// Provision returns the user data with the token on every source of the origins
// whose pool takes it. It is for the pointer configs that a cluster hands to its
// machines, so it changes nothing that a machine could notice besides:
//
//   - specification 3.1 and later: the header "Authorization: Bearer TOKEN", in
//     place of an older one; a parameter "token" goes out of the URL;
//   - 2.x and 3.0, which have no headers: the parameter "token" of the URL, if
//     that is allowed. The version is never raised: an old boot image has to
//     read it;
//   - everything else, unknown keys too, stays byte for byte.
//
// Doing it again changes nothing. A [*LeftAlone] says why nothing was done: the
// user data is something else, has no such source, or shows other credentials,
// such as a bearer token of somebody else.
func Provision(raw []byte, p Provisioning) ([]byte, error) {
	if !isToken68(p.Token.Expose()) {
		return nil, errors.New("the token has characters that no bearer token has")
	}
	c, err := parseAny(raw)
	if err != nil {
		return nil, leftAlone("%v", err)
	}
	edits, n, err := c.provision(p)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		if pools := c.others(p); len(pools) > 0 {
			return nil, &LeftAlone{Why: fmt.Sprintf("no policy of pool %s takes the provisioning token",
				strings.Join(pools, " or ")), NotTaken: true}
		}
		return nil, leftAlone("no source leads to %s", strings.Join(p.Origins, " or "))
	}
	if len(edits) == 0 {
		return raw, nil
	}
	out := jsonspan.Apply(c.doc.Text, edits)
	// What was written must be read as it was meant, and leave nothing to do.
	again, err := parseAny(out)
	if err == nil {
		edits, _, err = again.provision(p)
	}
	if err != nil || len(edits) > 0 {
		return nil, errors.New("the changed pointer config is not read as it was written")
	}
	return out, nil
}

// parseAny reads the specifications that pointer configs have: 3.x by
// Ignition's own package, and 2.x.
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

func (p Provisioning) takes(pool string) (takes, inURL bool) {
	if p.Pool == nil {
		return true, false
	}
	return p.Pool(pool)
}

// ours reports whether a token that is there may be replaced.
func (p Provisioning) ours(token string) bool {
	return token == "" || token == string(p.Token.Expose()) || p.Ours != nil && p.Ours(secret.New([]byte(token)))
}

// others are the pools of the origins' sources.
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
			takes, inURL := p.takes(r.at.Pool)
			if !takes {
				continue
			}
			count++
			if c.headers() {
				own, err = r.showInHeader(p)
			} else {
				own, err = r.showInURL(c.Version(), inURL, p)
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

func (r reference) showInHeader(p Provisioning) ([]edit, error) {
	values, err := authorizations(r.object)
	if err != nil {
		return nil, leftAlone("%s: %v", r.where, err)
	}
	for _, v := range values {
		token, ok := bearerOf(v)
		if !ok {
			return nil, leftAlone("%s shows other credentials than a bearer token", r.where)
		}
		if !p.ours(token) {
			return nil, leftAlone("%s shows a bearer token that is no provisioning token known here", r.where)
		}
	}
	if err := r.foreign(p); err != nil {
		return nil, err
	}
	var edits []edit
	if len(values) != 1 || values[0] != "Bearer "+string(p.Token.Expose()) {
		e, err := withBearer(r.object, p.Token)
		if err != nil {
			return nil, leftAlone("%s: %v", r.where, err)
		}
		edits = append(edits, e)
	}
	if without := setParameter(r.at.URL, nil); without != r.at.URL {
		edits = append(edits, r.source.with(quote(without)))
	}
	return edits, nil
}

// foreign says that the URL shows a token of somebody else.
func (r reference) foreign(p Provisioning) error {
	for _, v := range parameters(r.at.URL) {
		if !p.ours(v) {
			return leftAlone("the URL of %s shows a token that is no provisioning token known here", r.where)
		}
	}
	return nil
}

func (r reference) showInURL(version string, inURL bool, p Provisioning) ([]edit, error) {
	if !inURL {
		return nil, leftAlone("specification %s has no headers, and the policy does not allow the token in the URL", version)
	}
	if err := r.foreign(p); err != nil {
		return nil, err
	}
	if values := parameters(r.at.URL); len(values) == 1 && values[0] == string(p.Token.Expose()) {
		return nil, nil
	}
	with := setParameter(r.at.URL, p.Token.Expose())
	return []edit{r.source.with(quote(with))}, nil
}

// authorizations are the values of an entry's Authorization headers.
func authorizations(object value) ([]string, error) {
	headers, ok, err := object.find("httpHeaders")
	if err != nil || !ok {
		return nil, err
	}
	var values []string
	for _, h := range headers.elements() {
		is, err := isAuthorization(h)
		if err != nil {
			return nil, err
		}
		if !is {
			continue
		}
		text, _, err := h.find("value")
		if err != nil {
			return nil, err
		}
		s := text.strOrEmpty()
		values = append(values, s)
	}
	return values, nil
}

func bearerOf(authorization string) (token string, ok bool) {
	scheme, token, ok := strings.Cut(authorization, " ")
	return token, ok && strings.EqualFold(scheme, "Bearer")
}

// parameters are the values of a URL's parameter "token". A plus sign stands for
// itself, as the gate reads it.
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

// setParameter returns the URL with one parameter "token", or none if token is nil.
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

// parse2 finds the sources of a config of specification 2.x. Nothing of it is
// checked: no machine runs it through this package.
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
	var entries []value
	for _, name := range []string{"replace", "append"} {
		entry, ok, err := config.find(name)
		if err != nil {
			return nil, false
		}
		if ok && name == "append" {
			entries = append(entries, entry.elements()...)
		} else if ok {
			entries = append(entries, entry)
		}
	}
	for i, e := range entries {
		// A config in a data source is of no known specification here.
		if err := c.addReference(e, fmt.Sprintf("source %d of ignition.config", i), MaxDepth); err != nil {
			return nil, false
		}
	}
	return c, true
}

// Shown is the provisioning token that the config shows to the server of that
// origin and pool: in the Authorization header, or else in the URL. What has the
// form of an attestation's token is none. InHeader says which of the two it was.
func (c *Config) Shown(origin, pool string) (token secret.Bytes, inHeader bool) {
	for _, r := range c.refs {
		if r.inner != nil {
			if token, inHeader = r.inner.Shown(origin, pool); !token.Empty() {
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

// isJWS reports whether a token is a compact JWS, as an attestation's is.
func isJWS(text string) bool { return strings.HasPrefix(text, "eyJ") && strings.Count(text, ".") == 2 }
