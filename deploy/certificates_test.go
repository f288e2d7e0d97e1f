// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// An API server accepts the component with which the verifier renews certificates. It grants
// only what the controller mcscertificates needs, whose tests run with it. It cannot create
// Secrets. It reads only those two and the operator's pointer configs, which it cannot write.
func TestAttack_T49_RenewingCertificatesAccessesOnlyTheirObjects(t *testing.T) {
	objects := withComponent(t, "certificates")
	c := cluster.StartShared(t)
	applyComponent(t, c, objects, 8, "mcs-attest-verifier-certificates")
	w := &caller{t: t, c: c}
	var err error
	if w.reviews, err = kubernetes.NewForConfig(c.ServiceAccount(t, Namespace, Controller)); err != nil {
		t.Fatal(err)
	}
	const mco, machines = "openshift-machine-config-operator", "openshift-machine-api"
	for _, a := range []struct {
		verb, group, resource, namespace, name string
		want                                   bool
	}{
		{"get", "", "secrets", mco, "machine-config-server-ca", true},
		{"update", "", "secrets", mco, "machine-config-server-ca", true},
		{"get", "", "secrets", mco, "machine-config-server-tls", true},
		{"update", "", "secrets", mco, "machine-config-server-tls", true},
		{"get", "", "configmaps", mco, "machine-config-server-ca", true},
		{"update", "", "configmaps", mco, "machine-config-server-ca", true},
		{"get", "", "configmaps", "kube-system", "root-ca", true},
		{"list", "machine.openshift.io", "machinesets", machines, "", true},
		{"list", "machine.openshift.io", "controlplanemachinesets", machines, "", true},
		{"list", "cluster.x-k8s.io", "machinesets", machines, "", true},
		{"get", "", "secrets", machines, "master-user-data-managed", true},
		{"get", "", "secrets", machines, "worker-user-data-managed", true},

		{"get", "config.openshift.io", "infrastructures", "", "cluster", true},
		{"get", "aro.openshift.io", "clusters", "", "cluster", true},

		{"update", "", "secrets", machines, "master-user-data", true},
		{"update", "", "secrets", machines, "worker-user-data", true},

		{"update", "", "secrets", machines, "worker-user-data-managed", false},
		{"delete", "", "secrets", machines, "worker-user-data-managed", false},
		{"create", "", "secrets", machines, "", false},
		{"create", "", "secrets", mco, "", false},
		{"delete", "", "secrets", mco, "machine-config-server-tls", false},
		{"delete", "", "secrets", mco, "machine-config-server-ca", false},
		{"list", "", "secrets", mco, "", false},
		{"get", "", "secrets", mco, "node-bootstrapper-token", false},
		{"create", "", "configmaps", mco, "", false},
		{"update", "", "configmaps", mco, "kubeconfig-data", false},
		{"update", "", "configmaps", "kube-system", "root-ca", false},
		{"list", "", "secrets", machines, "", false},
		{"get", "", "secrets", machines, "cloud-credentials", false},
		{"update", "machine.openshift.io", "machinesets", machines, "workers", false},
		{"list", "machine.openshift.io", "machinesets", "", "", false},
		{"list", "config.openshift.io", "infrastructures", "", "", false},
		{"update", "config.openshift.io", "infrastructures", "", "cluster", false},
		{"get", "config.openshift.io", "clusterversions", "", "version", false},
	} {
		asked := func() bool { return w.may(a.verb, a.group, a.resource, "", a.namespace, a.name) == a.want }
		if a.want && !until(asked) || !a.want && !asked() {
			t.Errorf("%s %s %s/%s: %v", a.verb, a.resource, a.namespace, a.name, !a.want)
		}
	}
}
