// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// object is a JSON object that keeps the order of its members. Other values have the types
// of encoding/json: []any, string, json.Number, bool, nil.
type object []member

type member struct {
	key   string
	value any
}

func (o object) get(key string) any {
	for _, m := range o {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// parse parses JSON that this package encoded.
func parse(raw []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	v, err := parseValue(dec)
	if err != nil {
		return nil, fmt.Errorf("parse config: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("parse config: more than one value")
	}
	return v, nil
}

func parseValue(dec *json.Decoder) (any, error) {
	t, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		o := object{}
		for dec.More() {
			k, err := dec.Token()
			if err != nil {
				return nil, err
			}
			key, ok := k.(string)
			if !ok {
				return nil, errors.New("a key is not a string")
			}
			v, err := parseValue(dec)
			if err != nil {
				return nil, err
			}
			o = append(o, member{key, v})
		}
		_, err = dec.Token()
		return o, err
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			v, err := parseValue(dec)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = dec.Token()
		return list, err
	}
	return t, nil
}

func encode(v any) []byte {
	var b bytes.Buffer
	encodeValue(&b, v)
	return b.Bytes()
}

func encodeValue(b *bytes.Buffer, v any) {
	switch v := v.(type) {
	case object:
		b.WriteByte('{')
		for i, m := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			encodeValue(b, m.key)
			b.WriteByte(':')
			encodeValue(b, m.value)
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			encodeValue(b, e)
		}
		b.WriteByte(']')
	default:
		raw, err := json.Marshal(v)
		if err != nil {
			raw = []byte("null") // impossible: strings, numbers and booleans
		}
		b.Write(raw)
	}
}

// withoutEmpty removes empty members. It keeps the elements of lists.
func withoutEmpty(v any) any {
	switch v := v.(type) {
	case object:
		kept := object{}
		for _, m := range v {
			m.value = withoutEmpty(m.value)
			if !empty(m.value) {
				kept = append(kept, m)
			}
		}
		return kept
	case []any:
		for i := range v {
			v[i] = withoutEmpty(v[i])
		}
	}
	return v
}

func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case object:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// defaults are fields that not every version 3.x has, with the value that means the same as
// their absence.
var defaults = []struct {
	path  []string
	value any
}{
	{[]string{"passwd", "users", "shouldExist"}, true},
	{[]string{"passwd", "groups", "shouldExist"}, true},
	{[]string{"storage", "disks", "partitions", "resize"}, false},
	{[]string{"storage", "luks", "discard"}, false},
	{[]string{"storage", "luks", "cex", "enabled"}, false},
}

// withoutDefaults removes default values.
func withoutDefaults(tree any) any {
	for _, d := range defaults {
		tree = without(tree, d.path, d.value)
	}
	return withoutEmpty(tree)
}

// without removes the member at path if it has a value; nil means any value.
func without(v any, path []string, value any) any {
	switch v := v.(type) {
	case object:
		kept := object{}
		for _, m := range v {
			if m.key == path[0] {
				if len(path) > 1 {
					m.value = without(m.value, path[1:], value)
				} else if value == nil || m.value == value {
					continue
				}
			}
			kept = append(kept, m)
		}
		return kept
	case []any:
		for i := range v {
			v[i] = without(v[i], path, value)
		}
	}
	return v
}

// known rejects the first field that the schema does not have.
func known(v any, schema reflect.Type, at string, to specversion.Version) error {
	for schema.Kind() == reflect.Pointer {
		schema = schema.Elem()
	}
	switch v := v.(type) {
	case object:
		fields := map[string]reflect.Type{}
		collect(schema, fields)
		for _, m := range v {
			field := join(at, m.key)
			t, ok := fields[m.key]
			if !ok {
				return &RefusedError{To: to, Field: field, Why: "spec " + to.String() + " does not have this field"}
			}
			if err := known(m.value, t, field, to); err != nil {
				return err
			}
		}
	case []any:
		for i, e := range v {
			if schema.Kind() != reflect.Slice {
				return &RefusedError{To: to, Field: at, Why: "spec " + to.String() + " does not have a list here"}
			}
			if err := known(e, schema.Elem(), at+element(e, i), to); err != nil {
				return err
			}
		}
	}
	return nil
}

// collect adds the JSON names of a struct's fields, including those of embedded structs.
func collect(t reflect.Type, fields map[string]reflect.Type) {
	if t.Kind() != reflect.Struct {
		return
	}
	for f := range t.Fields() {
		if f.Anonymous {
			collect(f.Type, fields)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields[name] = f.Type
	}
}

func join(at, key string) string {
	if at == "" {
		return key
	}
	return at + "." + key
}

// element identifies an element of a list by its name. It never uses a source, which may be
// the contents of a file.
func element(v any, i int) string {
	o, _ := v.(object)
	for _, key := range []string{"path", "name", "device"} {
		if s, ok := o.get(key).(string); ok {
			return "[" + s + "]"
		}
	}
	return fmt.Sprintf("[%d]", i)
}

// specialBits rejects modes with bits that older versions ignore.
func specialBits(tree any, to specversion.Version) error {
	root, _ := tree.(object)
	storage, _ := root.get("storage").(object)
	for _, kind := range []string{"files", "directories"} {
		list, _ := storage.get(kind).([]any)
		for i, e := range list {
			o, _ := e.(object)
			n, ok := o.get("mode").(json.Number)
			if !ok {
				continue
			}
			if mode, err := n.Int64(); err != nil || mode&0o7000 != 0 {
				return &RefusedError{To: to, Field: "storage." + kind + element(e, i) + ".mode",
					Why: fmt.Sprintf("spec %s does not support setuid, setgid and sticky bits (0%o)", to, mode)}
			}
		}
	}
	return nil
}

// setVersion changes ignition.version in place.
func setVersion(tree any, version string) {
	root, _ := tree.(object)
	ignition, _ := root.get("ignition").(object)
	for i := range ignition {
		if ignition[i].key == "version" {
			ignition[i].value = version
		}
	}
}
