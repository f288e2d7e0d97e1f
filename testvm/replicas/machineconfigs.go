// SPDX-License-Identifier: Apache-2.0

package replicas

import (
	"encoding/base64"
	"encoding/json"
)

// Pool creates a MachineConfigPool, and the ControllerConfig from which its nodes' configs take the
// API server's address and CA.
func (s *Set) Pool(name string) {
	s.t.Helper()
	const group = "machineconfiguration.openshift.io/"
	ca := base64.StdEncoding.EncodeToString(s.authority())
	s.Apply(group+"v1", "ControllerConfig", "", "machine-config-controller", map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{group + "generated-by-version": "v4.20.0"},
	}, "spec": map[string]any{
		"additionalTrustBundle": ca, "baseOSContainerImage": "", "cloudProviderCAData": ca, "cloudProviderConfig": "",
		"clusterDNSIP": "10.0.0.10", "images": map[string]any{}, "ipFamilies": "IPv4", "kubeAPIServerServingCAData": ca,
		"network": map[string]any{"mtuMigration": map[string]any{}}, "proxy": map[string]any{}, "releaseImage": "release",
		"rootCAData": ca,
		"dns": map[string]any{
			"apiVersion": "config.openshift.io/v1", "kind": "DNS", "metadata": map[string]any{"name": "cluster"},
			"spec": map[string]any{"baseDomain": "test"}, "status": map[string]any{},
		},
		"infra": map[string]any{
			"apiVersion": "config.openshift.io/v1", "kind": "Infrastructure", "metadata": map[string]any{"name": "cluster"},
			"spec": map[string]any{"cloudConfig": map[string]any{"name": ""}, "platformSpec": map[string]any{}},
			"status": map[string]any{
				"apiServerInternalURI": s.api(), "apiServerURL": s.api(), "controlPlaneTopology": "HighlyAvailable",
				"cpuPartitioning": "None", "etcdDiscoveryDomain": "", "infrastructureName": "test",
				"infrastructureTopology": "HighlyAvailable",
			},
		},
	}})
	s.Apply(group+"v1", "MachineConfigPool", "", name, map[string]any{"spec": map[string]any{
		"machineConfigSelector": map[string]any{"matchLabels": map[string]any{group + "role": name}},
	}})
}

// MachineConfig creates a MachineConfig for a pool, with an Ignition config of these files.
// Annotations may be nil. If made is true, the machine-config-operator created it.
func (s *Set) MachineConfig(name, pool string, made bool, annotations map[string]string, ignition string) {
	s.t.Helper()
	var config map[string]any
	if err := json.Unmarshal([]byte(ignition), &config); err != nil {
		s.t.Fatalf("MachineConfig %s: %v", name, err)
	}
	all := map[string]any{}
	for k, v := range annotations {
		all[k] = v
	}
	const group = "machineconfiguration.openshift.io/"
	metadata := map[string]any{"labels": map[string]any{group + "role": pool}, "annotations": all}
	if made {
		all[group+"generated-by-controller-version"] = "v4.20.0"
		uid := s.Cluster.Kubectl(s.t, "get", "controllerconfig", "machine-config-controller", "-o",
			"jsonpath={.metadata.uid}")
		metadata["ownerReferences"] = []any{map[string]any{
			"apiVersion": group + "v1", "kind": "ControllerConfig", "name": "machine-config-controller", "uid": uid,
		}}
	}
	s.Apply(group+"v1", "MachineConfig", "", name,
		map[string]any{"metadata": metadata, "spec": map[string]any{"config": config}})
}
