// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	ignerrors "github.com/coreos/ignition/v2/config/shared/errors"
	"github.com/coreos/ignition/v2/config/v3_6"
	"github.com/coreos/ignition/v2/config/v3_6/types"
	"github.com/coreos/vcontext/report"
)

const (
	// MaxSize is the largest config in bytes. The largest user data of all platforms is qemu's
	// fw_cfg, where tests often use configs of some MiB.
	MaxSize = 16 << 20
	// MaxDepth limits the nesting of configs in data sources.
	MaxDepth = 4
)

// The errors of [Parse].
var (
	// ErrEmpty means that there is no user data.
	ErrEmpty = errors.New("the user data is empty")
	// ErrNotIgnition means that the user data is something else, for example cloud-config.
	ErrNotIgnition = errors.New("the user data is not an Ignition config")
	// ErrVersion means that this package does not support the specification of the config.
	ErrVersion = errors.New("the Ignition specification is not one of 3.0 to 3.6")
	// ErrInvalid means that Ignition will reject the config.
	ErrInvalid = errors.New("the Ignition config is not valid")
	// ErrAmbiguous means that a relevant key occurs twice.
	ErrAmbiguous = errors.New("the Ignition config can be read in two ways")
)

// Config is a pointer config that Ignition would accept.
type Config struct {
	doc     value
	version value
	parsed  types.Config
	refs    []reference
}

// reference is one merge or replace entry.
type reference struct {
	object value
	source value  // the entry's "source"
	at     Source // set if it may belong to a Machine Config Server
	server bool
	inner  *Config // set if the source is a data URL with a config
	where  string
	// proxy is with which Ignition fetches it, and replaces whether it is that of "replace".
	proxy    types.Proxy
	replaces bool
}

// maxUnpacked limits the configs in data sources that are compressed, in bytes. To parse a config takes sixty times
// its size.
const maxUnpacked = 4 << 20

// Parse reads user data, which is untrusted. It does not read a config in a data source if all of them together are
// much larger than the user data.
func Parse(raw []byte) (*Config, error) {
	left := maxUnpacked + MaxDepth*len(raw) // those that are not compressed are smaller than the text around them
	c, err := parse(raw, "", 0, &left)
	if err != nil {
		return nil, err
	}
	fetched := c.parsed.Ignition.Proxy
	c.setProxies(&fetched)
	return c, nil
}

// parse reads a config in a data source of depth. left is the number of bytes that may still be decoded.
func parse(raw []byte, prefix string, depth int, left *int) (*Config, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, ErrEmpty
	}
	if len(raw) > MaxSize {
		return nil, fmt.Errorf("%w: it has %d bytes; at most %d are read", ErrInvalid, len(raw), MaxSize)
	}
	doc, ok := document(raw)
	if !ok || !doc.Is('{') {
		if bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
			return nil, fmt.Errorf("%w: it is compressed", ErrNotIgnition)
		}
		return nil, ErrNotIgnition
	}
	c := &Config{doc: doc}
	ignition, ok, err := doc.find("ignition")
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, ErrNotIgnition
	}
	if c.version, ok, err = ignition.get("version"); err != nil {
		return nil, err
	} else if !ok {
		return nil, ErrNotIgnition
	}
	parsed, rpt, err := v3_6.ParseCompatibleVersion(raw)
	switch {
	case errors.Is(err, ignerrors.ErrUnknownVersion) || errors.Is(err, ignerrors.ErrInvalidVersion):
		return nil, fmt.Errorf("%w: it is %s", ErrVersion, c.Version())
	case err != nil:
		return nil, fmt.Errorf("%w: %s", ErrInvalid, firstProblem(rpt, err))
	}
	c.parsed = parsed
	if err := c.findReferences(ignition, prefix, depth, left); err != nil {
		return nil, err
	}
	return c, nil
}

// firstProblem returns the first problem of Ignition's report as one short line.
func firstProblem(rpt report.Report, err error) string {
	for _, e := range rpt.Entries {
		if e.Kind.IsFatal() {
			err = errors.New(e.String())
			break
		}
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	return text[:min(len(text), 200)]
}

// Version returns the specification of the config, for example "3.4.0".
func (c *Config) Version() string {
	s, _ := c.version.Str()
	return s
}

func (c *Config) findReferences(ignition value, prefix string, depth int, left *int) error {
	replace, ok, err := ignition.find("config", "replace")
	if err != nil {
		return err
	}
	if ok {
		if err := c.addReference(replace, prefix+"ignition.config.replace", depth, left); err != nil {
			return err
		}
		if len(c.refs) > 0 {
			c.refs[0].replaces = true
		}
	}
	merge, ok, err := ignition.find("config", "merge")
	if err != nil || !ok {
		return err
	}
	for i, e := range merge.elements() {
		if err := c.addReference(e, fmt.Sprintf("%signition.config.merge[%d]", prefix, i), depth, left); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) addReference(object value, where string, depth int, left *int) error {
	source, ok, err := object.get("source")
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	if _, _, _, err := object.headers(); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	if !ok {
		return nil
	}
	url, ok := source.Str()
	if !ok {
		return nil
	}
	ref := reference{object: object, source: source, where: where}
	if isData(url) && depth < MaxDepth {
		ref.inner = c.nested(object, url, where, depth, left)
	} else {
		ref.at, ref.server = asSource(where, url)
	}
	c.refs = append(c.refs, ref)
	return nil
}

// nested reads a config in a data URL, or returns nil if none can be read. Ignition then decides
// about it.
func (c *Config) nested(object value, url, where string, depth int, left *int) *Config {
	compression, err := object.text("compression")
	if err != nil {
		return nil
	}
	raw, err := decodeAtMost(url, compression, *left)
	if err != nil {
		return nil
	}
	*left -= len(raw)
	inner, err := parse(raw, where+" > ", depth+1, left)
	if err != nil {
		return nil
	}
	return inner
}

// Sources returns the sources that may belong to a Machine Config Server, replace before merge, in
// the config's order.
func (c *Config) Sources() []Source {
	var out []Source
	for _, r := range c.refs {
		if r.server {
			out = append(out, r.at)
		}
		if r.inner != nil {
			out = append(out, r.inner.Sources()...)
		}
	}
	return out
}
