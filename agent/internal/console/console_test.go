package console_test

import (
	"bytes"
	"errors"
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
	if got, want := out.String(), "mcs-attest: waiting for it\nmcs-attest: done\nmcs-attest: waiting for it\n"; got != want {
		t.Errorf("have %q", got)
	}
	out.Reset()
	c.Again("waiting for it")
	c.Again("waiting for it")
	if got, want := out.String(), "mcs-attest: waiting for it\nmcs-attest: waiting for it\n"; got != want {
		t.Errorf("have %q", got)
	}
	c.Error(errors.New("it broke"), "mend it")
	c.Error(errors.New("it broke"), "")
	c.Hint("be patient")
	c.Hint("")
	if got, want := err.String(), "error: it broke\nhint: mend it\nerror: it broke\nhint: be patient\n"; got != want {
		t.Errorf("have %q", got)
	}
}

// A server's words cannot move the cursor, add a line or fill the console.
func TestUntrustedText(t *testing.T) {
	var out bytes.Buffer
	c := &console.Console{Out: &out}
	c.Step("%s", "a\x1b[2Jb\r\nc\x00\xff"+strings.Repeat("x", 10000))
	line := out.String()
	if strings.Count(line, "\n") != 1 || bytes.ContainsAny(out.Bytes(), "\x1b\r\x00") || bytes.IndexByte(out.Bytes(), 0xff) >= 0 || len(line) > 400 {
		t.Errorf("printed %q", line)
	}
}

func TestZeroValuePrintsNothing(t *testing.T) {
	var c console.Console
	c.Step("x")
	c.Again("x")
	c.Error(errors.New("x"), "y")
	c.Hint("y")
}
