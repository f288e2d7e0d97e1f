// SPDX-License-Identifier: Apache-2.0

package jsonspan

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

const maxDepth = 10_000

func valid(text []byte) bool {
	_, ok := Parse(text)
	return ok
}

var texts = []string{
	``, ` `, `null`, `true`, `false`, `nul`, `nullx`, `tru`, `truee`, `Null`, ` {} `, `{}{}`, `[]`, `[1]`, `[1,]`, `[,1]`,
	`[1 2]`, `{"a":1}`,
	`{"a":1,}`, `{"a"}`, `{"a":}`, `{"a" : [ ] , "b":{ }}`, `{a:1}`, `{1:1}`, `{"a":1 "b":2}`, `[`, `{`, `]`, `"`, `""`,
	`"a`, `"\"`, `"\\"`, `"\u12aF"`,
	`"\u12g0"`, `"\u12`, `"\x"`, `"\b\f\n\r\t\/\""`, "\"\x00\"", "\"\x1f\"", "\"\x7f\"", "\"\xff\"", "\"\u2028\"",
	"\ufeff{}", "\v1", "1\f",
	`0`, `-0`, `-`, `00`, `01`, `-01`, `1.`, `.1`, `1.5`, `1e5`, `1E+5`, `1e-5`, `1e`, `1e+`, `1.e5`, `+1`, `0x1`, `1_0`,
	`Infinity`, `NaN`, `0.0e0`, `[-1.0E-9]`, `1 2`,
	"[1]\x00", "\t[1,\n2]\r", `[[[[]]]]`, `[[}]`, `{"a":[}`, `"a" :`, `"a"1`, `1"a"`, `/**/1`, `[1]//`,
}

// FuzzValid compares with encoding/json.
func FuzzValid(f *testing.F) {
	for _, s := range texts {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, want := valid(text), json.Valid(text); got != want {
			t.Fatalf("%.200q: %v, encoding/json returns %v", text, got, want)
		}
	})
}

func TestValid_AgreesWithEncodingJSON(t *testing.T) {
	check := func(text string) {
		t.Helper()
		if got, want := valid([]byte(text)), json.Valid([]byte(text)); got != want {
			t.Errorf("%.200q: %v, encoding/json returns %v", text, got, want)
		}
	}
	for _, s := range texts {
		check(s)
		check(`{"a": ` + s + `, "b":[` + s + `]}`)
		for i := range s {
			check(s[:i])
		}
	}
	for _, n := range []int{maxDepth - 1, maxDepth, maxDepth + 1} {
		check(strings.Repeat("[", n) + strings.Repeat("]", n))
		check(strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n))
	}
	random := rand.New(rand.NewPCG(1, 2))
	const bytes = "{}[]\",:\\u0a1eE+-. \n\x01tfn"
	whole := []byte(`{"ab\u00e9": [1.5e-3, true, false, null, "c\n"], "d": {"e": [-0, {}, []]}}`)
	for range 200_000 {
		text := append([]byte(nil), whole...)
		for range 1 + random.IntN(2) {
			text[random.IntN(len(text))] = bytes[random.IntN(len(bytes))]
		}
		check(string(text))
	}
}
