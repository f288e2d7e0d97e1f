// SPDX-License-Identifier: Apache-2.0

package jsonspan

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"testing"
)

// tree converts a value through Members and Elements. The last member of a name counts, as in
// encoding/json.
func tree(v Value) any {
	switch {
	case v.Is('{'):
		m := map[string]any{}
		for name, value := range v.Members() {
			key, _ := name.Str()
			m[key] = tree(value)
		}
		return m
	case v.Is('['):
		list := []any{}
		for e := range v.Elements() {
			list = append(list, tree(e))
		}
		return list
	case v.Is('"'):
		s, _ := v.Str()
		return s
	}
	var scalar any
	decoder := json.NewDecoder(bytes.NewReader(v.Raw()))
	decoder.UseNumber()
	if decoder.Decode(&scalar) != nil || decoder.More() {
		return v.Raw()
	}
	return scalar
}

// FuzzParse compares the result with that of encoding/json.
func FuzzParse(f *testing.F) {
	for _, s := range texts {
		f.Add([]byte(s))
	}
	f.Add([]byte(` {"a" : [1, {"b": "\\"\u00e9"}, "\xff"], "a": null, "": {}, "c": [[], [ ] ]} `))
	f.Fuzz(func(t *testing.T, text []byte) {
		v, ok := Parse(text)
		if !ok {
			return
		}
		var want any
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		if err := decoder.Decode(&want); err != nil {
			t.Fatal(err)
		}
		if got := tree(v); !reflect.DeepEqual(got, want) {
			t.Fatalf("%.200q\n got %#v\nwant %#v", text, got, want)
		}
	})
}

func TestGet(t *testing.T) {
	v, ok := Parse([]byte(` {"one": 1, "tWo": [2], "\u0073\u0069x": "6", "three": 3, "THREE": null} `))
	if !ok {
		t.Fatal("not parsed")
	}
	for name, want := range map[string]string{"one": "1", "ONE": "1", "two": "[2]", "six": `"6"`, "\u017fix": `"6"`, "four": ""} {
		got, err := v.Get(name)
		if err != nil || string(got.Raw()) != want || got.None() != (want == "") {
			t.Errorf("%s: %s, %v, want %s", name, got.Raw(), err, want)
		}
	}
	if _, err := v.Get("three"); err == nil {
		t.Error("two members of one name")
	}
	if got, err := (Value{}).Get("one"); err != nil || !got.None() {
		t.Errorf("of no value: %v, %v", got, err)
	}
}

func TestApply(t *testing.T) {
	text := []byte(`{"a": 1, "b": 2}`)
	edits := []Edit{{14, 15, []byte("20")}, {6, 7, nil}}
	if got := Apply(text, edits); string(got) != `{"a": , "b": 20}` {
		t.Errorf("%s", got)
	}
	if !slices.Equal(text, []byte(`{"a": 1, "b": 2}`)) || edits[0].Start != 14 {
		t.Error("the text or the edits were changed")
	}
}
