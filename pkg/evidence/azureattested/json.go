// SPDX-License-Identifier: Apache-2.0

package azureattested

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
)

// field is one wanted member of a JSON object: a text, a number, or an object.
type field struct {
	name     string
	text     *string
	number   *int64
	object   []field
	optional bool
}

const (
	maxDepth  = 8
	maxFields = 256 // in all objects together
)

// readObject reads one JSON object completely and fills fields. No object in it may have the same
// name twice, not even in another case.
func readObject(raw []byte, fields []field) error {
	v, ok := jsonspan.Parse(raw)
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

func (r *reader) object(v jsonspan.Value, fields []field, depth int) error {
	if depth > maxDepth {
		return errors.New("too deep")
	}
	var seen []string
	for n, value := range v.Members() {
		if err := r.count(); err != nil {
			return err
		}
		name, _ := n.Str()
		folds := func(other string) bool { return strings.EqualFold(other, name) }
		if slices.ContainsFunc(seen, folds) {
			return fmt.Errorf("the field %.64q twice", name)
		}
		seen = append(seen, name)
		var err error
		switch i := slices.IndexFunc(fields, func(f field) bool { return folds(f.name) }); {
		case i < 0:
			err = r.skip(value, depth+1)
		case fields[i].name != name:
			err = fmt.Errorf("the field %.64q, which is written %q", name, fields[i].name)
		default:
			err = r.value(value, fields[i], depth)
		}
		if err != nil {
			return err
		}
	}
	for _, want := range fields {
		if !want.optional && !slices.Contains(seen, want.name) {
			return fmt.Errorf("no field %q", want.name)
		}
	}
	return nil
}

// count limits how many members and elements are read.
func (r *reader) count() error {
	if r.names++; r.names > maxFields {
		return errors.New("too many fields")
	}
	return nil
}

// value reads a wanted value.
func (r *reader) value(v jsonspan.Value, want field, depth int) error {
	text, isText := v.Str()
	switch {
	case want.text != nil && isText:
		*want.text = text
		return nil
	case want.number != nil && !v.None() && json.Unmarshal(v.Raw(), want.number) == nil:
		return nil
	case want.object != nil && v.Is('{'):
		return r.object(v, want.object, depth+1)
	}
	return fmt.Errorf("the field %q is of another type", want.name)
}

// skip reads an unwanted value.
func (r *reader) skip(v jsonspan.Value, depth int) error {
	if v.Is('{') {
		return r.object(v, nil, depth)
	}
	if !v.Is('[') {
		return nil
	}
	if depth > maxDepth {
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
