// SPDX-License-Identifier: Apache-2.0

package grub

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// unknown is the value of a variable that the scripts do not contain. No script contains this character.
const unknown = "\x00"

// ownVariables have values from GRUB itself (GRUB Manual, "Special environment variables").
var ownVariables = []string{
	"?", "chosen", "cmdpath", "config_directory", "config_file", "default", "fallback", "grub_cpu", "grub_platform",
	"next_entry", "prefix", "root", "saved_entry",
}

// setters are the commands whose option -s names a variable.
var setters = []string{"probe", "regexp", "search"}

// variables are the values that scripts can give to each variable.
type variables struct {
	named map[string]*values
	size  int // of all known values
}

type values struct {
	words  []word   // as assigned
	fixed  []string // from an environment block, or [unknown]
	always bool     // some assignment is not conditional
	known  []string // all values, after the first use
	busy   bool     // a value of the variable contains the variable
}

func (v *variables) add(name string) *values {
	if v.named[name] == nil {
		v.named[name] = &values{}
	}
	return v.named[name]
}

// assign adds what a command assigns.
func (v *variables) assign(c command) {
	words := c.words
	if words[0].String() == "!" && len(words) > 1 {
		words = words[1:]
	}
	name := words[0].String()
	switch name {
	case "set":
		if len(words) < 2 {
			return
		}
		words = words[1:] // GRUB accepts NAME=VALUE without it, too
	case "for":
		if len(words) > 2 {
			x := v.add(words[1].String())
			x.words = append(x.words, words[3:]...)
		}
		return
	case "unset":
		for _, w := range words[1:] {
			x := v.add(w.String())
			x.fixed = append(x.fixed, "")
		}
		return
	case "read":
		if len(words) > 1 {
			v.set(words[1].String(), unknown)
		}
		return
	}
	if len(words) > 2 && strings.HasPrefix(name, "search.") {
		v.set(words[2].String(), unknown)
	}
	for i, w := range words {
		if name, ok := strings.CutPrefix(w.String(), "--set="); ok {
			v.set(name[strings.LastIndexByte(name, ':')+1:], unknown)
		} else if w.String() == "--set" || w.String() == "-s" && slices.Contains(setters, name) {
			if i+1 < len(words) {
				name := words[i+1].String()
				v.set(name[strings.LastIndexByte(name, ':')+1:], unknown)
			}
		}
	}
	if name, value, ok := words[0].cut(); ok {
		x := v.add(name)
		x.words = append(x.words, value)
		x.always = x.always || !c.conditional
	}
}

func (v *variables) set(name, value string) {
	x := v.add(name)
	x.fixed = append(x.fixed, value)
}

// ifSet returns the values of a variable that a script sets, and nil for another one.
func (v *variables) ifSet(name string) ([]string, error) {
	if v.named[name] == nil {
		return nil, nil
	}
	return v.of(name)
}

// of returns the values of a variable. One that only a condition sets can also be empty.
func (v *variables) of(name string) ([]string, error) {
	x := v.named[name]
	if x == nil || x.busy || slices.Contains(ownVariables, name) {
		return []string{unknown}, nil
	}
	if x.known != nil {
		return x.known, nil
	}
	x.busy = true
	defer func() { x.busy = false }()
	out := slices.Clone(x.fixed)
	for _, w := range x.words {
		forms, err := w.expand(v)
		if err != nil {
			return nil, fmt.Errorf("the variable %s: %w", name, err)
		}
		if out = append(out, forms...); len(out) > maxAlternatives {
			return nil, fmt.Errorf("the variable %s has more than %d values", name, maxAlternatives)
		}
	}
	if !x.always && !slices.Contains(out, unknown) { // which is possibly empty, too
		out = append(out, "")
	}
	slices.Sort(out)
	x.known = slices.Compact(out)
	for _, value := range x.known {
		if v.size += len(value); v.size > maxText {
			return nil, fmt.Errorf("the variables have more than %d bytes", maxText)
		}
	}
	return x.known, nil
}

// environment adds the variables of an environment block (GRUB, grub-core/lib/envblk.c).
func (v *variables) environment(text string) error {
	rest, ok := strings.CutPrefix(text, "# GRUB Environment Block\n")
	if !ok || strings.Contains(rest, unknown) {
		return errors.New("not an environment block of GRUB")
	}
	for rest != "" {
		if rest[0] == '#' {
			_, rest, _ = strings.Cut(rest, "\n")
			continue
		}
		name, after, ok := strings.Cut(rest, "=")
		if !ok || strings.Contains(name, "\n") {
			return fmt.Errorf("%q is not NAME=VALUE", firstLine(rest))
		}
		value, after, ok := strings.Cut(after, "\n")
		if !ok || strings.Contains(value, `\`) {
			return fmt.Errorf("the variable %s does not end, or has an escape, which is not supported", name)
		}
		if len(v.named) >= maxCommands {
			return fmt.Errorf("more than %d variables", maxCommands)
		}
		v.set(name, value)
		rest = after
	}
	return nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line[:min(len(line), 40)]
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

// cut returns the variable and the value of NAME=VALUE.
func (w word) cut() (name string, value word, ok bool) {
	if len(w.parts) == 0 || w.parts[0].variable {
		return "", word{}, false
	}
	name, text, ok := strings.Cut(w.parts[0].text, "=")
	return name, word{parts: append([]part{{text: text}}, w.parts[1:]...), quoted: true}, ok
}

// plain reports an error for a word of a kernel command line that a pattern of words cannot represent.
// "*" is a wildcard in a pattern. GRUB changes a word with a space, a quote or a backslash.
func (w word) plain(forms []string) error {
	const hint = "Write the value where the variable is"
	for _, p := range w.parts {
		if !p.variable && strings.ContainsAny(p.text, "*") {
			return fmt.Errorf("the word %q has an asterisk, which is not supported", w)
		}
		if p.variable && slices.Contains(forms, unknown) {
			return fmt.Errorf("no file of this image sets the variable %s, so it could be any parameter. %s", p.text, hint)
		}
	}
	for _, f := range forms {
		if strings.ContainsAny(f, "\"'\\\t\n$;|&<>{}#") || w.spaced() && strings.Contains(f, " ") {
			return fmt.Errorf("the word %q has a space, a quote or a special character, which is not supported", w)
		}
		if strings.Contains(f, "*") {
			return fmt.Errorf("the word %q has a variable with an asterisk, which is not supported", w)
		}
	}
	return nil
}

// spaced reports whether a space in the word does not separate words.
func (w word) spaced() bool {
	return w.quoted || slices.ContainsFunc(w.parts, func(p part) bool {
		return !p.variable && strings.Contains(p.text, " ")
	})
}

// expand returns the forms of a word.
func (w word) expand(vars *variables) ([]string, error) {
	out := []string{""}
	for _, p := range w.parts {
		forms := []string{p.text}
		if p.variable {
			var err error
			if forms, err = vars.of(p.text); err != nil {
				return nil, err
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
	if !w.spaced() { // the spaces in the value of a variable separate words
		for i, form := range out {
			out[i] = strings.Join(strings.Fields(form), " ")
		}
	}
	return out, nil
}
