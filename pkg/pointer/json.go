package pointer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// value is a JSON value and where it stands in the text.
type value struct {
	text       []byte // the whole document
	start, end int
}

// document checks the text and returns its one value.
func document(text []byte) (value, bool) {
	if !json.Valid(text) {
		return value{}, false
	}
	return value{text: text, start: skipSpace(text, 0), end: len(bytes.TrimRight(text, " \t\r\n"))}, true
}

func (v value) raw() []byte  { return v.text[v.start:v.end] }
func (v value) isNull() bool { return string(v.raw()) == "null" }

// str is the value of a JSON string.
func (v value) str() (string, bool) {
	var s string
	if v.start >= v.end || v.text[v.start] != '"' || json.Unmarshal(v.raw(), &s) != nil {
		return "", false
	}
	return s, true
}

// member is one name and value of an object. Start is where the name begins.
type member struct {
	name  string
	start int
	value value
}

// members lists an object's members; nil if v is no object.
func (v value) members() []member {
	if v.text[v.start] != '{' {
		return nil
	}
	var out []member
	for i := skipSpace(v.text, v.start+1); v.text[i] != '}'; {
		m := member{start: i}
		nameEnd := skipValue(v.text, i)
		m.name, _ = value{v.text, i, nameEnd}.str()
		i = skipSpace(v.text, skipSpace(v.text, nameEnd)+1) // past the colon
		m.value = value{v.text, i, skipValue(v.text, i)}
		out = append(out, m)
		if i = skipSpace(v.text, m.value.end); v.text[i] == ',' {
			i = skipSpace(v.text, i+1)
		}
	}
	return out
}

// elements lists an array's elements; nil if v is no array.
func (v value) elements() []value {
	if v.text[v.start] != '[' {
		return nil
	}
	var out []value
	for i := skipSpace(v.text, v.start+1); v.text[i] != ']'; {
		e := value{v.text, i, skipValue(v.text, i)}
		out = append(out, e)
		if i = skipSpace(v.text, e.end); v.text[i] == ',' {
			i = skipSpace(v.text, i+1)
		}
	}
	return out
}

// get returns the member of that name. Go's decoder, and so Ignition, ignores
// the case of names and takes the last of several: such an object is refused.
func (v value) get(name string) (m member, ok bool, err error) {
	for _, candidate := range v.members() {
		if !strings.EqualFold(candidate.name, name) {
			continue
		}
		if ok {
			return member{}, false, fmt.Errorf("%w: the key %q occurs twice in one object", ErrAmbiguous, name)
		}
		m, ok = candidate, true
	}
	return m, ok, nil
}

// find follows names from object to object; a null on the way is an absence.
func (v value) find(names ...string) (value, bool, error) {
	for _, name := range names {
		m, ok, err := v.get(name)
		if err != nil || !ok || m.value.isNull() {
			return value{}, false, err
		}
		v = m.value
	}
	return v, true, nil
}

func skipSpace(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n') {
		i++
	}
	return i
}

// skipValue returns the end of the value at i. The text is valid JSON, so it is
// enough to count brackets outside strings.
func skipValue(text []byte, i int) int {
	for depth := 0; i < len(text); {
		switch text[i] {
		case '"':
			for i++; text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			i++
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\r', '\n':
			i++
			continue
		default: // a number, true, false or null
			for i < len(text) && !strings.ContainsRune(",]} \t\r\n", rune(text[i])) {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return i
}

// edit replaces text[start:end].
type edit struct {
	start, end int
	with       []byte
}

// apply carries out edits that do not overlap.
func apply(text []byte, edits []edit) []byte {
	edits = slices.Clone(edits)
	slices.SortStableFunc(edits, func(a, b edit) int { return a.start - b.start })
	var out []byte
	at := 0
	for _, e := range edits {
		out = append(append(out, text[at:e.start]...), e.with...)
		at = e.end
	}
	return append(out, text[at:]...)
}

// set returns the edit that gives object v the member name with the JSON text
// raw; existing is the member that is there already, if any.
func (v value) set(name string, existing member, exists bool, raw []byte) edit {
	if exists {
		return edit{existing.value.start, existing.value.end, raw}
	}
	with := append([]byte(quote(name)+":"), raw...)
	at := v.start + 1
	if members := v.members(); len(members) > 0 {
		at = members[len(members)-1].value.end
		with = append([]byte{','}, with...)
	}
	return edit{at, at, with}
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // cannot happen to a string
	}
	return string(b)
}
