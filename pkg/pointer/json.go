// SPDX-License-Identifier: Apache-2.0

package pointer

import (
	"encoding/json"
	"fmt"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
)

// value is a JSON value with its position in the text.
type value struct{ jsonspan.Value }

type edit = jsonspan.Edit

// document checks that the text is one JSON value and returns it.
func document(text []byte) (value, bool) {
	v, ok := jsonspan.Parse(text)
	return value{v}, ok
}

// strOrEmpty returns the content of a string, or "" for any other value.
func (v value) strOrEmpty() string {
	s, _ := v.Str()
	return s
}

// elements returns the elements of an array, or nil for any other value.
func (v value) elements() (all []value) {
	for e := range v.Elements() {
		all = append(all, value{e})
	}
	return all
}

// get returns the member with that name. Go's decoder, and therefore Ignition, ignores the case of
// names and uses the last of several. An object with several such names is rejected.
func (v value) get(name string) (found value, ok bool, err error) {
	m, err := v.Get(name)
	if err != nil {
		return value{}, false, fmt.Errorf("%w: the key %w", ErrAmbiguous, err)
	}
	return value{m}, m.Text != nil, nil
}

// find follows names from object to object. A null on the path counts as absent.
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

// text follows names like find, and returns the content of the string there, or "" for any other value.
func (v value) text(names ...string) (string, error) {
	found, _, err := v.find(names...)
	return found.strOrEmpty(), err
}

// sources returns the entries of the object ignition.config: the one of "replace", and those of the named list.
func (v value) sources(list string) (all []value, err error) {
	replace, ok, err := v.find("replace")
	if err != nil {
		return nil, err
	}
	if ok {
		all = append(all, replace)
	}
	more, _, err := v.find(list)
	return append(all, more.elements()...), err
}

// with returns the edit that replaces v with a JSON text.
func (v value) with(raw string) edit { return edit{Start: v.Start, End: v.End, With: []byte(raw)} }

// set returns the edit that sets the member name of object v to the JSON text raw. If exists is
// true, existing is the current member.
func (v value) set(name string, existing value, exists bool, raw string) edit {
	if exists {
		return existing.with(raw)
	}
	return v.append(quote(name) + ":" + raw)
}

// append returns the edit that adds members, as JSON text, to the end of object v.
func (v value) append(members string) edit {
	at, comma := v.Start+1, ""
	for _, m := range v.Members() {
		at, comma = m.End, ","
	}
	return edit{Start: at, End: at, With: []byte(comma + members)}
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // never happens for a string
	}
	return string(b)
}
