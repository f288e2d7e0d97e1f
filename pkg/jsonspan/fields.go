// SPDX-License-Identifier: Apache-2.0

package jsonspan

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Field is one wanted member of a JSON object: a text, a whole number, true or false, or an object; or one that the
// object must not have.
type Field struct {
	Name                string
	Text                *string
	Number              *int64
	Flag                *bool
	Object              []Field
	Optional, Forbidden bool
}

const (
	maxLevels = 8
	maxFields = 256 // members and elements, in all objects and arrays together
)

// ReadObject reads one JSON object completely and fills fields. It returns an error if a field is missing, unless it is
// optional, or has another type. Null is another type. Other members are ignored, but no object may have the same name
// twice, not even in another case (Unicode's simple folding, as encoding/json compares names). The limits are 8 levels,
// and 256 members and elements.
func ReadObject(raw []byte, fields []Field) error {
	v, ok := Parse(raw)
	if !ok || !utf8.Valid(raw) {
		return errors.New("not JSON")
	}
	if !v.Is('{') {
		return errors.New("not a JSON object")
	}
	var r reader
	return r.object(v, fields, 1)
}

// reader counts the members and elements that it reads.
type reader struct{ names int }

func (r *reader) object(v Value, fields []Field, depth int) error {
	if depth > maxLevels {
		return errors.New("too deep")
	}
	wanted, seen := make(map[string]Field, len(fields)), map[string]bool{}
	for _, f := range fields {
		wanted[fold(f.Name)] = f
	}
	for n, value := range v.Members() {
		if err := r.count(); err != nil {
			return err
		}
		name, _ := n.Str()
		folded := fold(name)
		if seen[folded] {
			return fmt.Errorf("the field %.64q twice", name)
		}
		seen[folded] = true
		var err error
		switch f, ok := wanted[folded]; {
		case !ok:
			err = r.skip(value, depth+1)
		case f.Forbidden:
			err = fmt.Errorf("the field %q is not allowed", name)
		case f.Name != name:
			err = fmt.Errorf("the field %.64q, which is written %q", name, f.Name)
		default:
			err = r.value(value, f, depth)
		}
		if err != nil {
			return err
		}
	}
	for _, want := range fields {
		if !want.Optional && !want.Forbidden && !seen[fold(want.Name)] {
			return fmt.Errorf("no field %q", want.Name)
		}
	}
	return nil
}

// fold returns a text that is the same for all names that differ only in case.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		for {
			next := unicode.SimpleFold(r)
			if next <= r {
				return next // the smallest of those that fold to each other
			}
			r = next
		}
	}, name)
}

// count limits how many members and elements are read.
func (r *reader) count() error {
	if r.names++; r.names > maxFields {
		return errors.New("too many fields")
	}
	return nil
}

// value reads a wanted value.
func (r *reader) value(v Value, want Field, depth int) error {
	text, isText := v.Str()
	switch {
	case want.Text != nil && isText:
		*want.Text = text
		return nil
	case want.Number != nil && !v.None() && json.Unmarshal(v.Raw(), want.Number) == nil:
		return nil
	case want.Flag != nil && (v.Is('t') || v.Is('f')):
		*want.Flag = v.Is('t')
		return nil
	case want.Object != nil && v.Is('{'):
		return r.object(v, want.Object, depth+1)
	}
	return fmt.Errorf("the field %q is of another type", want.Name)
}

// skip reads an unwanted value.
func (r *reader) skip(v Value, depth int) error {
	if v.Is('{') {
		return r.object(v, nil, depth)
	}
	if !v.Is('[') {
		return nil
	}
	if depth > maxLevels {
		return errors.New("too deep")
	}
	for e := range v.Elements() {
		if err := r.count(); err != nil {
			return err
		}
		if err := r.skip(e, depth+1); err != nil {
			return err
		}
	}
	return nil
}
