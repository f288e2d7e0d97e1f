// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/mcs-attest/mcs-attest/pkg/specversion"
)

// object is a JSON object.
type object = map[string]any

// parse parses a config that this package encoded.
func parse(raw []byte) (object, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var tree object
	if err := dec.Decode(&tree); err != nil {
		return nil, fmt.Errorf("parse config: %w", err)
	}
	return tree, nil
}

// removeEmpty removes empty members. It keeps the elements of lists.
func removeEmpty(v any) {
	switch v := v.(type) {
	case object:
		for key, value := range v {
			removeEmpty(value)
			if empty(value) {
				delete(v, key)
			}
		}
	case []any:
		for _, e := range v {
			removeEmpty(e)
		}
	}
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

// removeDefaults removes default values.
func removeDefaults(tree object) {
	for _, d := range defaults {
		remove(tree, d.path, d.value)
	}
	removeEmpty(tree)
}

// remove removes the member at path if it has a value; nil means any value.
func remove(v any, path []string, value any) {
	switch v := v.(type) {
	case object:
		if len(path) > 1 {
			remove(v[path[0]], path[1:], value)
		} else if value == nil || v[path[0]] == value {
			delete(v, path[0])
		}
	case []any:
		for _, e := range v {
			remove(e, path, value)
		}
	}
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
		for _, name := range slices.Sorted(maps.Keys(v)) {
			field := join(at, name)
			t, ok := fields[name]
			if !ok {
				return fmt.Errorf("%s: spec %s does not have this field", field, to)
			}
			if err := known(v[name], t, field, to); err != nil {
				return err
			}
		}
	case []any:
		for i, e := range v {
			if schema.Kind() != reflect.Slice {
				return fmt.Errorf("%s: spec %s does not have a list here", at, to)
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
		if s, ok := o[key].(string); ok {
			return "[" + s + "]"
		}
	}
	return fmt.Sprintf("[%d]", i)
}

// specialBits rejects modes with bits that older versions ignore.
func specialBits(tree object, to specversion.Version) error {
	storage, _ := tree["storage"].(object)
	for _, kind := range []string{"files", "directories"} {
		list, _ := storage[kind].([]any)
		for i, e := range list {
			o, _ := e.(object)
			n, ok := o["mode"].(json.Number)
			if !ok {
				continue
			}
			if mode, err := n.Int64(); err != nil || mode&0o7000 != 0 {
				return fmt.Errorf("storage.%s%s.mode: spec %s does not support setuid, setgid and sticky bits (0%o)", kind,
					element(e, i), to, mode)
			}
		}
	}
	return nil
}
