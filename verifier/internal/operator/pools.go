// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mcs-attest/mcs-attest/verifier/internal/folder"
)

// Pools are those that a policy, a config, a pointer config or a machine of the folder names.
func (f *Folder) Pools(context.Context) ([]string, error) {
	s, err := folder.Load(f.Config.Data)
	if err != nil {
		return nil, err
	}
	pools := map[string]bool{}
	for _, pool := range s.Policies.Pools() {
		pools[pool] = true
	}
	for name := range s.Configs {
		pools[strings.TrimSuffix(name, ".pre-approved")] = true
	}
	for _, m := range s.Machines.Machines() {
		for _, pool := range m.Pools {
			pools[pool] = true
		}
	}
	entries, err := os.ReadDir(f.Config.Path("pointers"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if pool, ok := strings.CutSuffix(e.Name(), ".ign"); ok {
			pools[pool] = true
		}
	}
	delete(pools, "*")
	return slices.Sorted(maps.Keys(pools)), nil
}

// machineConfigs is the API group of the machine-config-operator, whose pools master and worker always exist.
const machineConfigs = "machineconfiguration.openshift.io"

// Pools are those that a policy of the cluster names, and those that every OpenShift has.
func (c *Cluster) Pools(ctx context.Context) ([]string, error) {
	pools := map[string]bool{}
	if v, err := c.versions(machineConfigs); err != nil {
		return nil, err
	} else if len(v) > 0 {
		pools["master"], pools["worker"] = true, true
	}
	err := c.each(ctx, policies, metav1.NamespaceAll, metav1.ListOptions{}, func(o *unstructured.Unstructured) error {
		named, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "pools")
		for _, pool := range named {
			pools[pool] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	delete(pools, "*")
	return slices.Sorted(maps.Keys(pools)), nil
}
