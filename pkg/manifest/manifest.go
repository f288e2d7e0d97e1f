// Package manifest reads Kubernetes manifests from files, strictly, and says
// where each fault is.
//
// A file is split into its YAML documents; a List counts as its items. Each
// document becomes JSON and is decoded the way the API server decodes it:
// field names are case-sensitive, and nothing is guessed. Refused, each with
// file and line: anchors, aliases and merge keys, duplicate keys, keys that are
// not strings, unknown fields (in our own kinds) and values of the wrong type.
//
// Scalars follow YAML 1.2: only true and false are booleans. YAML 1.1, which
// kubectl reads, takes an unquoted Off for one too; [Document.Unquoted] finds
// such values, so that a checker can warn of them. In one thing MachineConfigs are
// read as kubectl reads them: a number may be octal, as people write the mode of a file.
//
// The bytes come from an administrator. They are bounded all the same, and no
// input may panic or hang.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Limits of one file. A Machine is about 4 KiB.
const (
	MaxFile  = 16 << 20
	maxDepth = 64
)

// Problem is one fault in one file, for the person who wrote it.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"` // from 1; 0 is the file as a whole
	What    string `json:"what"`           // what is wrong
	Want    string `json:"want,omitempty"` // what would be right
	Warning bool   `json:"warning,omitempty"`
}

// Error is "file:line: what is wrong; what would be right".
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
	return s
}

// Failed reports whether a problem is more than a warning.
func Failed(problems []Problem) bool {
	for _, p := range problems {
		if !p.Warning {
			return true
		}
	}
	return false
}

// Document is one object of a file.
type Document struct {
	File       string
	APIVersion string
	Kind       string

	node *yaml.Node // a mapping
	json []byte
}

// Split reads every object of a file. With an error among the problems the
// documents are nil: half a file is no state to act on.
func Split(file string, raw []byte) ([]Document, []Problem) {
	if len(raw) > MaxFile {
		return nil, []Problem{{File: file, What: fmt.Sprintf("the file has %d bytes", len(raw)),
			Want: fmt.Sprintf("at most %d are read; split it", MaxFile)}}
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

// object is one document, or the items of a List.
func object(file string, n *yaml.Node, list bool) ([]Document, *Problem) {
	if n.Kind != yaml.MappingNode {
		return nil, &Problem{File: file, Line: n.Line, What: "not an object",
			Want: "each document is a mapping with apiVersion and kind"}
	}
	d := Document{File: file, node: n}
	d.APIVersion, d.Kind = field(n, "apiVersion"), field(n, "kind")
	if d.APIVersion == "" || d.Kind == "" {
		return nil, &Problem{File: file, Line: n.Line, What: "the object has no apiVersion or no kind",
			Want: "both are strings at its top level"}
	}
	if list && strings.HasSuffix(d.Kind, "List") {
		items := child(n, "items")
		if items == nil || items.Kind != yaml.SequenceNode {
			return nil, &Problem{File: file, Line: n.Line, What: "a List without items", Want: "'items' is a list of objects"}
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

// decimal writes numbers in octal (0644, 0o644) as decimal ones.
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

// Object is the document of an object that did not come from a file. Its problems
// have no line; their File says which object it is.
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
		return d, &Problem{File: d.File, What: "no JSON: " + err.Error()}
	}
	d.json = raw
	return d, nil
}

// Line is the line of the field at path ("spec.evidence[0].all"), or of its
// nearest parent that is there.
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

// Problem is a fault of the field at path.
func (d Document) Problem(path, what, want string) Problem {
	return Problem{File: d.File, Line: d.Line(path), What: what, Want: want}
}

// Unquoted reports whether the field at path is written without quotes in a
// form that YAML 1.1, and so kubectl, takes for a boolean.
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

// step goes one element down. A key may itself hold dots (an annotation), so
// the longest key that fits is taken.
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
			// A scalar counts where it stands; a block counts from its key.
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

// field is a string at the top level; anything else counts as absent.
func field(n *yaml.Node, key string) string {
	if c := child(n, key); c != nil && c.Kind == yaml.ScalarNode && c.ShortTag() == "!!str" {
		return c.Value
	}
	return ""
}

func empty(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

var lineInError = regexp.MustCompile(`line (\d+)(?:, column \d+)?: `)

// syntax turns the parser's error into a problem.
func syntax(file string, err error) Problem {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	p := Problem{File: file, Want: "the file is YAML; look for wrong indentation, a tab, or a quote that is not closed"}
	if m := lineInError.FindStringSubmatchIndex(text); m != nil {
		p.Line, _ = strconv.Atoi(text[m[2]:m[3]])
		text = text[:m[0]] + text[m[1]:]
	}
	p.What = "not YAML: " + text
	return p
}
