// SPDX-License-Identifier: Apache-2.0

package mcs

import (
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// kubeconfig returns the kubelet's bootstrap kubeconfig, or an empty one if there is none.
func (x Extras) kubeconfig() (secret.Bytes, error) {
	if !x.Kubeconfig.Empty() || x.Token.Empty() {
		return x.Kubeconfig, nil
	}
	if x.APIServer == "" {
		return secret.Bytes{}, errors.New(
			"make the kubeconfig: the bootstrap token exists, but the URL of the API server is unknown")
	}
	// As the Machine Config Server writes it.
	type object = map[string]any
	cluster := object{"server": x.APIServer}
	if len(x.CA) > 0 {
		cluster["certificate-authority-data"] = x.CA
	}
	k := object{
		"clusters":        []object{{"name": "local", "cluster": cluster}},
		"contexts":        []object{{"name": "kubelet", "context": object{"cluster": "local", "user": "kubelet"}}},
		"current-context": "kubelet", "preferences": object{},
		"users": []object{{"name": "kubelet", "user": object{"token": string(x.Token.Expose())}}},
	}
	raw, err := yaml.Marshal(k)
	if err != nil {
		return secret.Bytes{}, fmt.Errorf("make the kubeconfig: %w", err)
	}
	return secret.New(raw), nil
}
