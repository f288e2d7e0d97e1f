package configsource

import (
	"encoding/base64"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// bundleKey is where the machine-config-operator keeps the API server's CA bundle, in
// binaryData.
const bundleKey = "ca-bundle.crt"

// bundle is the CA bundle of a ConfigMap; nil if it has none.
func bundle(configMap map[string]any) []byte {
	if text, ok, err := unstructured.NestedString(configMap, "binaryData", bundleKey); ok && err == nil {
		if raw, err := base64.StdEncoding.DecodeString(text); err == nil {
			return raw
		}
	}
	if text, ok, err := unstructured.NestedString(configMap, "data", bundleKey); ok && err == nil {
		return []byte(text)
	}
	return nil
}
