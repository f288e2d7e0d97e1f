// SPDX-License-Identifier: Apache-2.0

package gcpidentity

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/mcs-attest/mcs-attest/pkg/jsonspan"
)

// object is a JSON object whose members are read by name. Unlike encoding/json it accepts one
// spelling of a name and rejects duplicates. It also needs a third of the time, which matters
// because anyone can send tokens.
type object struct {
	members []member
	err     error // the first fault
}

type member struct {
	name  string
	value jsonspan.Value
}

// readObject returns the members of an object without trailing bytes.
func readObject(text []byte) *object {
	v, _ := jsonspan.Parse(text)
	return membersOf(v)
}

func membersOf(v jsonspan.Value) *object {
	if !v.Is('{') {
		return &object{err: errors.New("not a JSON object")}
	}
	o := &object{members: make([]member, 0, 16)}
	for n, value := range v.Members() {
		name, _ := n.Str()
		if o.has(name) {
			o.err = fmt.Errorf("%.40q occurs twice", name)
			return o
		}
		o.members = append(o.members, member{name, value})
	}
	return o
}

// value returns a member, or the zero value if it is missing.
func (o *object) value(name string) jsonspan.Value {
	for _, m := range o.members {
		if m.name == name {
			return m.value
		}
	}
	return jsonspan.Value{}
}

func (o *object) has(name string) bool {
	return slices.ContainsFunc(o.members, func(m member) bool { return m.name == name })
}

// text returns a member that is a string, or "" if it is missing.
func (o *object) text(name string) string {
	v := o.value(name)
	s, ok := v.Str()
	if !ok && !v.None() {
		o.fault(name, errors.New("not a string"))
	}
	return s
}

// number returns a member that is a whole number, or zero if it is missing.
func (o *object) number(name string) int64 {
	v := o.value(name)
	if v.None() {
		return 0
	}
	n, err := strconv.ParseInt(string(v.Raw()), 10, 64)
	o.fault(name, err)
	return n
}

// boolean returns a member that is true or false, or false if it is missing.
func (o *object) boolean(name string) bool {
	v := o.value(name)
	if !v.None() && !v.Is('t') && !v.Is('f') {
		o.fault(name, errors.New("not true or false"))
	}
	return v.Is('t')
}

// object returns a member that is an object, or an empty object if it is missing.
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
