// SPDX-License-Identifier: Apache-2.0

package records

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// decode decodes a MachineAttestation. It ignores fields that this version does not know.
func decode(o *unstructured.Unstructured) (*v1alpha1.MachineAttestation, error) {
	return decodeAs[v1alpha1.MachineAttestation](o)
}

func decodeAs[T any](o *unstructured.Unstructured) (*T, error) {
	into := new(T)
	raw, err := o.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		return nil, fmt.Errorf("not a %s: %w", o.GetKind(), err)
	}
	return into, nil
}

// content converts v to the form in which the API has it.
func content(v any) (map[string]any, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var m map[string]any
	return m, kjson.Unmarshal(raw, &m)
}

// carry applies to raw, the object in the API, the change from before to after, which are decoded by
// this version. Fields that this version does not know stay, as long as the element that they belong to
// stays.
func carry(raw, before, after any) any {
	switch after := after.(type) {
	case map[string]any:
		raw, ok1 := raw.(map[string]any)
		before, ok2 := before.(map[string]any)
		if !ok1 || !ok2 || before["id"] != after["id"] {
			return after // new, or another token, ticket or challenge
		}
		out := maps.Clone(raw)
		for key := range before {
			if _, stays := after[key]; !stays {
				delete(out, key)
			}
		}
		for key, value := range after {
			out[key] = carry(raw[key], before[key], value)
		}
		return out
	case []any:
		raw, ok1 := raw.([]any)
		before, ok2 := before.([]any)
		if !ok1 || !ok2 || len(raw) != len(before) {
			return after
		}
		out := make([]any, len(after))
		used := make([]bool, len(before))
		for i, value := range after {
			out[i] = value
			for j := range before {
				if !used[j] && same(before[j], value) {
					out[i], used[j] = carry(raw[j], before[j], value), true
					break
				}
			}
		}
		return out
	default:
		if reflect.DeepEqual(before, after) && raw != nil {
			return raw
		}
		return after
	}
}

// same reports whether two elements of a list are two states of one thing.
func same(x, y any) bool {
	a, ok1 := x.(map[string]any)
	b, ok2 := y.(map[string]any)
	if !ok1 || !ok2 {
		return reflect.DeepEqual(x, y)
	}
	for _, key := range []string{"type", "id"} { // conditions; challenges
		if a[key] != nil || b[key] != nil {
			return a[key] == b[key]
		}
	}
	return reflect.DeepEqual(a, b)
}
