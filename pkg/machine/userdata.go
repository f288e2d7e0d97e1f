// SPDX-License-Identifier: Apache-2.0

package machine

// UserDataSecret returns the Secret with the pointer config that the value of a Machine API providerSpec names, or
// "". The field depends on the platform: it is userData on bare metal (BareMetalMachineProviderSpec) and
// userDataSecret elsewhere. An empty namespace is that of the object.
func UserDataSecret(providerSpec map[string]any) (namespace, name string) {
	for _, field := range []string{"userDataSecret", "userData"} {
		reference, _ := providerSpec[field].(map[string]any)
		if name, _ = reference["name"].(string); name != "" {
			namespace, _ = reference["namespace"].(string)
			return namespace, name
		}
	}
	return "", ""
}
