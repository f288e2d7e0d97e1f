// SPDX-License-Identifier: Apache-2.0

package render

import (
	"bytes"
	"crypto/fips140"
	"crypto/md5"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/coreos/ignition/v2/config/v3_5/types"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"sigs.k8s.io/yaml"
)

// encode encodes a config like the machine-config-operator: as encoding/json does, but
// without empty structs with "omitempty". The name of a rendered config contains a hash of
// these bytes.
func encode(config types.Config) ([]byte, error) {
	var b bytes.Buffer
	if err := encodeValue(&b, reflect.ValueOf(config)); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func encodeValue(b *bytes.Buffer, v reflect.Value) error {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			b.WriteString("null")
			return nil
		}
		return encodeValue(b, v.Elem())
	case reflect.Struct:
		b.WriteByte('{')
		if err := encodeFields(b, v, new(bool)); err != nil {
			return err
		}
		b.WriteByte('}')
	case reflect.Slice:
		if v.IsNil() {
			b.WriteString("null")
			return nil
		}
		b.WriteByte('[')
		for i := range v.Len() {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := encodeValue(b, v.Index(i)); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	case reflect.String, reflect.Int, reflect.Bool:
		text, err := json.Marshal(v.Interface())
		if err != nil {
			return err
		}
		b.Write(text)
	default:
		return fmt.Errorf("an Ignition config cannot contain a %s", v.Type())
	}
	return nil
}

// encodeFields encodes the fields of a struct, including those of embedded structs.
func encodeFields(b *bytes.Buffer, v reflect.Value, later *bool) error {
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" && field.Anonymous {
			if err := encodeFields(b, value, later); err != nil {
				return err
			}
			continue
		}
		if options == "omitempty" && empty(value) {
			continue
		}
		if *later {
			b.WriteByte(',')
		}
		*later = true
		b.WriteString(`"` + name + `":`)
		if err := encodeValue(b, value); err != nil {
			return err
		}
	}
	return nil
}

func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if !empty(v.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice, reflect.String:
		return v.Len() == 0
	default:
		return v.IsZero()
	}
}

// salt is the constant with which the machine-config-controller hashes rendered configs.
var salt = []byte{
	0x10, 0x7c, 0xce, 0xe4, 0x8b, 0x38, 0xaf, 0xaf, 0x4f, 0xe5, 0x86, 0x76, 0x9d, 0x9a, 0xd3, 0x6e,
	0x19, 0x5d, 0x2f, 0xfd, 0xac, 0x6a, 0x25, 0x07, 0xae, 0x0d, 0xa0, 0xb9, 0x6e, 0x11, 0x57, 0x34,
	0xdb, 0x83, 0x0c, 0xce, 0xda, 0x8d, 0x74, 0x87, 0xbc, 0xb5, 0xc0, 0x97, 0xe9, 0x3e, 0x7e, 0xa5,
	0x40, 0x53, 0xb3, 0x77, 0x0f, 0xa8, 0xd0, 0xc5, 0x92, 0x6b, 0x3a, 0xe3, 0x85, 0xbc, 0xee, 0x1a,
	0x21, 0x1a, 0xeb, 0xca, 0x20, 0xad, 0x1f, 0xea, 0x29, 0x90, 0x94, 0x4f, 0x06, 0xce, 0x17, 0x16,
}

// Name returns the name of a pool's rendered config, as in the machine-config-controller:
// rendered-<pool>-<MD5 of the salt and the spec as YAML>. It identifies the config, but it
// does not protect it against changes.
func Name(pool string, spec mcfgv1.MachineConfigSpec) (string, error) {
	text, err := yaml.Marshal(spec)
	if err != nil {
		return "", err
	}
	var sum []byte
	fips140.WithoutEnforcement(func() {
		hash := md5.New()
		hash.Write(salt)
		hash.Write(text)
		sum = hash.Sum(nil)
	})
	return fmt.Sprintf("rendered-%s-%x", pool, sum), nil
}
