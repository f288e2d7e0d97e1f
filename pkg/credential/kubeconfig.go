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

// others are what a user can be known by besides its token.
var others = []string{"tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data",
	"username", "password", "exec", "auth-provider"}

// token returns where in a kubeconfig, which is YAML or JSON, the one token stands,
// its quotes included. In order:
//
//   - it is one document in UTF-8, and no name that is looked for occurs twice in an object
//   - the current context is one of its contexts, and names a user
//   - exactly one user has a token, this one, and no user has any other credential
//   - the token stands there on one line, as it is
//
// The errors have nothing of its text in them.
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
			if o, err := get(u, other); err != nil || o != nil {
				return 0, 0, fmt.Errorf("a user has %s", other)
			}
		}
		if t, err := get(u, "token"); err != nil {
			return 0, 0, err
		} else if t != nil && u != user {
			return 0, 0, errors.New("a user has a token and is not the current context's")
		}
	}
	t, err := get(user, "token")
	if err != nil {
		return 0, 0, err
	}
	if t == nil || t.Kind != yaml.ScalarNode || t.Tag != "!!str" || !plain(t.Value) {
		return 0, 0, errors.New("the current context's user has no token that can be exchanged")
	}
	return locate(kubeconfig, t)
}

func document(kubeconfig []byte) (*yaml.Node, error) {
	// The kubelet's decoder would recode what is not UTF-8.
	if !utf8.Valid(kubeconfig) || bytes.HasPrefix(kubeconfig, []byte("\ufeff")) {
		return nil, errors.New("it is not plain UTF-8")
	}
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(kubeconfig))
	if err := dec.Decode(&doc); err != nil || len(doc.Content) != 1 {
		return nil, errors.New("it is not YAML")
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one document in it")
	}
	return doc.Content[0], nil
}

// get returns what a mapping has under that name; nil where it has nothing. The
// kubelet distinguishes case: a name in another one would be ignored there.
func get(n *yaml.Node, name string) (found *yaml.Node, err error) {
	if n == nil || n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil, nil
	}
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("where %s should be is no object", name)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Kind != yaml.ScalarNode || key.Value == "<<" || n.Content[i+1].Kind == yaml.AliasNode:
			return nil, errors.New("it has references in it")
		case !strings.EqualFold(key.Value, name):
		case found != nil || key.Value != name:
			return nil, fmt.Errorf("%s can be read in two ways", name)
		default:
			found = n.Content[i+1]
		}
	}
	return found, nil
}

// text is the string that a mapping has under that name.
func text(n *yaml.Node, name string) (string, error) {
	v, err := get(n, name)
	if err != nil {
		return "", err
	}
	if v == nil || v.Kind != yaml.ScalarNode || v.Value == "" {
		return "", fmt.Errorf("there is no %s", name)
	}
	return v.Value, nil
}

// named finds in a list of {name: NAME, KIND: {...}} the one entry of a name.
func named(root *yaml.Node, list, kind, name string) (found *yaml.Node, err error) {
	entries, err := get(root, list)
	if err != nil {
		return nil, err
	}
	if entries == nil || entries.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("there is no list of %s", list)
	}
	for _, entry := range entries.Content {
		have, err := text(entry, "name")
		if err != nil || have != name {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("two of %s have the same name", list)
		}
		if found, err = get(entry, kind); err != nil {
			return nil, err
		}
		if found == nil {
			break
		}
	}
	if found == nil {
		return nil, fmt.Errorf("the current one is not among the %s", list)
	}
	return found, nil
}

// locate finds a scalar in the text by the line and the column that YAML has for it.
func locate(text []byte, n *yaml.Node) (start, end int, err error) {
	for line := 1; line < n.Line; line++ {
		i := bytes.IndexByte(text[start:], '\n')
		if i < 0 {
			return 0, 0, errors.New("the token cannot be found in it")
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
		return 0, 0, errors.New("the token cannot be found in it")
	}
	return start, start + len(want), nil
}

// plain reports whether a token is one word that needs no escape in YAML, JSON and URLs.
func plain(token string) bool {
	return token != "" && len(token) <= maxToken && !slices.ContainsFunc([]byte(token), func(c byte) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("-._~+/=", c) < 0
	})
}

// maxToken bounds a token; a service account's has some 1200 bytes.
const maxToken = 16 << 10
