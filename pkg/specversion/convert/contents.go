// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_5/types"
	"github.com/coreos/vcontext/path"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
)

// Most of a config is the contents of files, as data URLs. All versions of the
// specification validate them with the same code, and a conversion does not change them. So
// each is validated once, and a short placeholder replaces it during the conversion.

// placeholder is the prefix of the data URL that replaces contents; a number follows.
const placeholder = "data:,contents-"

// minContents is the length in bytes from which a source is replaced.
const minContents = 64

// contents are the replaced sources, by the number of their placeholder.
type contents struct {
	sources []string
	number  map[string]int
	places  int
}

// extract returns the config with placeholders for its long sources. It does not replace
// invalid data URLs, and does not modify its argument.
func extract(config types.Config) (types.Config, *contents) {
	c := &contents{number: map[string]int{}}
	eachResource(&config, c.replace)
	return config, c
}

// eachResource calls f with each resource of a config, after it copied the lists.
func eachResource(config *types.Config, f func(*types.Resource)) {
	all := func(list *[]types.Resource) {
		*list = slices.Clone(*list)
		for i := range *list {
			f(&(*list)[i])
		}
	}
	config.Storage.Files = slices.Clone(config.Storage.Files)
	for i := range config.Storage.Files {
		file := &config.Storage.Files[i]
		f(&file.Contents)
		all(&file.Append)
	}
	config.Storage.Luks = slices.Clone(config.Storage.Luks)
	for i := range config.Storage.Luks {
		f(&config.Storage.Luks[i].KeyFile)
	}
	f(&config.Ignition.Config.Replace)
	all(&config.Ignition.Config.Merge)
	all(&config.Ignition.Security.TLS.CertificateAuthorities)
}

// shorten returns the text of a config with placeholders for long sources that are
// obviously valid, or nil if there are none.
func shorten(raw []byte) ([]byte, *contents) {
	root, ok := jsonspan.Parse(raw)
	if !ok || bytes.Contains(raw, []byte(placeholder)) {
		return nil, nil
	}
	c := &contents{number: map[string]int{}}
	edits := c.findIn(root, nil)
	if len(edits) == 0 {
		return nil, nil
	}
	return jsonspan.Apply(raw, edits), c
}

// findIn appends the edits that replace sources with placeholders.
func (c *contents) findIn(v jsonspan.Value, edits []jsonspan.Edit) []jsonspan.Edit {
	for e := range v.Elements() {
		edits = c.findIn(e, edits)
	}
	for name, value := range v.Members() {
		s := value.Raw()
		if !value.Is('"') || len(s) < minContents || string(name.Raw()) != `"source"` || !plain(s[1:len(s)-1]) {
			edits = c.findIn(value, edits)
			continue
		}
		short := `"` + c.add(string(s[1:len(s)-1])) + `"`
		edits = append(edits, jsonspan.Edit{Start: value.Start, End: value.End, With: []byte(short)})
	}
	return edits
}

// add returns the placeholder of a source. Equal sources have the same placeholder, because
// the specification rejects some duplicates.
func (c *contents) add(source string) string {
	n, known := c.number[source]
	if !known {
		n = len(c.sources)
		c.sources, c.number[source] = append(c.sources, source), n
	}
	c.places++
	return placeholder + strconv.Itoa(n)
}

// restore puts the sources back into a config that was parsed from a shortened text. It
// reports whether all of them were valid places for a source.
func (c *contents) restore(config *types.Config) bool {
	places := 0
	eachResource(config, func(r *types.Resource) {
		if r.Source == nil {
			return
		}
		number, ok := strings.CutPrefix(*r.Source, placeholder)
		if !ok {
			return
		}
		if n, err := strconv.Atoi(number); err == nil && n < len(c.sources) {
			r.Source = &c.sources[n]
			places++
		}
	})
	return places == c.places
}

func (c *contents) replace(r *types.Resource) {
	if r.Source == nil || !strings.HasPrefix(*r.Source, "data:") {
		return
	}
	s := *r.Source
	// Sources that look like placeholders are replaced, too, so that none is ambiguous.
	if len(s) < minContents && !strings.HasPrefix(s, placeholder) || !printable(s) {
		return
	}
	if _, known := c.number[s]; !known && !plain(s) &&
		len((types.Resource{Source: &s}).Validate(path.ContextPath{}).Entries) > 0 {
		return
	}
	short := c.add(s)
	r.Source = &short
}

// plain reports whether a source is a data URL of the simplest form, which every version
// accepts: "data:," with letters, digits, "-_.~" and escapes. The Machine Config Server
// writes this form, and for most files the machine-config-operator.
func plain[T string | []byte](s T) bool {
	const prefix = "data:,"
	if len(s) < len(prefix) || string(s[:len(prefix)]) != prefix {
		return false
	}
	for i := len(prefix); i < len(s); i++ {
		switch c := s[i]; {
		case unreserved[c]:
		case c == '%' && len(s)-i > 2 && hexDigit(s[i+1]) && hexDigit(s[i+2]):
			i += 2
		default:
			return false
		}
	}
	return true
}

// unreserved are the bytes that need no escape (RFC 3986, section 2.3).
var unreserved = func() (t [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~") {
		t[c] = true
	}
	return t
}()

func hexDigit(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'F' || c >= 'a' && c <= 'f'
}

// printable reports whether a string is printable ASCII.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// restoreSources replaces the placeholders in JSON with the sources.
func (c *contents) restoreSources(raw []byte) ([]byte, error) {
	if c.places == 0 {
		return raw, nil
	}
	encoded := make([][]byte, len(c.sources))
	size := len(raw)
	for i, s := range c.sources {
		var err error
		if encoded[i], err = json.Marshal(s); err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
		size += len(encoded[i])
	}
	// Within a string the quotes would be escaped, so this is always a member.
	mark := []byte(`"source":"` + placeholder)
	out := make([]byte, 0, size)
	places := 0
	for {
		before, rest, found := bytes.Cut(raw, mark)
		out = append(out, before...)
		if !found {
			break
		}
		digits, after, _ := bytes.Cut(rest, []byte(`"`))
		n, err := strconv.Atoi(string(digits))
		if err != nil || n < 0 || n >= len(encoded) {
			return nil, errors.New("encode config: unknown placeholder")
		}
		out = append(append(out, `"source":`...), encoded[n]...)
		raw = after
		places++
	}
	if places != c.places {
		return nil, fmt.Errorf("encode config: %d sources, but %d placeholders", c.places, places)
	}
	return out, nil
}
