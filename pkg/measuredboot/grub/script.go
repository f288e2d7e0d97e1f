// SPDX-License-Identifier: Apache-2.0

// Package grub computes what GRUB measures into PCR 8 when it executes its configuration: each command
// after the expansion of variables, and the command line of the kernel (GRUB Manual, "Measured Boot").
//
// It does not execute the configuration. It returns every command that the configuration contains, with
// each value that the configuration gives to a variable. So the result is a superset of what one boot
// measures.
package grub

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Limits on a configuration. Those of distributions have a few hundred commands.
const (
	maxCommands     = 4096
	maxAlternatives = 64 // of one command, by the values of its variables
	maxForm         = 64 << 10
	maxDepth        = 8 // of blocks
)

// Script is the text of a configuration. Name is used in errors.
type Script struct{ Name, Text string }

// Boot is what GRUB can measure. Words are separated by one space each, and "*" stands for a value that
// the scripts do not contain, such as the name of a device.
type Boot struct {
	Commands []string // sorted, without duplicates
	Entries  []Entry  // in the order of the scripts
}

// Entry is a kernel that GRUB can start.
type Entry struct {
	Kernel       string   // path, possibly with a device
	CommandLines []string // with the kernel's path as the first word; sorted
	Initrds      []string // paths, in order
}

// Read returns what GRUB can measure of scripts.
func Read(scripts ...Script) (*Boot, error) {
	var all [][]word
	values := map[string][]string{}
	for _, s := range scripts {
		commands, err := parse(s.Text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		all = append(all, commands...)
	}
	for _, c := range all {
		name, value, ok := assignment(c)
		if ok && !slices.Contains(ownVariables, name) && !slices.Contains(values[name], value) {
			values[name] = append(values[name], value)
		}
	}
	out := &Boot{}
	for _, c := range all {
		forms, err := forms(c, values)
		if err != nil {
			return nil, err
		}
		out.Commands = append(out.Commands, forms...)
		if err := out.entry(forms); err != nil {
			return nil, err
		}
	}
	slices.Sort(out.Commands)
	out.Commands = slices.DeleteFunc(slices.Compact(out.Commands), func(c string) bool { return c == "" })
	return out, nil
}

// forms returns the texts that a command can have.
func forms(c []word, values map[string][]string) ([]string, error) {
	out := []string{""}
	for i, w := range c {
		words, err := w.expand(values)
		if err != nil {
			return nil, fmt.Errorf("the command %s: %w", c[0], err)
		}
		if isLinux(c[0].String()) {
			if err := w.plain(words); err != nil {
				return nil, fmt.Errorf("the command %s: %w", c[0], err)
			}
		}
		if len(out)*len(words) > maxAlternatives || len(out[0])+len(words[0]) > maxForm {
			return nil, fmt.Errorf("the command %s has more than %d forms, or one of more than %d bytes", c[0],
				maxAlternatives, maxForm)
		}
		out = combine(out, words, i == 0 || w.quoted)
	}
	return out, nil
}

func isLinux(command string) bool {
	return command == "linux" || command == "linuxefi" || command == "linux16"
}

// entry adds the kernel or the initramfs that a command loads. All forms of one command are one entry.
func (b *Boot) entry(forms []string) error {
	for i, form := range forms {
		command, args, _ := strings.Cut(form, " ")
		switch command {
		case "linux", "linuxefi", "linux16":
			kernel, _, _ := strings.Cut(args, " ")
			if i == 0 {
				b.Entries = append(b.Entries, Entry{Kernel: kernel})
			}
			e := &b.Entries[len(b.Entries)-1]
			if e.Kernel != kernel {
				return fmt.Errorf("the command %q can load several kernels", form)
			}
			e.CommandLines = append(e.CommandLines, args)
		case "initrd", "initrdefi", "initrd16":
			if len(b.Entries) == 0 {
				return fmt.Errorf("the command %q precedes every kernel", form)
			}
			e := &b.Entries[len(b.Entries)-1]
			for path := range strings.FieldsSeq(args) {
				if !slices.Contains(e.Initrds, path) {
					e.Initrds = append(e.Initrds, path)
				}
			}
		}
	}
	return nil
}

// ownVariables have values from GRUB itself (GRUB Manual, "Special environment variables").
var ownVariables = []string{
	"?", "chosen", "cmdpath", "default", "fallback", "grub_cpu", "grub_platform", "next_entry", "prefix", "root",
	"saved_entry",
}

// combine appends each form of a word to each form of a command. A word without quotes vanishes if it is
// empty.
func combine(commands, words []string, keep bool) []string {
	var out []string
	for _, c := range commands {
		for _, w := range words {
			switch {
			case c == "" || w == "" && !keep:
				out = append(out, c+w)
			default:
				out = append(out, c+" "+w)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// word is a word of a command: literal text and variables.
type word struct {
	parts  []part
	quoted bool // some part is in quotes, so the word exists even if it is empty
}

type part struct {
	text     string
	variable bool
}

// String returns the word as in the script.
func (w word) String() string {
	var b strings.Builder
	for _, p := range w.parts {
		if p.variable {
			b.WriteString("$")
		}
		b.WriteString(p.text)
	}
	return b.String()
}

// plain reports an error for a word of a kernel command line that this package cannot represent: "*" is a
// wildcard in a pattern, and GRUB quotes a word with a space.
func (w word) plain(forms []string) error {
	for _, p := range w.parts {
		if !p.variable && strings.Contains(p.text, "*") {
			return fmt.Errorf("the word %q has an asterisk, which is not supported", w)
		}
	}
	if w.quoted && slices.ContainsFunc(forms, func(f string) bool { return strings.ContainsAny(f, " \"'\\") }) {
		return fmt.Errorf("the word %q has a space or a quote inside of quotes, which is not supported", w)
	}
	return nil
}

// expand returns the forms of a word. The value of a variable that the scripts do not assign is "*".
func (w word) expand(values map[string][]string) ([]string, error) {
	out := []string{""}
	for _, p := range w.parts {
		forms := []string{p.text}
		if p.variable {
			if forms = values[p.text]; len(forms) == 0 {
				forms = []string{"*"}
			}
		}
		if len(out)*len(forms) > maxAlternatives || len(out[0])+len(forms[0]) > maxForm {
			return nil, fmt.Errorf("the word %q has more than %d forms, or one of more than %d bytes", w, maxAlternatives,
				maxForm)
		}
		var next []string
		for _, o := range out {
			for _, f := range forms {
				next = append(next, o+f)
			}
		}
		out = next
	}
	return out, nil
}

// assignment returns the variable that a command sets, and its value. A variable inside the value
// becomes "*".
func assignment(c []word) (name, value string, ok bool) {
	if c[0].String() == "set" && len(c) > 1 {
		c = c[1:] // GRUB accepts NAME=VALUE without it, too
	}
	if name, _, ok = strings.Cut(c[0].String(), "="); !ok {
		return "", "", false
	}
	text, err := c[0].expand(nil)
	if err != nil {
		return "", "", false
	}
	_, value, ok = strings.Cut(text[0], "=")
	return name, value, ok
}

// keywords start or end a control structure, and are not measured.
var keywords = []string{"if", "then", "elif", "else", "fi", "do", "done", "while", "until", "}", "{"}

// parse splits a script into its simple commands. The body of a menu entry or of a function is an
// argument of its command, and its commands are returned, too.
func parse(text string) ([][]word, error) {
	p := &parser{rest: text}
	if err := p.commands(); err != nil {
		return nil, err
	}
	return p.out, nil
}

type parser struct {
	rest  string
	depth int
	out   [][]word
}

var errUnterminated = errors.New("a quote or a block does not end")

func (p *parser) commands() error {
	var current []word
	end := func() error {
		if len(current) > 0 {
			if len(p.out) == maxCommands {
				return fmt.Errorf("more than %d commands", maxCommands)
			}
			p.out = append(p.out, current)
		}
		current = nil
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
				p.rest = "\n" + after
			}
		case c == '\n' || c == ';':
			p.rest = p.rest[1:]
			if err := end(); err != nil {
				return err
			}
		case c == '{' && len(current) > 0:
			body, err := p.block()
			if err != nil {
				return err
			}
			if err := p.body(&current, body); err != nil {
				return err
			}
		default:
			w, err := p.word()
			if err != nil {
				return err
			}
			if len(current) > 0 || w.quoted || !slices.Contains(keywords, w.String()) {
				current = append(current, w)
			}
		}
	}
	return end()
}

// body adds a block to its command. GRUB measures a menu entry with its body, and a function only when
// it is called.
func (p *parser) body(current *[]word, body string) error {
	if command := (*current)[0].String(); command == "function" {
		*current = nil
	} else {
		if command == "menuentry" && len(*current) > 1 {
			// GRUB puts this command before the body.
			p.out = append(p.out, []word{{parts: []part{{text: "setparams"}}}, (*current)[1]})
		}
		*current = append(*current, word{parts: []part{{text: "{" + body + "}"}}, quoted: true})
	}
	if p.depth == maxDepth {
		return fmt.Errorf("more than %d blocks inside each other", maxDepth)
	}
	inner := &parser{rest: body, depth: p.depth + 1}
	err := inner.commands()
	p.out = append(p.out, inner.out...)
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
