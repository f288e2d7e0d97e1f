package pointer

import (
	"encoding/json"
	"fmt"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
)

// value is a JSON value and where it is in the text.
type value struct{ jsonspan.Value }

type edit = jsonspan.Edit

// document checks the text and returns its one value.
func document(text []byte) (value, bool) {
	v, ok := jsonspan.Parse(text)
	return value{v}, ok
}

// strOrEmpty is the value of a string; "" if it is none.
func (v value) strOrEmpty() string {
	s, _ := v.Str()
	return s
}

// elements lists an array's elements; nil if v is no array.
func (v value) elements() (all []value) {
	for e := range v.Elements() {
		all = append(all, value{e})
	}
	return all
}

// get returns the member of that name. Go's decoder, and so Ignition, ignores
// the case of names and takes the last of several: such an object is refused.
func (v value) get(name string) (found value, ok bool, err error) {
	m, err := v.Get(name)
	if err != nil {
		return value{}, false, fmt.Errorf("%w: the key %w", ErrAmbiguous, err)
	}
	return value{m}, m.Text != nil, nil
}

// find follows names from object to object; a null on the way is an absence.
func (v value) find(names ...string) (value, bool, error) {
	for _, name := range names {
		m, ok, err := v.get(name)
		if err != nil || !ok || m.None() {
			return value{}, false, err
		}
		v = m
	}
	return v, true, nil
}

// with returns the edit that puts a JSON text in the place of v.
func (v value) with(raw string) edit { return edit{Start: v.Start, End: v.End, With: []byte(raw)} }

// set returns the edit that gives object v the member name with the JSON text
// raw; existing is the member that is there already, if any.
func (v value) set(name string, existing value, exists bool, raw string) edit {
	if exists {
		return existing.with(raw)
	}
	at, comma := v.Start+1, ""
	for _, m := range v.Members() {
		at, comma = m.End, ","
	}
	return edit{Start: at, End: at, With: []byte(comma + quote(name) + ":" + raw)}
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // cannot happen to a string
	}
	return string(b)
}
