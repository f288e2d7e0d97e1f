package gcpidentity

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
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
	value jsonspan.Value
}

// readObject lists the members of an object, with nothing after it.
func readObject(text []byte) *object {
	v, ok := jsonspan.Parse(text)
	if !ok {
		return &object{err: errors.New("not JSON")}
	}
	return membersOf(v)
}

func membersOf(v jsonspan.Value) *object {
	if !v.Is('{') {
		return &object{err: errors.New("not an object")}
	}
	o := &object{members: make([]member, 0, 16)}
	for n, value := range v.Members() {
		name, _ := n.Str()
		if o.has(name) {
			o.err = fmt.Errorf("%.40q is there twice", name)
			return o
		}
		o.members = append(o.members, member{name, value})
	}
	return o
}

// value is a member; no value where there is none, or null.
func (o *object) value(name string) jsonspan.Value {
	for _, m := range o.members {
		if m.name == name && !m.value.None() {
			return m.value
		}
	}
	return jsonspan.Value{}
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
	v := o.value(name)
	s, ok := v.Str()
	if !ok && !v.None() {
		o.fault(name, errors.New("not a string"))
	}
	return s
}

// number is a member that is a whole number; zero where there is none.
func (o *object) number(name string) int64 {
	v := o.value(name)
	if v.None() {
		return 0
	}
	n, err := strconv.ParseInt(string(v.Raw()), 10, 64)
	o.fault(name, err)
	return n
}

// boolean is a member that is true or false; false where there is none.
func (o *object) boolean(name string) bool {
	v := o.value(name)
	if !v.None() && !v.Is('t') && !v.Is('f') {
		o.fault(name, errors.New("not true or false"))
	}
	return v.Is('t')
}

// object is a member that is an object; empty where there is none.
func (o *object) object(name string) *object {
	v := o.value(name)
	if v.None() {
		return &object{}
	}
	inner := membersOf(v)
	o.fault(name, inner.err)
	return inner
}

func (o *object) fault(name string, err error) {
	if err != nil && o.err == nil {
		o.err = fmt.Errorf("%s: %w", name, err)
	}
}
