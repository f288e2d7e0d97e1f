// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/eventlog"
)

// release requires that every component that was loaded is one of a single document of reference
// values, and that no component of that document is missing. It continues [image], which selects the
// documents by PCRs 11, 12 and 13.
func release(b *boot) *Finding {
	if len(b.images) == 0 {
		return onPCR(4, "the images of the reference values", "no reference values")
	}
	stub := b.stubEvents()
	var closest *Finding
	most := -1
	for _, r := range b.images {
		f, n := b.matches(r, stub)
		if f == nil {
			b.result.Image = r.Metadata.Name
			return nil
		}
		if n > most {
			closest, most = f, n
		}
	}
	return closest
}

// Names of the images of [FromBootFiles]. Shim can also start the kernel itself, with an initramfs that
// then extends all other events. So the image before a kernel must be GRUB, or the kernel again.
const (
	grubLoader = "grub"
	kernel     = "kernel"
)

// matches compares every event of PCRs 4, 8, 9 and 14 with one document. It also returns the number of
// events before the finding.
func (b *boot) matches(r *ReferenceValues, stub stubEvents) (*Finding, int) {
	if !r.ofUKI() && (len(r.CommandLines) == 0 || len(r.Loads) == 0) {
		return onPCR(8, "a command line and loads in "+r.Metadata.Name, "none, so the document is not for profile release"), 0
	}
	images := r.images()
	owners := &componentList{what: "a MOK list", known: r.MOK, once: true}
	script := &grubScript{refs: r, commands: newPatterns(r.Commands), commandLines: newPatterns(r.CommandLines)}
	left := b.count(9) - stub.n
	files := &fileList{componentList: componentList{what: "a file", known: r.Files}, loads: r.Loads, left: left}
	for i := range b.log.Events {
		e := &b.log.Events[i]
		if !e.Extends() {
			continue
		}
		var f *Finding
		switch {
		case e.PCR == 4 && !b.isMessage(e):
			before := images.last
			f = images.admit(b.bank, e, r)
			if f == nil && !r.ofUKI() && images.last == kernel && before != kernel && before != grubLoader {
				f = onEvent(e, fmt.Sprintf("%q of %s before its kernel", grubLoader, r.Metadata.Name), "the kernel")
			}
		case e.PCR == 8:
			f = script.admit(b.bank, e)
		case e.PCR == 9 && !r.ofUKI() && files.left > 0:
			f = files.admit(b.bank, e, r)
		case e.PCR == 14:
			f = owners.admit(b.bank, e, r)
		}
		if f != nil {
			return f, i
		}
	}
	all := len(b.log.Events)
	if f := cmp.Or(images.absent(4, r), owners.absent(14, r)); f != nil || r.ofUKI() {
		return f, all
	}
	if n := left; n < len(r.Loads) {
		return onPCR(9, fmt.Sprintf("the %d files that %s loads", len(r.Loads), r.Metadata.Name),
			fmt.Sprintf("%d files", n)), all
	}
	return cmp.Or(files.absent(9, r), script.end(), stub.compare(r)), all
}

// count returns the number of events of a PCR.
func (b *boot) count(pcr int) (n int) {
	for i := range b.log.Events {
		if e := &b.log.Events[i]; e.PCR == pcr && e.Extends() {
			n++
		}
	}
	return n
}

// images are what PCR 4 may contain. A UKI is started as one image: a kernel in it that the firmware
// starts has an initramfs of its own.
func (r *ReferenceValues) images() *componentList {
	l := &componentList{what: "an image", known: r.Applications}
	if r.ofUKI() {
		l.known = slices.DeleteFunc(slices.Clone(l.known), func(c Component) bool { return c.Name == linux })
	}
	return l
}

func (r *ReferenceValues) ofUKI() bool { return len(r.PCR11) > 0 }

// componentList is what one PCR may contain: components with the same name are alternatives, and one
// of each name is required.
type componentList struct {
	what  string // with its article
	known []Component
	once  bool // each name at most once
	seen  map[string]bool
	last  string // the name that was admitted last
}

func (l *componentList) admit(bank uint16, e *eventlog.Event, r *ReferenceValues) *Finding {
	for _, c := range l.known {
		if !c.is(bank, e.Digest) || l.once && l.seen[c.Name] {
			continue
		}
		if l.seen == nil {
			l.seen = map[string]bool{}
		}
		l.seen[c.Name], l.last = true, c.Name
		return nil
	}
	return onEvent(e, fmt.Sprintf("%s of %s", l.what, r.Metadata.Name), label(e)+hexValue(e.Digest))
}

// absent returns a finding for the first name of which no component was admitted.
func (l *componentList) absent(pcr int, r *ReferenceValues) *Finding {
	for _, c := range l.known {
		if !l.seen[c.Name] && !c.Optional {
			return onPCR(pcr, fmt.Sprintf("%s of %s, %s", l.what, r.Metadata.Name, quoted(c.Name)), "none")
		}
	}
	return nil
}

// fileList is what PCR 9 may contain: files in any order, and at the end the kernel and its initramfs
// archives in their order.
type fileList struct {
	componentList
	loads []Component
	left  int // number of events that follow, with this one
}

func (l *fileList) admit(bank uint16, e *eventlog.Event, r *ReferenceValues) *Finding {
	at := len(l.loads) - l.left
	l.left--
	switch {
	case at < 0:
		return l.componentList.admit(bank, e, r)
	case !l.loads[at].is(bank, e.Digest):
		return onEvent(e, fmt.Sprintf("the file %s of %s", quoted(l.loads[at].Name), r.Metadata.Name),
			label(e)+hexValue(e.Digest))
	}
	return nil
}

// grubScript checks what GRUB measures into PCR 8. Each text must be known. From the kernel on, the order
// is fixed: the command that loads it, its command line, the command that loads the initramfs, and the
// boot. Otherwise the machine could load the kernel again, without the initramfs, or read a file with the
// content of the initramfs that it does not load.
type grubScript struct {
	refs                   *ReferenceValues
	commands, commandLines patterns
	step                   int // number of [steps] that are done
}

var steps = [...]string{"the command linux", "the kernel command line", "the command initrd"}

func (s *grubScript) admit(bank uint16, e *eventlog.Event) *Finding {
	text, ok := grubText(bank, e)
	if !ok {
		return onEvent(e, "the digest of a text of GRUB", hexValue(e.Digest))
	}
	known, what := s.commands, "command"
	if isCommandLine(text) {
		known, what = s.commandLines, "kernel command line"
	}
	if want, got := known.differ(text); got != "" {
		return onEvent(e, fmt.Sprintf("a %s of %s%s", what, s.refs.Metadata.Name, want), got)
	}
	command, _, _ := strings.Cut(text, " ")
	switch {
	case isCommandLine(text) && s.step == 1, slices.Contains(loadKernel, command) && s.step == 0,
		slices.Contains(loadInitrd, command) && s.step == 2:
		s.step++
	case isCommandLine(text), slices.Contains(loadKernel, command), slices.Contains(loadInitrd, command),
		s.step > 0 && command != "echo" && (command != "boot" || s.step < len(steps)):
		return onEvent(e, s.next(), quoted(text))
	}
	return nil
}

func (s *grubScript) next() string {
	if s.step < len(steps) {
		return steps[s.step]
	}
	return "the command boot"
}

func (s *grubScript) end() *Finding {
	if s.step < len(steps) {
		return onPCR(8, fmt.Sprintf("%s of %s", steps[s.step], s.refs.Metadata.Name), "none")
	}
	return nil
}

// Commands of GRUB that load a kernel and an initramfs.
var (
	loadKernel = []string{"linux", "linuxefi", "linux16"}
	loadInitrd = []string{"initrd", "initrdefi", "initrd16"}
)

// label returns what the log calls an event whose digest its data does not explain. It is only a hint.
func label(e *eventlog.Event) string {
	name, ok := bytes.CutSuffix(e.Data, []byte{0})
	if !ok || len(name) == 0 || bytes.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return quoted(string(name)) + " with "
}

// Labels of GRUB's texts in the log (GRUB, grub-core/commands/tpm.c). Only the text after the label is
// measured.
var grubLabels = []string{"grub_cmd: ", "kernel_cmdline: ", "module_cmdline: "}

// grubText returns the text that GRUB measured into PCR 8.
func grubText(bank uint16, e *eventlog.Event) (string, bool) {
	data, ok := bytes.CutSuffix(e.Data, []byte{0})
	if !ok {
		return "", false
	}
	for _, l := range grubLabels {
		if text, ok := bytes.CutPrefix(data, []byte(l)); ok && bytes.Equal(eventlog.Hash(bank, text), e.Digest) {
			return string(text), true
		}
	}
	return "", false
}

// isCommandLine reports whether a text of PCR 8 starts with the path of a kernel. The kind of a text is
// told by the text, not by the label in the log, which the quote does not cover: the path of a kernel
// starts with "/" or "(", and no known command does.
func isCommandLine(text string) bool {
	return strings.HasPrefix(text, "/") || strings.HasPrefix(text, "(")
}

// Words is a pattern of a command or of a command line: words that are separated by one space each. An
// asterisk stands for any number of letters, digits, and characters of [wild]. So it never stands for a
// character that separates or quotes words.
type Words string

const wild = "._:,/@+()-"

// common returns the number of words that match before the first difference, or -1 for no difference. The
// text is untrusted and compared with many patterns, so it is only read up to the difference.
func (w Words) common(text string) int {
	pattern := string(w)
	for n := 0; ; n++ {
		want, wanted, more := strings.Cut(pattern, " ")
		if literal, _, _ := strings.Cut(want, "*"); !strings.HasPrefix(text, literal) {
			return n // before the end of a long word is searched
		}
		got, rest, follows := strings.Cut(text, " ")
		switch {
		case !matchWord(want, got):
			return n
		case !more && !follows:
			return -1
		case more != follows:
			return n + 1
		}
		pattern, text = wanted, rest
	}
}

// matchWord compares one word. It needs no backtracking: each part after an asterisk is searched at its
// first position, and the last part at the end.
func matchWord(pattern, word string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 || pattern == word {
		return pattern == word
	}
	first, last := parts[0], parts[len(parts)-1]
	if !strings.HasPrefix(word, first) || len(word) < len(first)+len(last) || !strings.HasSuffix(word, last) {
		return false
	}
	word = word[len(first) : len(word)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		at := strings.Index(word, part)
		if at < 0 || !isWild(word[:at]) {
			return false
		}
		word = word[at+len(part):]
	}
	return isWild(word)
}

func isWild(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || strings.IndexByte(wild, c) >= 0) {
			return false
		}
	}
	return true
}

// patterns are the known texts of one kind. A log can have thousands of texts, so only patterns with an
// asterisk are compared one by one.
type patterns struct {
	all   []Words
	exact map[Words]bool // a pattern also matches itself
	wild  []Words
}

func newPatterns(all []Words) patterns {
	p := patterns{all: all, exact: map[Words]bool{}}
	for _, w := range all {
		p.exact[w] = true
		if strings.Contains(string(w), "*") {
			p.wild = append(p.wild, w)
		}
	}
	return p
}

// differ compares a text with the known patterns. If none matches, it returns what was expected by the
// pattern that matches most words, and the first word that differs.
func (p patterns) differ(text string) (want, got string) {
	matches := func(w Words) bool { return w.common(text) < 0 }
	if p.exact[Words(text)] || slices.ContainsFunc(p.wild, matches) {
		return "", ""
	}
	best, at := Words(""), -1
	for _, w := range p.all {
		if n := w.common(text); n > at {
			best, at = w, n
		}
	}
	if at < 1 { // not even the command is known
		return "", quoted(text)
	}
	words := strings.SplitN(text, " ", at+2)
	switch {
	case at >= len(words):
		return fmt.Sprintf(", with the word %s at position %d", quoted(strings.Split(string(best), " ")[at]), at),
			fmt.Sprintf("the end of %s", quoted(text))
	case at >= strings.Count(string(best), " ")+1:
		return fmt.Sprintf(", with %d words", at), "the word " + quoted(words[at])
	}
	return fmt.Sprintf(", with the word %s at position %d", quoted(strings.Split(string(best), " ")[at]), at),
		"the word " + quoted(words[at])
}

// validateGRUB reports patterns that could match what they should not, and documents that do not fit
// together.
func (r *ReferenceValues) validateGRUB() error {
	for field, list := range map[string][]Words{"commands": r.Commands, "commandLines": r.CommandLines} {
		for i, w := range list {
			words := strings.Split(string(w), " ")
			switch {
			case words[0] == "" || strings.HasPrefix(words[0], "*"):
				return fmt.Errorf("%s[%d] %q: the first word must not start with *", field, i, string(w))
			case isCommandLine(words[0]) != (field == "commandLines"):
				return fmt.Errorf("%s[%d] %q: a kernel command line starts with the path of the kernel, and a command does not",
					field, i, string(w))
			}
			if slices.Contains(loadKernel, words[0]) {
				words = words[1:]
			} else if field == "commands" {
				continue
			}
			for _, word := range words[min(1, len(words)):] {
				if key, _, _ := strings.Cut(word, "*"); key != word && !strings.Contains(key, "=") {
					return fmt.Errorf("%s[%d] %q: in %q, * must follow a parameter and =, because it could be any parameter", field, i,
						string(w), word)
				}
			}
		}
	}
	if r.ofUKI() && len(r.Loads) > 0 {
		return fmt.Errorf("loads: a UKI (pcr11) loads no kernel from a file")
	}
	for _, name := range []string{grubLoader, kernel} { // whose order is checked
		named := func(c Component) bool { return c.Name == name }
		if len(r.Loads) > 0 && !slices.ContainsFunc(r.Applications, named) {
			return fmt.Errorf("applications: none has the name %q, which a document with loads needs", name)
		}
	}
	return nil
}
