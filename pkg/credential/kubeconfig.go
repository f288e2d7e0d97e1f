// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// others are the credentials that a user can have besides its token.
var others = []string{"tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data",
	"username", "password", "exec", "auth-provider"}

// token returns the position of the only token in a kubeconfig, which is YAML or JSON,
// including its quotes. In order:
//
//   - the kubeconfig is one UTF-8 document, and no relevant name occurs twice in an object
//   - the current context exists and names a user
//   - only that user has a token, and no user has any other credential
//   - the token is on one line, without escapes
//
// The errors contain no text of the kubeconfig.
func token(kubeconfig []byte) (start, end int, err error) {
	root, err := document(kubeconfig)
	if err != nil {
		return 0, 0, err
	}
	current, err := text(root, "current-context")
	if err != nil {
		return 0, 0, err
	}
	context, err := named(root, "contexts", "context", current)
	if err != nil {
		return 0, 0, err
	}
	name, err := text(context, "user")
	if err != nil {
		return 0, 0, err
	}
	user, err := named(root, "users", "user", name)
	if err != nil {
		return 0, 0, err
	}
	all, err := get(root, "users")
	if err != nil {
		return 0, 0, err
	}
	for _, entry := range all.Content {
		u, err := get(entry, "user")
		if err != nil {
			return 0, 0, err
		}
		for _, other := range others {
			if o, err := get(u, other); err != nil {
				return 0, 0, err
			} else if o != nil {
				return 0, 0, fmt.Errorf("a user has %s", other)
			}
		}
		if t, err := get(u, "token"); err != nil {
			return 0, 0, err
		} else if t != nil && u != user {
			return 0, 0, errors.New("a user other than the current context's has a token")
		}
	}
	t, err := get(user, "token")
	if err != nil {
		return 0, 0, err
	}
	if t == nil || t.Kind != yaml.ScalarNode || t.Tag != "!!str" || !plain(t.Value) {
		return 0, 0, errors.New("the current context's user has no token that can be replaced")
	}
	return locate(kubeconfig, t)
}

func document(kubeconfig []byte) (*yaml.Node, error) {
	// The kubelet's decoder would recode other encodings.
	if !utf8.Valid(kubeconfig) || bytes.HasPrefix(kubeconfig, []byte("\ufeff")) {
		return nil, errors.New("it is not plain UTF-8")
	}
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(kubeconfig))
	if err := dec.Decode(&doc); err != nil || len(doc.Content) != 1 {
		return nil, errors.New("it is not YAML")
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("it has more than one document")
	}
	return doc.Content[0], nil
}

// get returns the value of a name in a mapping, or nil. Names are case-sensitive, as in
// the kubelet.
func get(n *yaml.Node, name string) (found *yaml.Node, err error) {
	if n == nil || n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil, nil
	}
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("the parent of %s is not an object", name)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Kind != yaml.ScalarNode || key.Value == "<<" || n.Content[i+1].Kind == yaml.AliasNode:
			return nil, errors.New("it has references")
		case !strings.EqualFold(key.Value, name):
		case found != nil || key.Value != name:
			return nil, fmt.Errorf("%s is ambiguous", name)
		default:
			found = n.Content[i+1]
		}
	}
	return found, nil
}

// text returns the string value of a name in a mapping.
func text(n *yaml.Node, name string) (string, error) {
	v, err := get(n, name)
	if err != nil {
		return "", err
	}
	if v == nil || v.Kind != yaml.ScalarNode || v.Value == "" {
		return "", fmt.Errorf("it has no %s", name)
	}
	return v.Value, nil
}

// named returns the only entry with a name in a list of {name: NAME, KIND: {...}}.
func named(root *yaml.Node, list, kind, name string) (found *yaml.Node, err error) {
	entries, err := get(root, list)
	if err != nil {
		return nil, err
	}
	if entries == nil || entries.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("it has no list %s", list)
	}
	for _, entry := range entries.Content {
		have, err := text(entry, "name")
		if err != nil || have != name {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("two entries of %s have the same name", list)
		}
		if found, err = get(entry, kind); err != nil {
			return nil, err
		}
		if found == nil {
			break
		}
	}
	if found == nil {
		return nil, fmt.Errorf("the current one is not in %s", list)
	}
	return found, nil
}

// locate returns the position of a scalar in the text, from its line and column.
func locate(text []byte, n *yaml.Node) (start, end int, err error) {
	for line := 1; line < n.Line; line++ {
		i := bytes.IndexByte(text[start:], '\n')
		if i < 0 {
			return 0, 0, errors.New("its token cannot be located")
		}
		start += i + 1
	}
	for column := 1; column < n.Column && start < len(text); column++ {
		_, size := utf8.DecodeRune(text[start:])
		start += size
	}
	want := n.Value
	switch n.Style {
	case yaml.DoubleQuotedStyle:
		want = `"` + want + `"`
	case yaml.SingleQuotedStyle:
		want = `'` + want + `'`
	}
	if !bytes.HasPrefix(text[start:], []byte(want)) {
		return 0, 0, errors.New("its token cannot be located")
	}
	return start, start + len(want), nil
}

// plain reports whether a token needs no escapes in YAML, JSON and URLs.
func plain(token string) bool {
	return token != "" && len(token) <= maxToken && !slices.ContainsFunc([]byte(token), func(c byte) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("-._~+/=", c) < 0
	})
}

// maxToken is the maximum size of a token; a service account's has about 1200 bytes.
const maxToken = 16 << 10
