// SPDX-License-Identifier: Apache-2.0

package measuredboot

import (
	"bytes"
	"fmt"
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
	var closest *Finding
	for _, r := range b.images {
		f := b.matches(r)
		if f == nil {
			b.result.Image = r.Metadata.Name
			return nil
		}
		if closest == nil || f.Index > closest.Index {
			closest = f
		}
	}
	return closest
}

// matches compares every event of PCRs 4, 8, 9 and 14 with one document.
//
// The kinds of PCR 8 are told apart by the text, not by the label in the log, which the quote does not
// cover: the path of a kernel starts with "/" or "(", and no command does.
func (b *boot) matches(r *ReferenceValues) *Finding {
	lists := map[int]*componentList{
		4:  {what: "an image", known: r.Applications},
		9:  {what: "a file", known: r.Files},
		14: {what: "a MOK list", known: r.MOK},
	}
	lines := 0
	for i := range b.log.Events {
		e := &b.log.Events[i]
		if !e.Extends() || e.PCR == 4 && b.isMessage(e) {
			continue
		}
		// PCR 11 covers the components of a UKI. Its kernel measures some of them again into PCR 9.
		if e.PCR == 9 && len(r.PCR11) > 0 {
			continue
		}
		if list, ok := lists[e.PCR]; ok && !list.saw(b.bank, e.Digest) {
			return onEvent(e, fmt.Sprintf("%s of %s", list.what, r.Metadata.Name), label(e)+hexValue(e.Digest))
		}
		if e.PCR != 8 {
			continue
		}
		text, ok := grubText(b.bank, e)
		if !ok {
			return onEvent(e, "the digest of a text of GRUB", hexValue(e.Digest))
		}
		known, what := r.Commands, "command"
		if isCommandLine(text) {
			known, what = r.CommandLines, "kernel command line"
			lines++
		}
		if want, got := differ(known, text); got != "" {
			return onEvent(e, fmt.Sprintf("a %s of %s%s", what, r.Metadata.Name, want), got)
		}
	}
	if len(r.CommandLines) > 0 && lines == 0 {
		return onPCR(8, "a kernel command line of "+r.Metadata.Name, "none")
	}
	if len(r.PCR11) > 0 {
		// Whether the firmware measures the kernel inside a UKI depends on Secure Boot.
		return nil
	}
	for _, pcr := range []int{4, 9, 14} {
		if name := lists[pcr].missing(); name != "" {
			return onPCR(pcr, fmt.Sprintf("%s of %s, %s", lists[pcr].what, r.Metadata.Name, quoted(name)), "none")
		}
	}
	return nil
}

// componentList is what one PCR may contain: components with the same name are alternatives, and one
// of each name is required.
type componentList struct {
	what  string // with its article
	known []Component
	seen  map[string]bool
}

func (l *componentList) saw(bank uint16, digest []byte) bool {
	for _, c := range l.known {
		if c.is(bank, digest) {
			if l.seen == nil {
				l.seen = map[string]bool{}
			}
			l.seen[c.Name] = true
			return true
		}
	}
	return false
}

func (l *componentList) missing() string {
	for _, c := range l.known {
		if !l.seen[c.Name] {
			return c.Name
		}
	}
	return ""
}

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

// isCommandLine reports whether a text of PCR 8 starts with the path of a kernel. GRUB opens absolute
// paths only (GRUB, grub-core/kern/file.c).
func isCommandLine(text string) bool {
	return strings.HasPrefix(text, "/") || strings.HasPrefix(text, "(")
}

// Words is a pattern of a command or of a command line: words that are separated by one space each. An
// asterisk stands for any number of characters other than a space.
type Words string

// Match reports whether text has exactly these words.
func (w Words) Match(text string) bool { return w.common(text) < 0 }

// common returns the number of words that match before the first difference, or -1 for no difference.
func (w Words) common(text string) int {
	want, got := strings.Split(string(w), " "), strings.Split(text, " ")
	for i := range want {
		if i >= len(got) || !matchWord(want[i], got[i]) {
			return i
		}
	}
	if len(got) > len(want) {
		return len(want)
	}
	return -1
}

// matchWord compares one word. It needs no backtracking: each part after an asterisk is searched at its
// first position, and the last part at the end.
func matchWord(pattern, word string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == word
	}
	first, last := parts[0], parts[len(parts)-1]
	if !strings.HasPrefix(word, first) || len(word) < len(first)+len(last) || !strings.HasSuffix(word, last) {
		return false
	}
	word = word[len(first) : len(word)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		at := strings.Index(word, part)
		if at < 0 {
			return false
		}
		word = word[at+len(part):]
	}
	return true
}

// differ compares a text with the known patterns. If none matches, it returns what was expected by the
// pattern that matches most words, and the first word that differs.
func differ(known []Words, text string) (want, got string) {
	best, at := Words(""), -1
	for _, w := range known {
		n := w.common(text)
		if n < 0 {
			return "", ""
		}
		if n > at {
			best, at = w, n
		}
	}
	words := strings.Split(text, " ")
	switch {
	case at < 1: // not even the command is known
		return "", quoted(text)
	case at >= len(words):
		return fmt.Sprintf(", with the word %s at position %d", quoted(strings.Split(string(best), " ")[at]), at),
			fmt.Sprintf("the end of %s", quoted(text))
	case at >= strings.Count(string(best), " ")+1:
		return fmt.Sprintf(", with %d words", at), "the word " + quoted(words[at])
	}
	return fmt.Sprintf(", with the word %s at position %d", quoted(strings.Split(string(best), " ")[at]), at),
		"the word " + quoted(words[at])
}

// validateGRUB reports patterns that could match what they should not.
func (r *ReferenceValues) validateGRUB() error {
	for field, list := range map[string][]Words{"commands": r.Commands, "commandLines": r.CommandLines} {
		for i, w := range list {
			first, _, _ := strings.Cut(string(w), " ")
			switch {
			case first == "" || strings.HasPrefix(first, "*"):
				return fmt.Errorf("%s[%d] %q: the first word must not start with *", field, i, string(w))
			case isCommandLine(first) != (field == "commandLines"):
				return fmt.Errorf("%s[%d] %q: a kernel command line starts with the path of the kernel, and a command does not",
					field, i, string(w))
			}
		}
	}
	return nil
}
