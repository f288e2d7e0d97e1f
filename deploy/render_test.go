// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// An API server accepts the component with which the verifier renders configs. It grants only
// what package renderedconfig needs, whose tests run with it. In particular it cannot write
// what the machine-config-operator renders (B10), and cannot read the credential that all
// nodes share.
func TestAttack_T49_RenderingOnlyReadsMachineConfigs(t *testing.T) {
	objects := withComponent(t, "render")
	for _, o := range objects {
		if o.GetName() == "mcs-attest-verifier-render" && o.GetNamespace() != "" &&
			o.GetNamespace() != "openshift-machine-config-operator" {
			t.Errorf("%s in namespace %s", o.GetKind(), o.GetNamespace())
		}
	}
	c := cluster.StartShared(t)
	c.InstallOpenShift(t)
	c.InstallOwn(t)
	applyComponent(t, c, objects, 4, "mcs-attest-verifier-render")
	w := &caller{t: t, c: c}
	var err error
	if w.reviews, err = kubernetes.NewForConfig(c.ServiceAccount(t, Namespace, ServiceAccount)); err != nil {
		t.Fatal(err)
	}
	const group, mco = "machineconfiguration.openshift.io", "openshift-machine-config-operator"
	for _, a := range []struct {
		verb, group, resource, namespace, name string
		want                                   bool
	}{
		{"get", group, "machineconfigs", "", "rendered-worker-1", true},
		{"list", group, "machineconfigs", "", "", true},
		{"watch", group, "machineconfigs", "", "", true},
		{"list", group, "machineconfigpools", "", "", true},
		{"watch", group, "machineconfigpools", "", "", true},
		{"watch", group, "controllerconfigs", "", "machine-config-controller", true},
		{"watch", group, "osimagestreams", "", "cluster", true},
		{"watch", "", "configmaps", mco, "kubeconfig-data", true},

		{"create", group, "machineconfigs", "", "", false},
		{"update", group, "machineconfigs", "", "rendered-worker-1", false},
		{"patch", group, "machineconfigs", "", "rendered-worker-1", false},
		{"delete", group, "machineconfigs", "", "rendered-worker-1", false},
		{"update", group, "machineconfigpools", "", "worker", false},
		{"get", group, "machineconfigpools", "", "worker", false},
		{"list", group, "controllerconfigs", "", "", false},
		{"update", group, "controllerconfigs", "", "machine-config-controller", false},
		{"get", "", "configmaps", mco, "kubeconfig-data", false},
		{"list", "", "configmaps", mco, "", false},
		{"list", "", "configmaps", "", "", false},
		{"get", "", "secrets", mco, "node-bootstrapper-token", false},
		{"list", "", "secrets", mco, "", false},
	} {
		asked := func() bool { return w.may(a.verb, a.group, a.resource, "", a.namespace, a.name) == a.want }
		if a.want && !until(asked) || !a.want && !asked() {
			t.Errorf("%s %s %s/%s: %v", a.verb, a.resource, a.namespace, a.name, !a.want)
		}
	}
}
