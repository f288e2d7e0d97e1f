package credential

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
)

// span is where a JSON value stands in the config, which is valid JSON.
type span struct {
	text       []byte // the whole config
	start, end int
}

// is reports whether there is a value, of the kind that begins with this byte.
func (s span) is(first byte) bool { return s.text != nil && s.text[s.start] == first }

// none reports whether there is no value; null is none.
func (s span) none() bool { return s.text == nil || s.text[s.start] == 'n' }

// str is the value of a string; "" for no value.
func (s span) str() (string, error) {
	if s.none() {
		return "", nil
	}
	var v string
	if !s.is('"') || json.Unmarshal(s.text[s.start:s.end], &v) != nil {
		return "", errors.New("not a string")
	}
	return v, nil
}

// get returns what an object has under that name, and no value where it has
// nothing, or is no object. Ignition takes a name in any case, and the last of
// several: such an object is refused.
func (s span) get(name string) (found span, err error) {
	if !s.is('{') {
		return span{}, nil
	}
	for i := skipSpace(s.text, s.start+1); s.text[i] != '}'; {
		end := skipValue(s.text, i)
		same := isName(s.text[i+1:end-1], name)
		i = skipSpace(s.text, skipSpace(s.text, end)+1) // past the colon
		end = skipValue(s.text, i)
		if same {
			if found.text != nil {
				return span{}, errors.New(name + " occurs twice in one object")
			}
			found = span{s.text, i, end}
		}
		if i = skipSpace(s.text, end); s.text[i] == ',' {
			i = skipSpace(s.text, i+1)
		}
	}
	return found, nil
}

// isName compares the text between the quotes of a name, as Go's decoder does.
func isName(raw []byte, name string) bool {
	for _, c := range raw {
		if c != '\\' && c < utf8.RuneSelf {
			continue
		}
		// Few names have an escape, or a letter that another one folds to.
		var key string
		return json.Unmarshal(slices.Concat([]byte{'"'}, raw, []byte{'"'}), &key) == nil && strings.EqualFold(key, name)
	}
	return len(raw) == len(name) && strings.EqualFold(string(raw), name)
}

// each calls f with every element of an array.
func (s span) each(f func(span) error) error {
	if !s.is('[') {
		return nil
	}
	for i := skipSpace(s.text, s.start+1); s.text[i] != ']'; {
		end := skipValue(s.text, i)
		if err := f(span{s.text, i, end}); err != nil {
			return err
		}
		if i = skipSpace(s.text, end); s.text[i] == ',' {
			i = skipSpace(s.text, i+1)
		}
	}
	return nil
}

func skipSpace(text []byte, i int) int {
	for i < len(text) && strings.IndexByte(" \t\r\n", text[i]) >= 0 {
		i++
	}
	return i
}

// skipValue returns the end of the value at i: in valid JSON it is enough to count
// brackets outside of strings.
func skipValue(text []byte, i int) int {
	for depth := 0; ; {
		switch text[i] {
		case '"':
			i = skipString(text, i+1)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\r', '\n':
			i++
		default: // a number, true, false or null
			for i < len(text) && strings.IndexByte(",]} \t\r\n", text[i]) < 0 {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}

// skipString returns the index after the quote that ends the string whose content
// begins at i.
func skipString(text []byte, i int) int {
	for {
		end := i + bytes.IndexByte(text[i:], '"')
		escapes := 0
		for end-1-escapes >= i && text[end-1-escapes] == '\\' {
			escapes++
		}
		if i = end + 1; escapes%2 == 0 {
			return i
		}
	}
}
