// SPDX-License-Identifier: Apache-2.0

package mcs

import (
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// kubeconfig is the file as the Machine Config Server writes it: one cluster, one user with
// a token, one context.
type kubeconfig struct {
	Clusters       []namedCluster `json:"clusters"`
	Contexts       []namedContext `json:"contexts"`
	CurrentContext string         `json:"current-context"`
	Preferences    struct{}       `json:"preferences"`
	Users          []namedUser    `json:"users"`
}

type namedCluster struct {
	Name    string  `json:"name"`
	Cluster cluster `json:"cluster"`
}

type cluster struct {
	CertificateAuthorityData []byte `json:"certificate-authority-data,omitempty"`
	Server                   string `json:"server"`
}

type namedContext struct {
	Name    string `json:"name"`
	Context struct {
		Cluster string `json:"cluster"`
		User    string `json:"user"`
	} `json:"context"`
}

type namedUser struct {
	Name string `json:"name"`
	User struct {
		Token string `json:"token"`
	} `json:"user"`
}

// kubeconfig returns the kubelet's bootstrap kubeconfig, or an empty one if there is none.
func (x Extras) kubeconfig() (secret.Bytes, error) {
	if !x.Kubeconfig.Empty() || x.Token.Empty() {
		return x.Kubeconfig, nil
	}
	if x.APIServer == "" {
		return secret.Bytes{}, errors.New(
			"make the kubeconfig: the bootstrap token exists, but the URL of the API server is unknown")
	}
	var k kubeconfig
	k.Clusters = []namedCluster{{Name: "local", Cluster: cluster{Server: x.APIServer, CertificateAuthorityData: x.CA}}}
	k.Users = []namedUser{{Name: "kubelet"}}
	k.Users[0].User.Token = string(x.Token.Expose())
	k.Contexts = []namedContext{{Name: "kubelet"}}
	k.Contexts[0].Context.Cluster, k.Contexts[0].Context.User = "local", "kubelet"
	k.CurrentContext = "kubelet"
	raw, err := yaml.Marshal(k)
	if err != nil {
		return secret.Bytes{}, fmt.Errorf("make the kubeconfig: %w", err)
	}
	return secret.New(raw), nil
}
