// SPDX-License-Identifier: Apache-2.0

package csr_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/deploy"
	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

// rules are the roles of a component, and the base's: what is no role stays away.
func rules(t *testing.T, component string) string {
	t.Helper()
	bin, err := binaries.Kubernetes(t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(deploy.Dir(t))); err != nil {
		t.Fatal(err)
	}
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\ncomponents: [deploy/components/" +
		component + "]\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(bin, "kubectl"), "kustomize", dir).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Logf("%s", exit.Stderr)
		}
		t.Fatal(err)
	}
	base, err := os.ReadFile(filepath.Join(deploy.Dir(t), "base", "controller-rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(out) + "\n---\n" + string(base)
}

// The account that the component makes is enough for all that is done here, whether
// the cluster has OpenShift's namespaces or not.
func TestJoin_AccountOfTheComponentSuffices(t *testing.T) {
	for component, namespaces := range map[string][]string{
		"approver":            {"openshift-cluster-machine-approver"},
		"approver-kubernetes": nil,
	} {
		t.Run(component, func(t *testing.T) {
			c := cluster.Start(t, cluster.Controllers("certificatesigningrequest-signing-controller"))
			c.InstallOpenShift(t)
			c.InstallOwn(t)
			s := siteIn(t, c)
			for _, name := range append([]string{deploy.Namespace}, namespaces...) {
				_, err := s.admin.CoreV1().Namespaces().Create(s.context(),
					&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				s.ok(err)
			}
			c.KubectlApply(t, rules(t, component))
			c.KubectlApply(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: mcs-attest-controller-machines, namespace: `+s.namespace+`}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: mcs-attest-controller-machines}
subjects: [{kind: ServiceAccount, name: mcs-attest-controller, namespace: mcs-attest}]
`)
			api := c.ServiceAccount(t, deploy.Namespace, deploy.Controller)
			s.api = api
			live, err := records.NewClient(api)
			s.ok(err)
			s.records = records.New(records.Options{
				Client: live, Namespace: deploy.Namespace, Machine: s.known.ByUID, Log: s.options.Log, Timeout: limit,
			})
			s.options.Records = s.records
			// The last is one that this cluster does not have.
			s.options.Namespaces = []string{s.namespace, deploy.Namespace, deploy.Namespace, "openshift-cluster-api"}
			s.options.Config.ConfigMap = deploy.Namespace + "/mcs-attest-approver"
			s.options.Config.StockConfigMap = "openshift-cluster-machine-approver/machine-approver-config"
			s.options.Config.KubeletCA = "openshift-config-managed/csr-controller-ca"
			if namespaces != nil {
				ca, err := s.admin.CoreV1().ConfigMaps(s.namespace).Get(s.context(), "kubelet-ca", metav1.GetOptions{})
				s.ok(err)
				ca.ObjectMeta = metav1.ObjectMeta{Name: "csr-controller-ca"}
				_, err = s.admin.CoreV1().ConfigMaps("openshift-config-managed").Create(s.context(), ca, metav1.CreateOptions{})
				s.ok(err)
				s.makeStock(1)
			}
			s.run()
			m := s.machine("w-0", address("InternalIP", "127.0.0.1"))
			k := s.attested(m).join()
			s.joins(m)
			first := s.signed(k.askServing([]string{k.node}, []net.IP{loopback}))
			k.kubeletAt(first, k.key)
			s.signed(k.askServing([]string{k.node}, []net.IP{loopback}))
			s.left(k.askServing([]string{"api.example.com"}, nil), "retry", "CSRAddress")
			thief, _ := s.bootstrap()
			thief.node = k.node
			s.left(thief.ask(), "refuse", "CSRCredential")
			if namespaces != nil {
				s.finds("StockApproverActive")
				return
			}
			s.finds("")
		})
	}
}
