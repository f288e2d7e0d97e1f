// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/console"
)

func TestConsole(t *testing.T) {
	var out, err bytes.Buffer
	c := &console.Console{Out: &out, Err: &err}
	c.Step("waiting for %s", "it")
	c.Step("waiting for it")
	c.Step("done")
	c.Step("waiting for it")
	if got, want := out.String(),
		"mcs-attest: waiting for it\nmcs-attest: done\nmcs-attest: waiting for it\n"; got != want {
		t.Errorf("have %q", got)
	}
	out.Reset()
	c.Again("waiting for it")
	c.Again("waiting for it")
	if got, want := out.String(), "mcs-attest: waiting for it\nmcs-attest: waiting for it\n"; got != want {
		t.Errorf("have %q", got)
	}
	c.Error(errors.New("it broke"), "fix it")
	c.Error(errors.New("it broke"), "")
	c.Hint("be patient")
	c.Hint("")
	if got, want := err.String(), "error: it broke\nhint: fix it\nerror: it broke\nhint: be patient\n"; got != want {
		t.Errorf("have %q", got)
	}
}

// A server's text cannot move the cursor, add a line or fill the console.
func TestUntrustedText(t *testing.T) {
	var out bytes.Buffer
	c := &console.Console{Out: &out}
	c.Step("%s", "a\x1b[2Jb\r\nc\x00\xff"+strings.Repeat("x", 10000))
	line := out.String()
	if strings.Count(line, "\n") != 1 || bytes.ContainsAny(out.Bytes(), "\x1b\r\x00") ||
		bytes.IndexByte(out.Bytes(), 0xff) >= 0 || len(line) > 400 {
		t.Errorf("printed %q", line)
	}
}

// Some terminals interpret a character above ASCII as the start of a command, and others change the
// direction of the text.
func TestUntrustedTextHasNoControlCharacterOfAnyRange(t *testing.T) {
	for _, r := range []rune{0x1b, 0x7f, 0x80, 0x85, 0x90, 0x9b, 0x9d, 0x9f, 0xad, 0x200b, 0x2028, 0x2029, 0x202e, 0x2066,
		0xfeff, 0xe0001} {
		var out, errs bytes.Buffer
		c := &console.Console{Out: &out, Err: &errs}
		c.Step("a%c2Jb", r)
		c.Again("a%c2Jb", r)
		c.Error(fmt.Errorf("a%c2Jb", r), fmt.Sprintf("a%c2Jb", r))
		if printed := out.String() + errs.String(); strings.ContainsRune(printed, r) || strings.Count(printed, "a 2Jb") != 4 {
			t.Errorf("%U: printed %q", r, printed)
		}
	}
	var out bytes.Buffer
	(&console.Console{Out: &out}).Step("größe 大きさ")
	if !strings.Contains(out.String(), "größe 大きさ") {
		t.Errorf("printed %q", out.String())
	}
}

func TestZeroValuePrintsNothing(t *testing.T) {
	var c console.Console
	c.Step("x")
	c.Again("x")
	c.Error(errors.New("x"), "y")
	c.Hint("y")
}
