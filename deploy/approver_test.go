// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// An API server accepts the component with which the verifier decides requests. It grants
// what the csr controllers need, whose tests run with it, and no unused permission.
func TestAttack_T49_TheApproverApprovesOnlyForTheKubeletsSigners(t *testing.T) {
	objects := withComponent(t, "approver")
	c := cluster.StartShared(t)
	applyComponent(t, c, objects, 10, "mcs-attest-verifier-approver", "mcs-attest-verifier-approver-openshift")
	w := &caller{t: t, c: c}
	var err error
	if w.reviews, err = kubernetes.NewForConfig(c.ServiceAccount(t, Namespace, Controller)); err != nil {
		t.Fatal(err)
	}
	const (
		certificates, csr = "certificates.k8s.io", "certificatesigningrequests"
		stock, managed    = "openshift-cluster-machine-approver", "openshift-config-managed"
	)
	for _, a := range []struct {
		verb, group, resource, sub, namespace, name string
		want                                        bool
	}{
		{"get", certificates, csr, "", "", "", true},
		{"list", certificates, csr, "", "", "", true},
		{"watch", certificates, csr, "", "", "", true},
		{"update", certificates, csr, "approval", "", "", true},
		{"approve", certificates, "signers", "", "", "kubernetes.io/kube-apiserver-client-kubelet", true},
		{"approve", certificates, "signers", "", "", "kubernetes.io/kubelet-serving", true},
		{"get", "", "nodes", "", "", "n", true},
		{"get", "", "configmaps", "", Namespace, "mcs-attest-approver", true},
		{"get", "", "configmaps", "", stock, "machine-approver-config", true},
		{"get", "apps", "deployments", "", stock, "machine-approver", true},
		{"get", "apps", "deployments", "", stock, "machine-approver-capi", true},
		{"get", "", "configmaps", "", managed, "csr-controller-ca", true},
		{"get", "config.openshift.io", "networks", "", "", "cluster", true},
		{"get", "network.openshift.io", "hostsubnets", "", "", "n", true},

		{"create", certificates, csr, "", "", "", false},
		{"update", certificates, csr, "", "", "", false},
		{"delete", certificates, csr, "", "", "", false},
		{"update", certificates, csr, "status", "", "", false},
		{"patch", certificates, csr, "approval", "", "", false},
		{"approve", certificates, "signers", "", "", "kubernetes.io/kube-apiserver-client", false},
		{"approve", certificates, "signers", "", "", "kubernetes.io/legacy-unknown", false},
		{"approve", certificates, "signers", "", "", "", false},
		{"sign", certificates, "signers", "", "", "kubernetes.io/kubelet-serving", false},
		{"update", "", "nodes", "", "", "n", false},
		{"get", "", "nodes", "proxy", "", "n", false},
		{"update", "", "configmaps", "", Namespace, "mcs-attest-approver", false},
		{"update", "", "configmaps", "", stock, "machine-approver-config", false},
		{"list", "", "configmaps", "", stock, "", false},
		{"update", "apps", "deployments", "", stock, "machine-approver", false},
		{"patch", "apps", "deployments", "scale", stock, "machine-approver", false},
		{"update", "", "configmaps", "", managed, "csr-controller-ca", false},
		{"get", "", "configmaps", "", managed, "another", false},
		{"update", "config.openshift.io", "networks", "", "", "cluster", false},
		{"list", "network.openshift.io", "hostsubnets", "", "", "", false},
	} {
		asked := func() bool { return w.may(a.verb, a.group, a.resource, a.sub, a.namespace, a.name) == a.want }
		if a.want && !until(asked) || !a.want && !asked() {
			t.Errorf("%s %s/%s.%s %s/%s: %v", a.verb, a.resource, a.sub, a.group, a.namespace, a.name, !a.want)
		}
	}
}

// applyComponent applies the objects of a component, which have these names, and the accounts that they name.
// It deletes the objects at the end of the test.
func applyComponent(t *testing.T, c *cluster.Cluster, objects []*unstructured.Unstructured, want int, names ...string) {
	t.Helper()
	c.KubectlApply(t, Prerequisites(objects))
	n := 0
	for _, o := range objects {
		own := slices.Contains(names, o.GetName())
		if !own && o.GetKind() != "ServiceAccount" {
			continue
		}
		raw, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		c.KubectlApply(t, string(raw))
		if !own {
			continue
		}
		n++
		args := []string{"delete", o.GetKind(), o.GetName()}
		if o.GetNamespace() != "" {
			args = append(args, "-n", o.GetNamespace())
		}
		t.Cleanup(func() { c.Kubectl(t, args...) })
	}
	if n != want {
		t.Errorf("the component has %d objects, want %d", n, want)
	}
}
