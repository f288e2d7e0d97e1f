package azureattested

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// field is one that is wanted of a JSON object: a text, a number, or an object.
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

// readObject reads one JSON object, whole, into fields. In no object of it, known
// or not, is a name twice, also not in another case.
func readObject(raw []byte, fields []field) error {
	if !utf8.Valid(raw) || !json.Valid(raw) {
		return errors.New("not JSON")
	}
	r := reader{raw: raw}
	r.space()
	if r.raw[r.at] != '{' {
		return errors.New("no JSON object")
	}
	return r.object(fields, 1)
}

// reader walks over JSON that is known to be valid.
type reader struct {
	raw   []byte
	at    int
	names int
}

func (r *reader) space() {
	for r.at < len(r.raw) && bytes.IndexByte([]byte(" \t\r\n"), r.raw[r.at]) >= 0 {
		r.at++
	}
}

// object reads from its "{" to behind its "}".
func (r *reader) object(fields []field, depth int) error {
	seen := make([]string, 0, 8)
	err := r.each(depth, '}', func() error {
		name := r.text()
		for _, other := range seen {
			if strings.EqualFold(other, name) {
				return fmt.Errorf("the field %.64q twice", name)
			}
		}
		seen = append(seen, name)
		r.space()
		r.at++ // the colon
		r.space()
		for i := range fields {
			switch {
			case fields[i].name == name:
				return r.value(&fields[i], depth)
			case strings.EqualFold(fields[i].name, name):
				return fmt.Errorf("the field %.64q, which is written %q", name, fields[i].name)
			}
		}
		return r.skip(depth + 1)
	})
	if err != nil {
		return err
	}
	for _, want := range fields {
		found := want.optional
		for _, name := range seen {
			found = found || name == want.name
		}
		if !found {
			return fmt.Errorf("no field %q", want.name)
		}
	}
	return nil
}

// each calls item at the beginning of each member of an object or an array.
func (r *reader) each(depth int, end byte, item func() error) error {
	if depth > maxDepth {
		return errors.New("too deep")
	}
	r.at++ // the opening one
	for r.space(); r.raw[r.at] != end; r.space() {
		if r.raw[r.at] == ',' {
			r.at++
			r.space()
		}
		if r.names++; r.names > maxFields {
			return errors.New("too many fields")
		}
		if err := item(); err != nil {
			return err
		}
	}
	r.at++
	return nil
}

// value reads a value that is wanted.
func (r *reader) value(want *field, depth int) error {
	switch c := r.raw[r.at]; {
	case want.text != nil && c == '"':
		*want.text = r.text()
		return nil
	case want.number != nil && (c == '-' || c >= '0' && c <= '9'):
		return json.Unmarshal(r.scalar(), want.number)
	case want.object != nil && c == '{':
		return r.object(want.object, depth+1)
	}
	return fmt.Errorf("the field %q is of another type", want.name)
}

// skip reads over a value.
func (r *reader) skip(depth int) error {
	switch r.raw[r.at] {
	case '{':
		return r.object(nil, depth)
	case '[':
		return r.each(depth, ']', func() error { return r.skip(depth + 1) })
	case '"':
		r.text()
	default:
		r.scalar()
	}
	return nil
}

// text reads a string.
func (r *reader) text() string {
	begin := r.at
	escaped := false
	for r.at++; r.raw[r.at] != '"'; r.at++ {
		if r.raw[r.at] == '\\' {
			escaped = true
			r.at++
		}
	}
	r.at++
	if !escaped {
		return string(r.raw[begin+1 : r.at-1])
	}
	var s string
	_ = json.Unmarshal(r.raw[begin:r.at], &s) // it is a valid string
	return s
}

// scalar reads a number, or true, false or null.
func (r *reader) scalar() []byte {
	begin := r.at
	for r.at < len(r.raw) && bytes.IndexByte([]byte(" \t\r\n,]}"), r.raw[r.at]) < 0 {
		r.at++
	}
	return r.raw[begin:r.at]
}
