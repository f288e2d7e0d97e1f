// SPDX-License-Identifier: Apache-2.0

package provisioning

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// ErrNoToken means that the Secret has no token. That is a mistake, because a cluster
// without a provisioning token has no Secret.
var ErrNoToken = errors.New("the Secret has no key \"" + KeyToken + "\"")

// maxFile is the maximum size of the file.
const maxFile = 64 << 10

// Parse parses a Secret's data. It ignores unknown keys. Its errors do not contain any part
// of a token.
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
			// Do not print the value: it could be a misplaced token.
			return Tokens{}, fmt.Errorf("%s: not a time such as 2026-01-31T12:00:00Z", KeyPreviousExpires)
		}
		t.PreviousExpires = at.UTC()
	}
	if !t.Previous.Empty() && t.PreviousExpires.IsZero() {
		return Tokens{}, fmt.Errorf("%s without %s would never expire", KeyPrevious, KeyPreviousExpires)
	}
	return t, nil
}

// line removes the trailing line break that echo and base64 add.
func line(b []byte) []byte { return bytes.TrimRight(b, "\r\n") }

// Data returns the Secret's data. It contains secrets in plain text.
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

// ParseFile parses the file with the token, which a verifier without a cluster uses: a
// mapping with the keys of the Secret.
func ParseFile(raw []byte) (map[string][]byte, error) {
	if len(raw) > maxFile {
		return nil, fmt.Errorf("the file has %d bytes; at most %d are allowed", len(raw), maxFile)
	}
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	if err := dec.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		// The parser's error could quote the file.
		return nil, errors.New("the file is neither YAML nor JSON")
	}
	if err := dec.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("a second YAML document follows; the file must have one")
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("the file is not a mapping; write %q and the token", KeyToken+":")
	}
	data := map[string][]byte{}
	for pair := range slices.Chunk(doc.Content[0].Content, 2) {
		name, value := pair[0], pair[1]
		known := name.Value == KeyToken || name.Value == KeyPrevious || name.Value == KeyPreviousExpires
		if _, twice := data[name.Value]; !known || twice || value.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("line %d: the only keys are %s, %s and %s, each once, with a string", name.Line, KeyToken,
				KeyPrevious, KeyPreviousExpires)
		}
		data[name.Value] = []byte(value.Value)
	}
	return data, nil
}

// EncodeFile returns the file that ParseFile reads. It contains secrets in plain text.
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
