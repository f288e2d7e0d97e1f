// SPDX-License-Identifier: Apache-2.0

// Package manifest parses Kubernetes manifests strictly and reports each problem with its
// file and line. The policies, machines and rendered configs of files are read with it.
//
// A file is split into its YAML documents, and a List into its items. Each document is
// converted to JSON and decoded as the API server does, with case-sensitive field names.
// The package rejects anchors, aliases and merge keys, duplicate keys, keys that are not
// strings, unknown fields (in this project's kinds) and values of the wrong type.
//
// Scalars follow YAML 1.2: only true and false are booleans. kubectl reads YAML 1.1, in
// which an unquoted Off is also one. [Document.Unquoted] finds such values, so that a
// checker can warn. As an exception, MachineConfigs may have octal numbers as in kubectl,
// because file modes are usually octal.
//
// The input comes from administrators. It is limited in size nevertheless, and no input
// may cause a panic or an endless loop.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// Limits of one file. A Machine is about 4 KiB.
const (
	MaxFile  = 16 << 20
	maxDepth = 64
)

// Problem is a problem in a file, for its author.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"` // from 1; 0 means the whole file
	What    string `json:"what"`           // the problem
	Want    string `json:"want,omitempty"` // how to fix it
	Warning bool   `json:"warning,omitempty"`
}

// Error returns "file:line: problem; how to fix it". The text can be from the file, so it is made printable.
func (p Problem) Error() string {
	s := p.File
	if p.Line > 0 {
		s += ":" + strconv.Itoa(p.Line)
	}
	s += ": "
	if p.Warning {
		s += "warning: "
	}
	s += p.What
	if p.Want != "" {
		s += "; " + p.Want
	}
	return Printable(s)
}

// Printable replaces characters that could control a terminal. Newlines and tabs stay.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) && r != '\n' && r != '\t' || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, s)
}

// Empty returns the problem of a file without any document. An interrupted write or a full disk must not
// remove what was in force.
func Empty(file string) Problem {
	return Problem{File: file, What: "the file has no document",
		Want: "delete the file if its content must no longer be in force"}
}

// Failed reports whether a problem is not just a warning.
func Failed(problems []Problem) bool {
	return slices.ContainsFunc(problems, func(p Problem) bool { return !p.Warning })
}

// Document is one object of a file.
type Document struct {
	File       string
	APIVersion string
	Kind       string

	node *yaml.Node // a mapping
	json []byte
}

// Split parses every object of a file. If a problem is an error, it returns no documents,
// because a part of a file must not take effect.
func Split(file string, raw []byte) ([]Document, []Problem) {
	if len(raw) > MaxFile {
		return nil, []Problem{{File: file, What: fmt.Sprintf("the file has %d bytes", len(raw)),
			Want: fmt.Sprintf("at most %d are allowed; split it", MaxFile)}}
	}
	var docs []Document
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	for {
		var n yaml.Node
		err := dec.Decode(&n)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, []Problem{syntax(file, err)}
		}
		if n.Kind != yaml.DocumentNode || len(n.Content) != 1 || empty(n.Content[0]) {
			continue
		}
		more, problem := object(file, n.Content[0], true)
		if problem != nil {
			return nil, []Problem{*problem}
		}
		docs = append(docs, more...)
	}
}

// object returns the document of n, or the items of a List.
func object(file string, n *yaml.Node, list bool) ([]Document, *Problem) {
	if n.Kind != yaml.MappingNode {
		return nil, &Problem{File: file, Line: n.Line, What: "the document is not an object",
			Want: "write a mapping with apiVersion and kind"}
	}
	d := Document{File: file, node: n}
	d.APIVersion, d.Kind = field(n, "apiVersion"), field(n, "kind")
	if d.APIVersion == "" || d.Kind == "" {
		return nil, &Problem{File: file, Line: n.Line, What: "the object has no apiVersion or no kind",
			Want: "set both at the top level, as strings"}
	}
	if list && strings.HasSuffix(d.Kind, "List") {
		items := child(n, "items")
		if items == nil || items.Kind != yaml.SequenceNode {
			return nil, &Problem{File: file, Line: n.Line, What: "the List has no items",
				Want: "'items' must be a list of objects"}
		}
		var docs []Document
		for _, item := range items.Content {
			more, problem := object(file, item, false)
			if problem != nil {
				return nil, problem
			}
			docs = append(docs, more...)
		}
		return docs, nil
	}
	if group, _, _ := strings.Cut(d.APIVersion, "/"); group == machineConfigs {
		decimal(n, 0)
	}
	var b bytes.Buffer
	if problem := writeJSON(&b, file, n, 0); problem != nil {
		return nil, problem
	}
	d.json = b.Bytes()
	return []Document{d}, nil
}

// machineConfigs is the API group in which numbers may be octal.
const machineConfigs = "machineconfiguration.openshift.io"

// decimal converts octal numbers (0644, 0o644) to decimal ones.
func decimal(n *yaml.Node, depth int) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" && !json.Valid([]byte(n.Value)) {
		if v, err := strconv.ParseInt(n.Value, 0, 64); err == nil {
			n.Value = strconv.FormatInt(v, 10)
		}
	}
	if depth < maxDepth {
		for _, c := range n.Content {
			decimal(c, depth+1)
		}
	}
}

// Object returns the document of an object that did not come from a file. Its problems have
// no line; their File identifies the object.
func Object(fields map[string]any) (Document, *Problem) {
	apiVersion, _ := fields["apiVersion"].(string)
	kind, _ := fields["kind"].(string)
	metadata, _ := fields["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if namespace, _ := metadata["namespace"].(string); namespace != "" {
		name = namespace + "/" + name
	}
	d := Document{File: kind + " " + name, APIVersion: apiVersion, Kind: kind, node: &yaml.Node{Kind: yaml.MappingNode}}
	raw, err := json.Marshal(fields)
	if err != nil {
		return d, &Problem{File: d.File, What: "convert to JSON: " + err.Error()}
	}
	d.json = raw
	return d, nil
}

// Line returns the line of the field at path ("spec.evidence[0].all"), or of its nearest
// existing parent.
func (d Document) Line(path string) int {
	n, line := d.node, d.node.Line
	for path != "" && n != nil {
		n, path = step(n, path)
		if n != nil {
			line = n.Line
		}
	}
	return line
}

// Place is a file and a line.
type Place struct {
	File string
	Line int
}

func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Problem returns a problem at this place.
func (p Place) Problem(what, want string) Problem {
	return Problem{File: p.File, Line: p.Line, What: what, Want: want}
}

// Place returns where the object begins.
func (d Document) Place() Place { return Place{d.File, d.Line("")} }

// Problem returns a problem of the field at path.
func (d Document) Problem(path, what, want string) Problem {
	return Problem{File: d.File, Line: d.Line(path), What: what, Want: want}
}

// Unquoted reports whether the field at path has an unquoted value that YAML 1.1, and so
// kubectl, reads as a boolean.
func (d Document) Unquoted(path string) bool {
	n := d.node
	for path != "" && n != nil {
		n, path = step(n, path)
	}
	if n == nil || n.Kind != yaml.ScalarNode || n.Style != 0 {
		return false
	}
	switch strings.ToLower(n.Value) {
	case "y", "n", "yes", "no", "on", "off":
		return true
	}
	return false
}

// step descends by one path element. A key may contain dots (an annotation), so step uses
// the longest matching key.
func step(n *yaml.Node, path string) (*yaml.Node, string) {
	path = strings.TrimPrefix(path, ".")
	switch n.Kind {
	case yaml.SequenceNode:
		if index, rest, ok := strings.Cut(strings.TrimPrefix(path, "["), "]"); ok {
			if i, err := strconv.Atoi(index); err == nil && i >= 0 && i < len(n.Content) {
				return n.Content[i], rest
			}
		}
	case yaml.MappingNode:
		var found *yaml.Node
		longest := 0
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			rest, ok := strings.CutPrefix(path, key)
			if !ok || len(key) < longest || key == "" || rest != "" && rest[0] != '.' && rest[0] != '[' {
				continue
			}
			// The line of a scalar is its own; the line of a block is that of its key.
			found, longest = n.Content[i+1], len(key)
			if found.Kind != yaml.ScalarNode {
				at := *found
				at.Line = n.Content[i].Line
				found = &at
			}
		}
		if found != nil {
			return found, path[longest:]
		}
	}
	return nil, ""
}

func child(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// field returns a string at the top level, or "".
func field(n *yaml.Node, key string) string {
	if c := child(n, key); c != nil && c.Kind == yaml.ScalarNode && c.ShortTag() == "!!str" {
		return c.Value
	}
	return ""
}

func empty(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

var lineInError = regexp.MustCompile(`line (\d+)(?:, column \d+)?: `)

// syntax converts the parser's error to a problem.
func syntax(file string, err error) Problem {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	p := Problem{File: file, Want: "check for wrong indentation, a tab, or an unclosed quote"}
	if m := lineInError.FindStringSubmatchIndex(text); m != nil {
		p.Line, _ = strconv.Atoi(text[m[2]:m[3]])
		text = text[:m[0]] + text[m[1]:]
	}
	p.What = "not YAML: " + text
	return p
}
