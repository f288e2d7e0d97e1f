// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestMessages_HaveTheLinesOfTheSource(t *testing.T) {
	src := `package p

import "a path of words"

type t struct {
	f int ` + "`json:\"f\" yaml:\"f\" also:\"f\"`" + `
}

func f(x string) {
	g("two words", 'x', 3)
	g("the first part " +
		"and the second")
	g("before a value "+x+" and after it")
	g("a line\nand\tanother", ` + "`raw text\nof two lines`" + `)
}
`
	got, err := messages("p.go", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	want := map[int]string{
		11: "the first part and the second . ",
		13: "before a value  .  and after it . ",
		14: "a line and\tanother . raw text . ",
		15: "of two lines . ",
	}
	for i, line := range strings.Split(got, "\n") {
		if line != want[i+1] {
			t.Errorf("line %d is %q, want %q", i+1, line, want[i+1])
		}
	}
}

func TestMessages_AreAtLeastThreeWords(t *testing.T) {
	got, err := messages("p.go", []byte("package p\n\nconst name = \"two words\"\n"))
	if err != nil || got != "" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestMessages_RejectsInvalidCode(t *testing.T) {
	if _, err := messages("p.go", []byte("package")); err == nil {
		t.Error("accepted")
	}
}
