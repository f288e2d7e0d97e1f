// SPDX-License-Identifier: Apache-2.0

package records

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// machineVersions are the API versions in which Machines exist.
var machineVersions = map[string][]string{
	"machine.openshift.io": {"v1beta1"},
	"cluster.x-k8s.io":     {"v1beta2", "v1beta1"},
}

// NewClient returns a client that reads live. It makes no discovery calls, because it has a fixed list
// of the kinds that this package needs.
func NewClient(c *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.GroupVersion.WithKind(v1alpha1.KindMachineAttestation), meta.RESTScopeNamespace)
	mapper.Add(v1alpha1.GroupVersion.WithKind(v1alpha1.KindIdentityClaim), meta.RESTScopeRoot)
	mapper.Add(v1alpha1.GroupVersion.WithKind(v1alpha1.KindAttestationPolicy), meta.RESTScopeRoot)
	mapper.Add(v1alpha1.GroupVersion.WithKind(v1alpha1.KindAttestationVerifier), meta.RESTScopeRoot)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
	for group, versions := range machineVersions {
		for _, version := range versions {
			mapper.Add(schema.GroupVersionKind{Group: group, Version: version, Kind: "Machine"}, meta.RESTScopeNamespace)
		}
	}
	r, err := client.New(c, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("client of the Kubernetes API: %w", err)
	}
	return r, nil
}
