// SPDX-License-Identifier: Apache-2.0

package approver

import "sigs.k8s.io/yaml"

// SwitchKey is the key of the ConfigMap that has the switch for client certificates. The
// stock approver uses the same key in its own ConfigMap.
const SwitchKey = "config.yaml"

// Disabled reports whether the text of a switch disables client certificates. The default
// is that they are enabled.
func Disabled(text string) (bool, error) {
	var in struct {
		NodeClientCert struct {
			Disabled bool `json:"disabled"`
		} `json:"nodeClientCert"`
	}
	err := yaml.Unmarshal([]byte(text), &in)
	return in.NodeClientCert.Disabled, err
}
