// SPDX-License-Identifier: Apache-2.0

// Package jsonspan finds values in a JSON text and their positions. It is for callers that
// change a few places of a text and keep every other byte, and for callers that must reject
// ambiguous texts: encoding/json uses the last of several members with the same name, and
// ignores the case of names. [ReadObject] reads an object of which nothing may be ambiguous.
//
// [Parse] accepts the texts that [encoding/json.Valid] accepts (RFC 8259). After it no method fails
// because of syntax. The content is untrusted.
package jsonspan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"
)

// Value is a value and its position: Text[Start:End]. The zero Value means that there is no
// value. Values come from [Parse] or from another Value.
type Value struct {
	Text       []byte // the whole text
	Start, End int
}

// Parse returns the value of a text, or false if the text is not JSON.
func Parse(text []byte) (Value, bool) {
	if !json.Valid(text) {
		return Value{}, false
	}
	start := skipSpace(text, 0)
	return Value{text, start, skipValue(text, start)}, true
}

// Raw returns the text of the value.
func (v Value) Raw() []byte { return v.Text[v.Start:v.End] }

// Is reports whether the value begins with this byte: '{', '[' or '"' for an object, an
// array or a string.
func (v Value) Is(first byte) bool { return v.Text != nil && v.Text[v.Start] == first }

// None reports whether the value is absent or null.
func (v Value) None() bool { return v.Text == nil || v.Is('n') }

// Str returns the content of a string, or false if the value is not a string.
func (v Value) Str() (string, bool) {
	if !v.Is('"') {
		return "", false
	}
	inner := v.Text[v.Start+1 : v.End-1]
	if bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return string(inner), true
	}
	var s string
	err := json.Unmarshal(v.Raw(), &s)
	return s, err == nil
}

// Members returns the names and the values of an object in order, or nothing for other
// values.
func (v Value) Members() iter.Seq2[Value, Value] {
	return func(yield func(name, value Value) bool) {
		if !v.Is('{') {
			return
		}
		for i := skipSpace(v.Text, v.Start+1); v.Text[i] != '}'; {
			name := Value{v.Text, i, skipValue(v.Text, i)}
			i = skipSpace(v.Text, skipSpace(v.Text, name.End)+1) // past the colon
			value := Value{v.Text, i, skipValue(v.Text, i)}
			if !yield(name, value) {
				return
			}
			i = next(v.Text, value.End)
		}
	}
}

// Elements returns the elements of an array in order, or nothing for other values.
func (v Value) Elements() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if !v.Is('[') {
			return
		}
		for i := skipSpace(v.Text, v.Start+1); v.Text[i] != ']'; {
			e := Value{v.Text, i, skipValue(v.Text, i)}
			if !yield(e) {
				return
			}
			i = next(v.Text, e.End)
		}
	}
}

// Get returns the member of an object with this name, compared like in encoding/json. If
// there is none, it returns the zero Value. Two members with the name are an error.
func (v Value) Get(name string) (found Value, err error) {
	for n, value := range v.Members() {
		if !n.names(name) {
			continue
		}
		if found.Text != nil {
			return Value{}, fmt.Errorf("%q occurs twice in one object", name)
		}
		found = value
	}
	return found, nil
}

// names reports whether the name of a member equals name.
func (v Value) names(name string) bool {
	raw := v.Text[v.Start+1 : v.End-1]
	for _, c := range raw {
		if c != '\\' && c < utf8.RuneSelf {
			continue
		}
		// Slow path: the name has an escape, or a letter with a non-ASCII case variant.
		key, ok := v.Str()
		return ok && strings.EqualFold(key, name)
	}
	return len(raw) == len(name) && strings.EqualFold(string(raw), name)
}

// Edit replaces Text[Start:End].
type Edit struct {
	Start, End int
	With       []byte
}

// Apply applies edits that do not overlap to the text.
func Apply(text []byte, edits []Edit) []byte {
	edits = slices.Clone(edits)
	slices.SortStableFunc(edits, func(a, b Edit) int { return a.Start - b.Start })
	var out []byte
	at := 0
	for _, e := range edits {
		out = append(append(out, text[at:e.Start]...), e.With...)
		at = e.End
	}
	return append(out, text[at:]...)
}

// next returns the start of the next member or element, or the end of the object or array.
func next(text []byte, end int) int {
	i := skipSpace(text, end)
	if text[i] == ',' {
		return skipSpace(text, i+1)
	}
	return i
}

func skipSpace(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n') {
		i++
	}
	return i
}

// skipValue returns the end of the value at i. In valid JSON, counting brackets outside of
// strings suffices.
func skipValue(text []byte, i int) int {
	for depth := 0; ; {
		switch text[i] {
		case '"':
			i = skipString(text, i+1)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\r', '\n':
			i++
		default: // a number, true, false or null
			for i < len(text) && strings.IndexByte(",]} \t\r\n", text[i]) < 0 {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}

// skipString returns the index after the quote that ends the string whose content
// begins at i.
func skipString(text []byte, i int) int {
	for {
		end := i + bytes.IndexByte(text[i:], '"')
		escapes := 0
		for end-1-escapes >= i && text[end-1-escapes] == '\\' {
			escapes++
		}
		if i = end + 1; escapes%2 == 0 {
			return i
		}
	}
}
