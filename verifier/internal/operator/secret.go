// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/base64"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// secretData decodes a Secret's data. Its errors hold none of it.
func secretData(o *unstructured.Unstructured) (map[string][]byte, error) {
	fields, _, _ := unstructured.NestedMap(o.Object, "data")
	out := map[string][]byte{}
	for k, v := range fields {
		text, _ := v.(string)
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fmt.Errorf("the key %q of Secret %s/%s is not base64", k, o.GetNamespace(), o.GetName())
		}
		out[k] = raw
	}
	return out, nil
}

func setSecretData(o *unstructured.Unstructured, data map[string][]byte) {
	fields, _, _ := unstructured.NestedMap(o.Object, "data")
	if fields == nil {
		fields = map[string]any{}
	}
	for k, v := range data {
		fields[k] = base64.StdEncoding.EncodeToString(v)
	}
	o.Object["data"] = fields
}
