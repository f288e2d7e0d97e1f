// SPDX-License-Identifier: Apache-2.0

package grub

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// command is a simple command of a script.
type command struct {
	words       []word
	at          string // the script and its line
	conditional bool   // it is inside of a condition, a loop, a function or a menu entry
}

// keywords start or end a control structure, and are not measured.
var keywords = []string{"if", "then", "elif", "else", "fi", "do", "done", "while", "until", "}", "{"}

// parse splits a script into its simple commands. The body of a menu entry or of a function is an
// argument of its command, and its commands are returned, too.
func parse(s Script) ([]command, error) {
	p := &parser{name: s.Name, rest: s.Text, line: 1}
	if s.Format == LoaderEntry {
		text, err := entryCommands(s.Text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		p.rest, p.line, p.depth = text, 0, 1
	}
	if strings.Contains(p.rest, unknown) {
		return nil, fmt.Errorf("%s: not a text", s.Name)
	}
	p.size = len(p.rest)
	if err := p.commands(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.at(), err)
	}
	return p.out, nil
}

type parser struct {
	name       string
	rest       string
	size, read int // of the text; bytes up to the line
	line       int // 0 for a text that is not in a file
	depth      int // of blocks
	conditions int // of if, while, until and for, which are open
	out        []command
}

// at returns the script, and the line of the next word.
func (p *parser) at() string {
	if p.line == 0 {
		return p.name
	}
	return fmt.Sprintf("%s, line %d", p.name, p.line)
}

// advance counts the lines up to the next word.
func (p *parser) advance(text string) {
	if done := p.size - len(p.rest); p.line > 0 {
		p.line += strings.Count(text[p.read:done], "\n")
		p.read = done
	}
}

var errUnterminated = errors.New("a quote or a block does not end")

func (p *parser) commands() error {
	text := p.rest
	var current command
	end := func() error {
		if len(current.words) > 0 {
			if len(p.out) >= maxCommands {
				return fmt.Errorf("more than %d commands", maxCommands)
			}
			p.out = append(p.out, current)
		}
		current = command{}
		return nil
	}
	for p.rest != "" {
		switch c := p.rest[0]; {
		case c == ' ' || c == '\t' || c == '\r':
			p.rest = p.rest[1:]
		case strings.HasPrefix(p.rest, "\\\n"):
			p.rest = p.rest[2:]
		case c == '#':
			_, after, ok := strings.Cut(p.rest, "\n")
			p.rest = ""
			if ok {
				p.rest = text[len(text)-len(after)-1:]
			}
		case c == '\n' || c == ';':
			p.rest = p.rest[1:]
			if err := end(); err != nil {
				return err
			}
		case c == '{' && len(current.words) > 0:
			p.advance(text)
			body, err := p.block()
			if err != nil {
				return err
			}
			if err := p.body(&current, body); err != nil {
				return err
			}
		default:
			p.advance(text)
			w, err := p.word()
			if err != nil {
				return err
			}
			if len(current.words) == 0 {
				if !w.quoted && p.keyword(w.String()) {
					continue
				}
				current.at, current.conditional = p.at(), p.depth > 0 || p.conditions > 0
			}
			current.words = append(current.words, w)
		}
	}
	return end()
}

// keyword reports whether a word is a keyword. It counts the conditions and loops that are open.
func (p *parser) keyword(w string) bool {
	switch w {
	case "if", "while", "until", "for":
		p.conditions++
	case "fi", "done":
		p.conditions = max(0, p.conditions-1)
	}
	return slices.Contains(keywords, w)
}

// body adds a block to its command. GRUB measures a menu entry with its body, and a function only when
// it is called.
func (p *parser) body(current *command, body string) error {
	inner := &parser{name: p.name, rest: body, size: len(body), line: p.line, depth: p.depth + 1}
	if p.depth >= maxDepth {
		return fmt.Errorf("more than %d blocks inside each other", maxDepth)
	}
	if command := current.words[0].String(); command == "function" {
		current.words = nil
	} else {
		if (command == "menuentry" || command == "submenu") && len(current.words) > 1 {
			// GRUB puts this command before the body.
			set := *current
			set.words = []word{{parts: []part{{text: "setparams"}}}, current.words[1]}
			p.out = append(p.out, set)
		}
		current.words = append(current.words, word{parts: []part{{text: "{" + body + "}"}}, quoted: true})
	}
	err := inner.commands()
	p.out = append(p.out, inner.out...)
	if err != nil {
		p.line = inner.line
	}
	if err == nil && len(p.out) > maxCommands {
		err = fmt.Errorf("more than %d commands", maxCommands)
	}
	return err
}

// block returns the text up to the closing brace.
func (p *parser) block() (string, error) {
	depth, quote := 0, byte(0)
	for i := 0; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '\\' && quote != '\'':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '$' && strings.HasPrefix(p.rest[i:], "${"):
			end := strings.IndexByte(p.rest[i:], '}')
			if end < 0 {
				return "", errUnterminated
			}
			i += end
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				body := p.rest[1:i]
				p.rest = p.rest[i+1:]
				return body, nil
			}
		}
	}
	return "", errUnterminated
}

// word reads one word.
func (p *parser) word() (word, error) {
	var w word
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			w.parts = append(w.parts, part{text: literal.String()})
			literal.Reset()
		}
	}
	inQuotes := false
	for p.rest != "" {
		c := p.rest[0]
		switch {
		case c == '\\' && len(p.rest) > 1:
			if p.rest[1] != '\n' {
				literal.WriteByte(p.rest[1])
			}
			p.rest = p.rest[2:]
		case c == '\'' && !inQuotes:
			text, after, ok := strings.Cut(p.rest[1:], "'")
			if !ok {
				return w, errUnterminated
			}
			literal.WriteString(text)
			w.quoted, p.rest = true, after
		case c == '"':
			inQuotes, w.quoted, p.rest = !inQuotes, true, p.rest[1:]
		case c == '$':
			name, after, ok := variable(p.rest[1:])
			if !ok {
				literal.WriteByte(c)
				p.rest = p.rest[1:]
				continue
			}
			flush()
			w.parts, p.rest = append(w.parts, part{name, true}), after
		case !inQuotes && strings.IndexByte(" \t\r\n;#{", c) >= 0 && !(c == '#' && literal.Len() > 0):
			flush()
			if len(w.parts) == 0 && !w.quoted { // a brace that starts no block
				w.parts, p.rest = []part{{text: p.rest[:1]}}, p.rest[1:]
			}
			return w, nil
		default:
			literal.WriteByte(c)
			p.rest = p.rest[1:]
		}
	}
	if inQuotes {
		return w, errUnterminated
	}
	flush()
	return w, nil
}

// variable reads the name after a dollar sign.
func variable(s string) (name, after string, ok bool) {
	if strings.HasPrefix(s, "{") {
		name, after, ok = strings.Cut(s[1:], "}")
		return name, after, ok && name != ""
	}
	n := 0
	for n < len(s) && (s[n] == '_' || s[n] >= '0' && s[n] <= '9' || s[n]|0x20 >= 'a' && s[n]|0x20 <= 'z') {
		n++
	}
	if n == 0 && s != "" && strings.IndexByte("?*@#", s[0]) >= 0 {
		n = 1
	}
	return s[:n], s[n:], n > 0
}
