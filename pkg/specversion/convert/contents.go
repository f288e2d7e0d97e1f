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
)

// Nearly all of a config is what is in its files: data URLs. All versions of the
// specification validate those with the same code, and a conversion does not change them.
// So each is validated once. For the conversion a short name takes its place.

// placeholder begins the data URL that stands for contents; a number follows.
const placeholder = "data:,contents-"

// minContents is the length of a source in bytes from which a placeholder is shorter.
const minContents = 64

// contents are the sources that are not in a config, by the number of their placeholder.
type contents struct {
	sources []string
	number  map[string]int
	places  int
}

// takeOut returns the config with placeholders for its long sources. It leaves in place
// what is not a valid data URL, and does not change its argument.
func takeOut(config types.Config) (types.Config, *contents) {
	c := &contents{number: map[string]int{}}
	config.Storage.Files = slices.Clone(config.Storage.Files)
	for i := range config.Storage.Files {
		f := &config.Storage.Files[i]
		c.take(&f.Contents)
		f.Append = c.takeAll(f.Append)
	}
	config.Storage.Luks = slices.Clone(config.Storage.Luks)
	for i := range config.Storage.Luks {
		c.take(&config.Storage.Luks[i].KeyFile)
	}
	c.take(&config.Ignition.Config.Replace)
	config.Ignition.Config.Merge = c.takeAll(config.Ignition.Config.Merge)
	tls := &config.Ignition.Security.TLS
	tls.CertificateAuthorities = c.takeAll(tls.CertificateAuthorities)
	return config, c
}

func (c *contents) takeAll(resources []types.Resource) []types.Resource {
	resources = slices.Clone(resources)
	for i := range resources {
		c.take(&resources[i])
	}
	return resources
}

func (c *contents) take(r *types.Resource) {
	if r.Source == nil || !strings.HasPrefix(*r.Source, "data:") {
		return
	}
	s := *r.Source
	// What looks like a placeholder is taken out, too. So no placeholder is ambiguous.
	if len(s) < minContents && !strings.HasPrefix(s, placeholder) || !printable(s) {
		return
	}
	n, known := c.number[s]
	if !known {
		if report := (types.Resource{Source: &s}).Validate(path.ContextPath{}); len(report.Entries) > 0 {
			return
		}
		n = len(c.sources)
		c.sources, c.number[s] = append(c.sources, s), n
	}
	c.places++
	short := placeholder + strconv.Itoa(n)
	r.Source = &short
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

// putBack writes the sources into JSON in place of their placeholders.
func (c *contents) putBack(raw []byte) ([]byte, error) {
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
	// Within a string the quotes would be escaped: this is always a member.
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
			return nil, errors.New("config: a placeholder for contents that do not exist")
		}
		out = append(append(out, `"source":`...), encoded[n]...)
		raw = after
		places++
	}
	if places != c.places {
		return nil, fmt.Errorf("config: %d contents became %d", c.places, places)
	}
	return out, nil
}
