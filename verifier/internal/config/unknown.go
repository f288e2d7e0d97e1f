// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/mcs-attest/mcs-attest/pkg/spelling"
	"github.com/mcs-attest/mcs-attest/verifier/internal/hint"
)

// unknownField returns an error for the first field of a document that t does not have: its line and its path,
// with the nearest name as the hint. Without one, the names that are known there. It returns nil if all are known.
func unknownField(name string, n *yaml.Node, t reflect.Type, path string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case n.Kind == yaml.DocumentNode && len(n.Content) == 1:
		return unknownField(name, n.Content[0], t, path)
	case n.Kind == yaml.SequenceNode && t.Kind() == reflect.Slice:
		var all []error
		for i, item := range n.Content {
			all = append(all, unknownField(name, item, t.Elem(), fmt.Sprintf("%s[%d]", path, i)))
		}
		return first(all)
	case n.Kind != yaml.MappingNode || t.Kind() != reflect.Struct:
		return nil
	}
	known := fields(t)
	var all []error
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		of, ok := known[key.Value]
		if ok {
			all = append(all, unknownField(name, n.Content[i+1], of, at))
			continue
		}
		names := slices.Sorted(maps.Keys(known))
		text := strings.Join(names, ", ")
		if near := spelling.Near(key.Value, names); len(near) > 0 {
			err := fmt.Errorf("%s:%d: unknown field %q", name, key.Line, at)
			return hint.New(err, "did you mean %s?", strings.Join(near, " or "))
		}
		return fmt.Errorf("%s:%d: unknown field %q; known here: %s", name, key.Line, at, text)
	}
	return first(all)
}

// first returns the first error of all.
func first(all []error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

// fields returns the type of each field of a struct by its name in YAML.
func fields(t reflect.Type) map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			maps.Copy(all, fields(f.Type))
		case tag != "" && tag != "-":
			all[tag] = f.Type
		}
	}
	return all
}

// decodeError makes of an error of the YAML decoder one for a person.
func decodeError(name string, raw []byte, err error) error {
	var n yaml.Node
	if yaml.Unmarshal(raw, &n) == nil {
		if unknown := unknownField(name, &n, reflect.TypeFor[Config](), ""); unknown != nil {
			return unknown
		}
	}
	if types, ok := errors.AsType[*yaml.TypeError](err); ok && len(types.Errors) > 0 {
		return fmt.Errorf("%s: %s", name, strings.Join(types.Errors, "; "))
	}
	return fmt.Errorf("%s: %w", name, err)
}
