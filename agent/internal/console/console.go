// SPDX-License-Identifier: Apache-2.0

// Package console writes the lines that an administrator reads on the machine's console during the
// boot: one line for each step, "error:" for a failure, and "hint:" for what to do about it. Lines
// are bounded and contain no secrets.
package console

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
)

// maxLine limits a line in bytes, because it may contain text of a server.
const maxLine = 300

// Console writes the lines. The zero value discards them. It is safe for concurrent use.
type Console struct {
	Out, Err io.Writer

	mu   sync.Mutex
	last string
}

// Step prints one step, unless it equals the previous one. So a machine that waits does not fill
// the console.
func (c *Console) Step(format string, a ...any) {
	c.step(fmt.Sprintf(format, a...), false)
}

// Again prints one step even if it equals the previous one, for callers that limit repetition
// themselves.
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

// Hint prints what to do about the previous step, or nothing if hint is empty.
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

// Error prints an error and, unless it is empty, a hint.
func (c *Console) Error(err error, hint string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Err == nil {
		return
	}
	_, _ = fmt.Fprintf(c.Err, "error: %s\n", clean(err.Error()))
	c.hint(hint)
}

// clean returns s as one line of printable text.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		// This includes control characters above ASCII: some terminals interpret U+009B as ESC [,
		// and others change the direction of the text.
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
