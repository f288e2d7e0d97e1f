// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// While a machine migrates, neither of its objects is in force, and each is shown in its own namespace.
func TestState_OfOneNamespaceWhileAMachineMigrates(t *testing.T) {
	for authority, want := range map[string]string{
		"Migrating": machineAPINamespace + "/moved", "ClusterAPI": clusterAPINamespace + "/moved",
	} {
		g := (&Cluster{}).newGathered(machineAPINamespace)
		for _, text := range []string{`
apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata: {name: moved, namespace: openshift-machine-api, uid: 0d5a3b32-0000-4000-8000-000000000001}
spec: {providerID: "aws:///a/i-0123456789abcdef0"}
status: {authoritativeAPI: ` + authority + `}
`, `
apiVersion: cluster.x-k8s.io/v1beta1
kind: Machine
metadata: {name: moved, namespace: openshift-cluster-api, uid: 0d5a3b32-0000-4000-8000-000000000002}
spec: {providerID: "aws:///a/i-0123456789abcdef0"}
`} {
			var o unstructured.Unstructured
			if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
				t.Fatal(err)
			}
			if err := g.object(&o); err != nil {
				t.Fatal(err)
			}
		}
		if s := g.state(time.Now()); len(s.Machines) != 1 || s.Machines[0].Name != want {
			t.Errorf("%s: %+v", authority, s.Machines)
		}
	}
}
