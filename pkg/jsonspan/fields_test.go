// SPDX-License-Identifier: Apache-2.0

package jsonspan_test

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
)

func TestReadObject(t *testing.T) {
	for raw, want := range map[string]string{
		`{"text":"a","number":-7,"flag":true,"object":{"inner":"b"},"other":[{"text":1},null]}`:         "",
		`{"text":"a","number":1,"flag":false,"object":{"inner":"b"},"extra":"c"}`:                       "",
		`{"text":"a","number":1,"flag":true,"object":{}}`:                                               `no field "inner"`,
		`{"text":"a","number":1,"flag":true}`:                                                           `no field "object"`,
		`{"text":1,"number":1,"flag":true,"object":{"inner":"b"}}`:                                      `"text" is of another type`,
		`{"text":true,"number":1,"flag":true,"object":{"inner":"b"}}`:                                   `"text" is of another type`,
		`{"text":{},"number":1,"flag":true,"object":{"inner":"b"}}`:                                     `"text" is of another type`,
		`{"text":null,"number":1,"flag":true,"object":{"inner":"b"}}`:                                   `"text" is of another type`,
		`{"text":"a","number":"1","flag":true,"object":{"inner":"b"}}`:                                  `"number" is of another type`,
		`{"text":"a","number":1.5,"flag":true,"object":{"inner":"b"}}`:                                  `"number" is of another type`,
		`{"text":"a","number":null,"flag":true,"object":{"inner":"b"}}`:                                 `"number" is of another type`,
		`{"text":"a","number":1,"flag":"true","object":{"inner":"b"}}`:                                  `"flag" is of another type`,
		`{"text":"a","number":1,"flag":null,"object":{"inner":"b"}}`:                                    `"flag" is of another type`,
		`{"text":"a","number":1,"flag":true,"object":["inner"]}`:                                        `"object" is of another type`,
		`{"text":"a","number":1,"flag":true,"object":{"inner":"b"},"Extra":"c"}`:                        `"Extra", which is written "extra"`,
		`{"text":"a","number":1,"flag":true,"object":{"inner":"b"},"never":"c"}`:                        `"never" is not allowed`,
		`{"text":"a","number":1,"flag":true,"object":{"inner":"b"},"NEVER":null}`:                       `"NEVER" is not allowed`,
		"{\"text\":\"a\",\"number\":1,\"flag\":true,\"object\":{\"inner\":\"b\"},\"\u212a\":1,\"k\":2}": "twice", // the Kelvin sign
		`{"text":"a","number":1,"flag":true,"object":{"inner":"b"},"object":{"inner":"c"}}`:             `"object" twice`,
	} {
		var text, extra, inner string
		var number int64
		flag := raw != "" && !strings.Contains(raw, "true") // the opposite of what is read
		err := jsonspan.ReadObject([]byte(raw), []jsonspan.Field{
			{Name: "text", Text: &text}, {Name: "number", Number: &number}, {Name: "flag", Flag: &flag},
			{Name: "object", Object: []jsonspan.Field{{Name: "inner", Text: &inner}}},
			{Name: "extra", Text: &extra, Optional: true}, {Name: "never", Forbidden: true},
		})
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", raw, err, want)
			}
			continue
		}
		if err != nil || text != "a" || number != 1 && number != -7 || flag != strings.Contains(raw, "true") ||
			inner != "b" || (extra == "c") != strings.Contains(raw, "extra") {
			t.Errorf("%s: %v: %q, %d, %v, %q, %q", raw, err, text, number, flag, inner, extra)
		}
	}
}

func TestReadObject_CountsWantedObjects(t *testing.T) {
	inner := []jsonspan.Field{}
	for range 8 { // nine levels
		inner = []jsonspan.Field{{Name: "a", Object: inner}}
	}
	deep := strings.Repeat(`{"a":`, 8) + "{}" + strings.Repeat("}", 8)
	if err := jsonspan.ReadObject([]byte(deep), inner); err == nil || !strings.Contains(err.Error(), "too deep") {
		t.Errorf("nine levels: %v", err)
	}
	if err := jsonspan.ReadObject([]byte(deep[len(`{"a":`):len(deep)-1]), inner[0].Object); err != nil {
		t.Errorf("eight levels: %v", err)
	}
}

func TestReadObject_Limits(t *testing.T) {
	object := func(depth int) string { return strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth) }
	array := func(depth int) string { return `{"a":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}` }
	fields := func(n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(`"` + string(rune(0x4e00+i)) + `":1,`)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	elements := func(n int) string { return strings.TrimSuffix(strings.Repeat("1,", n), ",") }
	for raw, want := range map[string]string{
		object(8): "", object(9): "too deep", array(7): "", array(8): "too deep",
		`{"a":[` + object(6) + `]}`: "", `{"a":[` + object(7) + `]}`: "too deep",
		`{` + fields(256) + `}`: "", `{` + fields(257) + `}`: "too many", `{"a":{` + fields(256) + `}}`: "too many",
		`{"a":[` + elements(255) + `]}`: "", `{"a":[` + elements(256) + `]}`: "too many",
		`{"a":[{"b":1,"B":2}]}`: "twice", `{"":1}`: "", `[]`: "not a JSON object", `{`: "not JSON", "{\"a\":\"\xff\"}": "not JSON",
	} {
		if err := jsonspan.ReadObject([]byte(raw), nil); (want == "") != (err == nil) ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", raw, err, want)
		}
	}
}
