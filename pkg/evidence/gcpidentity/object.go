package gcpidentity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// object is a JSON object whose members are read by name. Unlike encoding/json it
// knows one spelling of a name and refuses a second value; it also takes a third of
// the time, which counts for tokens that anybody may send.
type object struct {
	members []member
	err     error // the first fault
}

type member struct {
	name  string
	value []byte
}

// readObject lists the members of an object, with nothing after it.
func readObject(text []byte) *object {
	if !json.Valid(text) {
		return &object{err: errors.New("not JSON")}
	}
	return membersOf(text)
}

// membersOf is readObject for text that is known to be JSON.
func membersOf(text []byte) *object {
	o := &object{}
	i := skipSpace(text, 0)
	if text[i] != '{' {
		o.err = errors.New("not an object")
		return o
	}
	o.members = make([]member, 0, 16)
	for i = skipSpace(text, i+1); text[i] != '}'; {
		end := skipValue(text, i)
		var m member
		if m.name, o.err = unquote(text[i:end]); o.err != nil {
			return o
		}
		for _, other := range o.members {
			if other.name == m.name {
				o.err = fmt.Errorf("%.40q is there twice", m.name)
				return o
			}
		}
		i = skipSpace(text, skipSpace(text, end)+1) // past the colon
		end = skipValue(text, i)
		m.value = text[i:end]
		o.members = append(o.members, m)
		if i = skipSpace(text, end); text[i] == ',' {
			i = skipSpace(text, i+1)
		}
	}
	return o
}

// value is a member's JSON; nil where there is none, or null.
func (o *object) value(name string) []byte {
	for _, m := range o.members {
		if m.name == name && string(m.value) != "null" {
			return m.value
		}
	}
	return nil
}

func (o *object) has(name string) bool {
	for _, m := range o.members {
		if m.name == name {
			return true
		}
	}
	return false
}

// text is a member that is a string; empty where there is none.
func (o *object) text(name string) string {
	raw := o.value(name)
	if raw == nil {
		return ""
	}
	s, err := unquote(raw)
	o.fault(name, err)
	return s
}

// number is a member that is a whole number; zero where there is none.
func (o *object) number(name string) int64 {
	raw := o.value(name)
	if raw == nil {
		return 0
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	o.fault(name, err)
	return n
}

// boolean is a member that is true or false; false where there is none.
func (o *object) boolean(name string) bool {
	raw := string(o.value(name))
	if raw != "" && raw != "true" && raw != "false" {
		o.fault(name, errors.New("not true or false"))
	}
	return raw == "true"
}

// object is a member that is an object; empty where there is none.
func (o *object) object(name string) *object {
	raw := o.value(name)
	if raw == nil {
		return &object{}
	}
	inner := membersOf(raw)
	o.fault(name, inner.err)
	return inner
}

func (o *object) fault(name string, err error) {
	if err != nil && o.err == nil {
		o.err = fmt.Errorf("%s: %w", name, err)
	}
}

func unquote(raw []byte) (string, error) {
	if raw[0] != '"' {
		return "", errors.New("not a string")
	}
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), nil
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err
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
			for i < len(text) && bytes.IndexByte([]byte(",]} \t\r\n"), text[i]) < 0 {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return i
}
