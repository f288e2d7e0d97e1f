// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

// A machine that moves between the Machine API and Cluster API is an object in both. Its record is that of the older
// object, which need not be the one in force, also if only the namespace of one of them is asked for.
func TestMachineOfBothAPIs_HasOneRecord(t *testing.T) {
	c := installed(t)
	for _, ns := range []string{"openshift-machine-api", "openshift-cluster-api"} {
		c.KubectlApply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+"}\n")
	}
	f := fixture{d: client(t, c), namespace: "openshift-machine-api", own: "mcs-attest"}
	put := func(r schema.GroupVersionResource, text string) (uid string) {
		t.Helper()
		o, err := f.put(r, text)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Kubectl(t, "delete", "-n", o.GetNamespace(), r.Resource+"."+r.Group, o.GetName()) })
		return string(o.GetUID())
	}
	uid := put(schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta1", Resource: "machines"}, `
apiVersion: cluster.x-k8s.io/v1beta1
kind: Machine
metadata: {name: moved, namespace: openshift-cluster-api}
spec:
  clusterName: c
  providerID: "aws:///us-east-1a/i-0123456789abcdef0"
  bootstrap: {dataSecretName: worker-user-data}
  infrastructureRef: {kind: AWSMachine, name: moved, apiVersion: infrastructure.cluster.x-k8s.io/v1beta2}
`)
	time.Sleep(1100 * time.Millisecond) // a creationTimestamp has whole seconds
	put(machines, `
apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata:
  name: moved
  namespace: openshift-machine-api
  labels: {machine.openshift.io/cluster-api-machine-role: worker}
spec: {providerID: "aws:///us-east-1a/i-0123456789abcdef0", providerSpec: {}}
`)
	put(attestations, fmt.Sprintf(`
apiVersion: mcs-attest.dev/v1alpha1
kind: MachineAttestation
metadata: {name: %[1]s, namespace: openshift-cluster-api}
spec: {machineRef: {apiVersion: cluster.x-k8s.io/v1beta1, kind: Machine, namespace: openshift-cluster-api, name: moved}}
status: {machineUID: %[1]s, phase: Attested, pool: worker, identity: {ekSHA256: %[2]q}}
`, uid, ek))

	open := func(namespaces ...string) *operator.Cluster {
		b, err := operator.OpenCluster(operator.ClusterOptions{Rest: c.Admin(), Namespaces: namespaces, Own: "mcs-attest",
			FieldManager: "test", Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, b := range []struct {
		asked string
		*operator.Cluster
	}{{"", open()}, {"openshift-machine-api", open("openshift-machine-api")},
		{"openshift-cluster-api", open("openshift-cluster-api")}} {
		s, err := b.State(t.Context())
		if err != nil || len(s.Machines) != 1 || s.Machines[0].Name != "openshift-machine-api/moved" ||
			s.Machines[0].Record == nil || s.Machines[0].Record.Phase != v1alpha1.PhaseAttested {
			t.Errorf("%q: %+v, %v", b.asked, s, err)
		}
		for _, name := range []string{"moved", "openshift-machine-api/moved", "openshift-cluster-api/moved", uid} {
			t.Run(fmt.Sprintf("%s in %q", name, b.asked), func(t *testing.T) {
				find := func() (quarantined bool) {
					t.Helper()
					s, err := b.Find(t.Context(), name)
					if err != nil || len(s.Machines) != 1 || s.Machines[0].Record == nil {
						t.Fatalf("%+v, %v", s, err)
					}
					return s.Machines[0].Quarantined
				}
				for _, stop := range []bool{true, false} {
					done, err := b.Quarantine(t.Context(), name, stop, operator.Write{})
					if err != nil || len(done) != 1 || done[0].Object.Name != uid || done[0].Done != "changed" {
						t.Errorf("quarantine %v: %+v, %v", stop, done, err)
					}
					if find() != stop {
						t.Errorf("after quarantine %v it is not so", stop)
					}
				}
				if _, left, err := b.Forget(t.Context(), name, operator.Write{DryRun: operator.DryRunClient}); err != nil ||
					!slices.ContainsFunc(left, func(s string) bool { return strings.HasPrefix(s, "the record of ") }) {
					t.Errorf("forget: %q, %v", left, err)
				}
			})
		}
	}
	// A user without permissions in the namespace of the other object learns that something may be missing.
	if _, err := open().Quarantine(t.Context(), "moved", true, operator.Write{}); err != nil {
		t.Fatal(err)
	}
	c.KubectlApply(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: mirrors, namespace: openshift-machine-api}
rules: [{apiGroups: [mcs-attest.dev, machine.openshift.io, cluster.x-k8s.io], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: mirrors, namespace: openshift-machine-api}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: mirrors}
subjects: [{kind: User, name: half, apiGroup: rbac.authorization.k8s.io}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: mirrors, namespace: mcs-attest}
rules: [{apiGroups: [mcs-attest.dev], resources: ["*"], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: mirrors, namespace: mcs-attest}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: mirrors}
subjects: [{kind: User, name: half, apiGroup: rbac.authorization.k8s.io}]
`)
	as := rest.CopyConfig(c.Admin())
	as.Impersonate.UserName = "half"
	half, err := operator.OpenCluster(operator.ClusterOptions{Rest: as, Namespaces: []string{"openshift-machine-api"},
		Own: "mcs-attest", FieldManager: "test", Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	if done, err := half.Quarantine(t.Context(), "moved", false, operator.Write{}); len(done) > 0 || err == nil ||
		!operator.Forbidden(err) {
		t.Errorf("release: %+v, %v", done, err)
	}
	s, err := half.State(t.Context())
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && (err != nil || len(s.Machines) != 1); {
		time.Sleep(100 * time.Millisecond) // until the role is in force
		s, err = half.State(t.Context())
	}
	if err != nil || len(s.Machines) != 1 || !slices.ContainsFunc(s.Problems,
		func(p string) bool { return strings.Contains(p, "openshift-cluster-api") }) {
		t.Errorf("%+v, %v", s, err)
	}
	all, err := f.d.Resource(attestations).List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + uid})
	if err != nil || len(all.Items) != 1 {
		t.Errorf("%d records, %v", len(all.Items), err)
	}
}
