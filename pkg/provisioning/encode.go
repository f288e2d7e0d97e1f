package provisioning

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// ErrNoToken says that the Secret has no token, which is a mistake: a cluster
// without a provisioning token has no Secret.
var ErrNoToken = errors.New("there is no key \"" + KeyToken + "\"")

// maxFile bounds the file without a cluster.
const maxFile = 64 << 10

// Parse reads a Secret's data. Keys that it does not know are somebody else's.
// Errors hold nothing of a token.
func Parse(data map[string][]byte) (Tokens, error) {
	var t Tokens
	current, ok := data[KeyToken]
	if !ok {
		return t, ErrNoToken
	}
	current = line(current)
	if err := check(KeyToken, current); err != nil {
		return t, err
	}
	t.Current = secret.New(bytes.Clone(current))
	if previous := line(data[KeyPrevious]); len(previous) > 0 {
		if err := check(KeyPrevious, previous); err != nil {
			return Tokens{}, err
		}
		t.Previous = secret.New(bytes.Clone(previous))
	}
	if expires := line(data[KeyPreviousExpires]); len(expires) > 0 {
		at, err := time.Parse(time.RFC3339, string(expires))
		if err != nil {
			// The value may be anything, a token in the wrong place even.
			return Tokens{}, fmt.Errorf("%s: not a time such as 2026-01-31T12:00:00Z", KeyPreviousExpires)
		}
		t.PreviousExpires = at.UTC()
	}
	if !t.Previous.Empty() && t.PreviousExpires.IsZero() {
		return Tokens{}, fmt.Errorf("%s without %s would be valid for ever", KeyPrevious, KeyPreviousExpires)
	}
	return t, nil
}

// line takes off the line break that echo and base64 leave.
func line(b []byte) []byte { return bytes.TrimRight(b, "\r\n") }

// Data is the Secret's data. The result holds secrets in clear.
func (t Tokens) Data() map[string][]byte {
	data := map[string][]byte{KeyToken: bytes.Clone(t.Current.Expose())}
	if !t.Previous.Empty() {
		data[KeyPrevious] = bytes.Clone(t.Previous.Expose())
	}
	if !t.PreviousExpires.IsZero() {
		data[KeyPreviousExpires] = []byte(t.PreviousExpires.UTC().Format(time.RFC3339))
	}
	return data
}

// ParseFile reads the file that holds the token where there is no cluster: a
// mapping of the same keys.
func ParseFile(raw []byte) (map[string][]byte, error) {
	if len(raw) > maxFile {
		return nil, fmt.Errorf("%d bytes; at most %d are read", len(raw), maxFile)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		// The parser's own words could quote the file.
		return nil, errors.New("this is neither YAML nor JSON")
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("not a mapping; write %q and the token", KeyToken+":")
	}
	data := map[string][]byte{}
	for i, pairs := 0, doc.Content[0].Content; i+1 < len(pairs); i += 2 {
		name, value := pairs[i], pairs[i+1]
		known := name.Value == KeyToken || name.Value == KeyPrevious || name.Value == KeyPreviousExpires
		if _, twice := data[name.Value]; !known || twice || value.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("line %d: the keys are %s, %s and %s, each once, with a text", name.Line, KeyToken,
				KeyPrevious, KeyPreviousExpires)
		}
		data[name.Value] = []byte(value.Value)
	}
	return data, nil
}

// EncodeFile is the file that ParseFile reads. It is a secret in clear.
func (t Tokens) EncodeFile() secret.Bytes {
	var b strings.Builder
	data := t.Data()
	for _, key := range []string{KeyToken, KeyPrevious, KeyPreviousExpires} {
		if v, ok := data[key]; ok {
			b.WriteString(key + ": " + strconv.Quote(string(v)) + "\n")
		}
	}
	return secret.New([]byte(b.String()))
}
