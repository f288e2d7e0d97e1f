// Package console writes what a person reads on the machine's console while it
// boots: one line for each step, "error:" for what stopped it and "hint:" for
// what to do about it. Nothing secret and nothing unbounded is printed.
package console

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
)

// maxLine bounds a line: a server's words can be among them.
const maxLine = 300

// Console is where the lines go. The zero value discards them. It may be used
// from several goroutines.
type Console struct {
	Out, Err io.Writer

	mu   sync.Mutex
	last string
}

// Step prints one step. A step that is the same as the one before is not
// printed again, so that waiting does not fill the console.
func (c *Console) Step(format string, a ...any) {
	c.step(fmt.Sprintf(format, a...), false)
}

// Again prints one step even if it is the same as the one before: for those who
// count the minutes themselves.
func (c *Console) Again(format string, a ...any) {
	c.step(fmt.Sprintf(format, a...), true)
}

func (c *Console) step(text string, again bool) {
	line := clean(text)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Out == nil || line == c.last && !again {
		return
	}
	c.last = line
	_, _ = fmt.Fprintf(c.Out, "mcs-attest: %s\n", line)
}

// Hint prints what to do about the step before; nothing if it is empty.
func (c *Console) Hint(hint string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hint(hint)
}

func (c *Console) hint(hint string) {
	if c.Err != nil && hint != "" {
		_, _ = fmt.Fprintf(c.Err, "hint: %s\n", clean(hint))
	}
}

// Error prints what went wrong and, if there is one, a hint.
func (c *Console) Error(err error, hint string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Err == nil {
		return
	}
	_, _ = fmt.Fprintf(c.Err, "error: %s\n", clean(err.Error()))
	c.hint(hint)
}

// clean keeps a line to one line of printable text.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		// Also the controls above ASCII: some terminals take U+009B for ESC [, and
		// others change the order of the text.
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxLine {
		s = strings.ToValidUTF8(s[:maxLine], "") + "..."
	}
	return s
}
