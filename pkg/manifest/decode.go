// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	gojson "encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/json"
)

// Decode decodes an object of this project's API. Unknown fields are problems.
func (d Document) Decode(into any) []Problem {
	strict, err := json.UnmarshalStrict(d.json, into, json.DisallowUnknownFields)
	if err != nil {
		return []Problem{d.wrongType(err)}
	}
	var problems []Problem
	for _, err := range strict {
		var at json.FieldError
		if !errors.As(err, &at) {
			problems = append(problems, d.Problem("", err.Error(), ""))
			continue
		}
		path := at.FieldPath()
		problems = append(problems, d.Problem(path, fmt.Sprintf("unknown field %q", path), known(reflect.TypeOf(into), path)))
	}
	return problems
}

// DecodeKnown decodes a foreign object into a type that has only the needed fields.
func (d Document) DecodeKnown(into any) []Problem {
	if err := json.UnmarshalCaseSensitivePreserveInts(d.json, into); err != nil {
		return []Problem{d.wrongType(err)}
	}
	return nil
}

// wrongType describes a value that does not have the field's type.
func (d Document) wrongType(err error) Problem {
	if wrong, ok := errors.AsType[*gojson.UnmarshalTypeError](err); ok {
		field, line := d.fieldOf(wrong)
		p := Problem{File: d.File, Line: line, What: fmt.Sprintf("%s is a %s", field, jsonName(wrong.Value)),
			Want: "a " + typeName(wrong.Type) + " is required"}
		if wrong.Type.Kind() == reflect.String && wrong.Value != "object" && wrong.Value != "array" {
			p.Want += "; put the value in quotes"
		}
		return p
	}
	// Types with their own decoder (times, durations) name only the value.
	p := Problem{File: d.File, Line: d.node.Line, What: err.Error()}
	if _, value, ok := strings.Cut(err.Error(), `"`); ok {
		if value, _, ok = strings.Cut(value, `"`); ok {
			if line := find(d.node, value, 0); line > 0 {
				p.Line = line
			}
		}
	}
	switch {
	case strings.Contains(p.What, "time: "):
		p.Want = `a duration is written like "10m" or "1h30m"`
	case strings.Contains(p.What, "parsing time"):
		p.Want = `a time is written like "2026-11-21T04:00:00Z"`
	}
	return p
}

// fieldOf finds the field of a type error, whose path has no indexes but names embedded Go
// structs. It returns the first value of the wrong type, and skips path elements that are
// not in the document.
func (d Document) fieldOf(wrong *gojson.UnmarshalTypeError) (field string, line int) {
	kind, _, _ := strings.Cut(wrong.Value, " ")
	var walk func(n *yaml.Node, path, shown []string)
	walk = func(n *yaml.Node, path, shown []string) {
		switch {
		case line > 0:
		case len(path) == 0 && jsonKind(n) == kind:
			field, line = strings.Join(shown, "."), n.Line
		case n.Kind == yaml.SequenceNode:
			for _, item := range n.Content {
				walk(item, path, shown)
			}
		case n.Kind == yaml.MappingNode && len(path) > 0:
			if c := child(n, path[0]); c != nil {
				walk(c, path[1:], append(slices.Clip(shown), path[0]))
			} else {
				walk(n, path[1:], shown)
			}
		}
	}
	walk(d.node, strings.Split(wrong.Field, "."), nil)
	if line == 0 {
		return wrong.Field, d.Line(wrong.Field)
	}
	return field, line
}

// find returns the line of the first scalar with this text.
func find(n *yaml.Node, value string, depth int) int {
	if n.Kind == yaml.ScalarNode && n.Value == value {
		return n.Line
	}
	if depth < maxDepth {
		for _, c := range n.Content {
			if line := find(c, value, depth+1); line > 0 {
				return line
			}
		}
	}
	return 0
}

// writeJSON writes n as JSON. It rejects what has no JSON form.
func writeJSON(b *bytes.Buffer, file string, n *yaml.Node, depth int) *Problem {
	refuse := func(at *yaml.Node, what, want string) *Problem {
		return &Problem{File: file, Line: at.Line, What: what, Want: want}
	}
	switch {
	case depth > maxDepth:
		return refuse(n, "nested too deeply", fmt.Sprintf("at most %d levels", maxDepth))
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return refuse(n, "anchors and aliases are not supported", "repeat the value instead")
	}
	switch n.Kind {
	case yaml.MappingNode:
		seen := make(map[string]int, len(n.Content)/2)
		b.WriteByte('{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" || key.Anchor != "" {
				return refuse(key, "the key is not a string", "put it in quotes")
			}
			if first, ok := seen[key.Value]; ok {
				return refuse(key, fmt.Sprintf("%q is a duplicate key", key.Value),
					fmt.Sprintf("the first is on line %d; remove one", first))
			}
			seen[key.Value] = key.Line
			if i > 0 {
				b.WriteByte(',')
			}
			writeString(b, key.Value)
			b.WriteByte(':')
			if p := writeJSON(b, file, n.Content[i+1], depth+1); p != nil {
				return p
			}
		}
		b.WriteByte('}')
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, item := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			if p := writeJSON(b, file, item, depth+1); p != nil {
				return p
			}
		}
		b.WriteByte(']')
	case yaml.ScalarNode:
		switch n.ShortTag() {
		case "!!str", "!!timestamp":
			writeString(b, n.Value)
		case "!!bool":
			b.WriteString(strings.ToLower(n.Value))
		case "!!null":
			b.WriteString("null")
		case "!!int", "!!float":
			if !gojson.Valid([]byte(n.Value)) {
				return refuse(n, fmt.Sprintf("%.64q is not a plain decimal number", n.Value), "put it in quotes if it is a string")
			}
			b.WriteString(n.Value)
		default:
			return refuse(n, fmt.Sprintf("the tag %.64q is not supported", n.ShortTag()), "remove the tag")
		}
	default:
		return refuse(n, "not a value", "")
	}
	return nil
}

func writeString(b *bytes.Buffer, s string) {
	quoted, _ := gojson.Marshal(s) // a string always has a JSON form
	b.Write(quoted)
}

// jsonKind returns the name of the node's type in an error of encoding/json.
func jsonKind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "object"
	case yaml.SequenceNode:
		return "array"
	}
	switch n.ShortTag() {
	case "!!bool":
		return "bool"
	case "!!int", "!!float":
		return "number"
	}
	return "string"
}

func jsonName(value string) string {
	switch value {
	case "bool":
		return "boolean"
	case "object":
		return "mapping"
	case "array":
		return "list"
	}
	return value
}

func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		return "list"
	case reflect.Struct, reflect.Map:
		return "mapping"
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "string"
	}
	return "number (" + t.Kind().String() + ")"
}

// known suggests a field in place of an unknown one, or lists the known fields.
func known(t reflect.Type, path string) string {
	elements := strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
	for i, e := range elements {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() == reflect.Slice {
			if _, err := strconv.Atoi(e); err == nil {
				t = t.Elem()
				continue
			}
		}
		if t.Kind() != reflect.Struct {
			return ""
		}
		names := fields(t)
		if i == len(elements)-1 {
			for name := range names {
				if strings.EqualFold(name, e) {
					return fmt.Sprintf("did you mean %q?", name)
				}
			}
			return "known fields: " + strings.Join(slices.Sorted(maps.Keys(names)), ", ")
		}
		next, ok := names[e]
		if !ok {
			return ""
		}
		t = next
	}
	return ""
}

// fields returns the JSON names of a struct, including those of inlined structs.
func fields(t reflect.Type) map[string]reflect.Type {
	names := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "" && f.Anonymous && (options == "inline" || options == "") && f.Type.Kind() == reflect.Struct:
			for n, t := range fields(f.Type) {
				names[n] = t
			}
		case name != "":
			names[name] = f.Type
		default:
			names[f.Name] = f.Type
		}
	}
	return names
}
