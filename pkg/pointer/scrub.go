// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/bounded"
	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// ErrTokenLeft is returned by Scrub if a token is still in the config.
var ErrTokenLeft = errors.New("the token is still in it")

// Scrub removes every Authorization header from ignition.config of the config that Ignition caches
// (/run/ignition.json), and every parameter "token" from the URL of a Machine Config Server. It
// returns how many it removed. It also edits the configs in data sources, to the same depth as
// AddBearer. That file has Ignition's newest internal version, so Scrub validates it against no
// specification. Nothing else changes.
//
// Scrub then searches the result for the given tokens, and for those that it removed from the
// entries of a Machine Config Server: in each string, and in the content of each data URL. If it
// finds one, it returns the result together with [ErrTokenLeft].
func Scrub(raw []byte, tokens ...secret.Bytes) (clean []byte, removed int, err error) {
	doc, ok := document(raw)
	if !ok {
		return nil, 0, errors.New("the config that Ignition cached is not JSON")
	}
	s := scrubber{tokens: slices.Clone(tokens)}
	edits, removed, err := s.scrub(doc, 0)
	if err != nil {
		return nil, 0, err
	}
	clean = jsonspan.Apply(raw, edits)
	if contains(clean, s.tokens, 0) {
		return clean, removed, ErrTokenLeft
	}
	return clean, removed, nil
}

// minSearched is the minimum length of a removed token for which Scrub searches. A provisioning
// token has at least 43 characters; a short text can occur by chance.
const minSearched = 32

// scrubber collects the tokens to search for.
type scrubber struct{ tokens []secret.Bytes }

func (s *scrubber) add(token string) {
	if len(token) >= minSearched {
		s.tokens = append(s.tokens, secret.New([]byte(token)))
	}
}

// scrub returns the edits of one config and how many items they remove.
func (s *scrubber) scrub(doc value, depth int) (edits []edit, removed int, err error) {
	config, ok, err := doc.find("ignition", "config")
	if err != nil || !ok {
		return nil, 0, err
	}
	entries, err := config.sources("merge")
	if err != nil {
		return nil, 0, err
	}
	for _, e := range entries {
		for _, part := range []func(value, int) ([]edit, int, error){s.scrubSource, s.scrubHeaders} {
			own, n, err := part(e, depth)
			if err != nil {
				return nil, 0, err
			}
			edits, removed = append(edits, own...), removed+n
		}
	}
	return edits, removed, nil
}

// scrubSource removes the token from an entry's URL, or from the config inside it.
func (s *scrubber) scrubSource(object value, depth int) ([]edit, int, error) {
	source, ok, err := object.get("source")
	if err != nil || !ok {
		return nil, 0, err
	}
	text, ok := source.Str()
	if !ok {
		return nil, 0, nil
	}
	if !isData(text) {
		if _, server := asSource("", text); !server || len(parameters(text)) == 0 {
			return nil, 0, nil
		}
		for _, token := range parameters(text) {
			s.add(token)
		}
		return []edit{source.with(quote(setParameter(text, nil)))}, 1, nil
	}
	inner, ok := innerDocument(object, text, depth)
	if !ok {
		return nil, 0, nil
	}
	edits, removed, err := s.scrub(inner, depth+1)
	switch {
	case errors.Is(err, ErrAmbiguous):
		return nil, 0, nil // AddBearer does not change such a config either
	case err != nil:
		return nil, 0, err
	case removed == 0:
		return nil, 0, nil
	}
	return reference{object: object, source: source}.inline(jsonspan.Apply(inner.Text, edits)), removed, nil
}

// innerDocument reads the config in a data source. It returns false where AddBearer finds no config
// either.
func innerDocument(object value, source string, depth int) (value, bool) {
	compression, err := object.text("compression")
	if err != nil || depth >= MaxDepth {
		return value{}, false
	}
	if _, _, err := object.get("verification"); err != nil {
		return value{}, false
	}
	raw, err := decodeData(source, compression)
	if err != nil || len(raw) > MaxSize {
		return value{}, false
	}
	return document(raw)
}

// scrubHeaders removes an entry's Authorization headers.
func (s *scrubber) scrubHeaders(object value, _ int) ([]edit, int, error) {
	headers, own, others, err := object.headers()
	if err != nil || len(own) == 0 {
		return nil, 0, err
	}
	text, err := object.text("source")
	if err != nil {
		return nil, 0, err
	}
	_, server := asSource("", text)
	for _, h := range own {
		for name, v := range h.Members() {
			n, _ := name.Str()
			text, _ := v.Str()
			if token, ok := bearerOf(text); ok && server && strings.EqualFold(n, "value") {
				s.add(token)
			}
		}
	}
	return []edit{headers.with("[" + strings.Join(others, ",") + "]")}, len(own), nil
}

// Bearers returns the bearer tokens in the headers of the config's https servers.
func (c *Config) Bearers() []secret.Bytes {
	var out []secret.Bytes
	for _, r := range c.refs {
		if r.inner != nil {
			out = append(out, r.inner.Bearers()...)
		}
		if !r.server || !r.at.Secure {
			continue
		}
		values, err := authorizations(r.object)
		if err != nil {
			continue // Parse rejects such headers
		}
		for _, v := range values {
			if token, ok := bearerOf(v); ok && isToken68([]byte(token)) {
				out = append(out, secret.New([]byte(token)))
			}
		}
	}
	return out
}

// contains reports whether one of the tokens is in content, in a string of it if it is JSON, or in
// a data URL of it. The search shares no code with the edits.
func contains(content []byte, tokens []secret.Bytes, depth int) bool {
	if len(tokens) == 0 {
		return false
	}
	in := func(content []byte) bool {
		return slices.ContainsFunc(tokens, func(token secret.Bytes) bool { return bytes.Contains(content, token.Expose()) })
	}
	if in(content) {
		return true
	}
	if depth > MaxDepth+1 || !json.Valid(content) {
		return false // AddBearer adds no token at a greater depth
	}
	for decoder := json.NewDecoder(bytes.NewReader(content)); ; {
		next, err := decoder.Token()
		if err != nil {
			return false // the end of the text, which is valid
		}
		text, ok := next.(string)
		if !ok {
			continue
		}
		if in([]byte(text)) {
			return true
		}
		if plain, err := url.PathUnescape(text); err == nil && in([]byte(plain)) {
			return true
		}
		if !isData(text) {
			continue
		}
		data, err := decodeData(text, "")
		if err != nil {
			continue // Ignition cannot decode it either
		}
		if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
			if in(data) {
				return true
			}
			if data, err = bounded.Gunzip(data, MaxSize); err != nil {
				continue // not gzip, or larger than AddBearer reads
			}
		}
		if contains(data, tokens, depth+1) {
			return true
		}
	}
}

func isData(source string) bool { return strings.HasPrefix(strings.ToLower(source), "data:") }
