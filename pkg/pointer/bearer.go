// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

const authorization = "Authorization"

// ErrNoSource is returned by AddBearer if no source has the given origin.
var ErrNoSource = errors.New("no source of the pointer config belongs to the attested server")

// AddBearer returns the config with "Authorization: Bearer token" on every https source of that
// origin ("https://host:port") and pool. The package comment lists what else may change.
func (c *Config) AddBearer(origin, pool string, token secret.Bytes) ([]byte, error) {
	if !isToken68(token.Expose()) {
		return nil, errors.New("the token has characters that are not allowed in a bearer token")
	}
	out, n, err := c.addBearer(origin, pool, token)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, ErrNoSource
	}
	return out, nil
}

func (c *Config) addBearer(origin, pool string, token secret.Bytes) ([]byte, int, error) {
	var edits []edit
	count := 0
	for _, r := range c.refs {
		switch {
		case r.server && r.at.matches(origin, pool):
			e, err := withBearer(r.object, token)
			if err != nil {
				return nil, 0, fmt.Errorf("%s: %w", r.where, err)
			}
			edits = append(edits, e)
			count++
		case r.inner != nil:
			raw, n, err := r.inner.addBearer(origin, pool, token)
			if err != nil {
				return nil, 0, err
			}
			if n > 0 {
				edits = append(edits, r.inline(raw)...)
				count += n
			}
		}
	}
	if count == 0 {
		return c.doc.Text, 0, nil
	}
	if c.Version() == "3.0.0" {
		edits = append(edits, c.version.with(`"3.1.0"`))
	}
	out := jsonspan.Apply(c.doc.Text, edits)
	if err := c.check(out, origin, pool, token); err != nil {
		return nil, 0, err
	}
	return out, count, nil
}

// withBearer returns the edit that adds the header to one entry.
func withBearer(object value, token secret.Bytes) (edit, error) {
	headers, _, kept, err := object.headers()
	if err != nil {
		return edit{}, err
	}
	kept = append(kept, `{"name":"`+authorization+`","value":"Bearer `+string(token.Expose())+`"}`)
	return object.set("httpHeaders", headers, headers.Text != nil, "["+strings.Join(kept, ",")+"]"), nil
}

// headers returns the HTTP headers of a resource: the list, those named Authorization, and the text of all others.
func (v value) headers() (list value, own []value, others []string, err error) {
	if list, _, err = v.get("httpHeaders"); err != nil {
		return list, nil, nil, err
	}
	for _, h := range list.elements() {
		name, err := h.text("name")
		switch {
		case err != nil:
			return list, nil, nil, err
		case strings.EqualFold(name, authorization):
			own = append(own, h)
		default:
			others = append(others, string(h.Raw()))
		}
	}
	return list, own, others, nil
}

// inline returns the edits that replace the entry's data source with raw.
func (r reference) inline(raw []byte) []edit {
	url := "data:;base64," + base64.StdEncoding.EncodeToString(raw)
	edits := []edit{r.source.with(quote(url))}
	for _, name := range []string{"compression", "verification"} {
		// Parse has checked that neither occurs twice.
		if m, ok, err := r.object.get(name); err == nil && ok {
			edits = append(edits, m.with("null"))
		}
	}
	return edits
}

// check parses the result with Ignition's own package and compares the headers, so that an error in
// this package's parser cannot go unnoticed.
func (c *Config) check(out []byte, origin, pool string, token secret.Bytes) error {
	again, err := Parse(out)
	if err != nil {
		return fmt.Errorf("the changed pointer config: %w", err)
	}
	want := "Bearer " + string(token.Expose())
	resources := again.parsed.Ignition.Config.Merge
	resources = append(resources, again.parsed.Ignition.Config.Replace)
	for _, r := range resources {
		if r.Source == nil {
			continue
		}
		s, ok := asSource("", *r.Source)
		may := ok && s.matches(origin, pool)
		has := 0
		for _, h := range r.HTTPHeaders {
			if h.Value != nil && *h.Value == want {
				has++
			}
		}
		if may && has != 1 || !may && has != 0 {
			return errors.New("the changed pointer config: Ignition does not read the headers as they were written")
		}
	}
	return nil
}

// isToken68 reports whether token may follow "Bearer " (RFC 7235, 2.1).
var isToken68 = regexp.MustCompile(`^[A-Za-z0-9._~+/-][A-Za-z0-9._~+/=-]*$`).Match
