// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/approver/approvertest"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/operator"
)

const bootstrapper = "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper"

// asks makes a request as the node bootstrapper, with a credential.
func asks(t *testing.T, c *cluster.Cluster, name, node, credential string) {
	t.Helper()
	as := rest.CopyConfig(c.Admin())
	as.Impersonate = rest.ImpersonationConfig{
		UserName: bootstrapper, Groups: []string{"system:serviceaccounts",
			"system:serviceaccounts:openshift-machine-config-operator"},
		Extra: map[string][]string{"authentication.kubernetes.io/credential-id": {credential}},
	}
	client, err := kubernetes.NewForConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	ask := approvertest.Client(t, node, approvertest.NewKey(t))
	ask.Name = name
	_, err = client.CertificatesV1().CertificateSigningRequests().Create(context.Background(), ask, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	admin := kubernetes.NewForConfigOrDie(c.Admin())
	t.Cleanup(func() {
		if err := admin.CertificatesV1().CertificateSigningRequests().Delete(context.Background(), name,
			metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// explainRole is the ClusterRole of docs/approver.md that csr explain needs.
func explainRole(t *testing.T, page []byte) string {
	t.Helper()
	for _, m := range yamlDoc.FindAllSubmatch(page, -1) {
		if strings.Contains(string(m[1]), "name: mcs-attest-csr-explain}") {
			return string(m[1])
		}
	}
	t.Fatal("docs/approver.md has no ClusterRole for csr explain")
	return ""
}

// What csr explain reads of a cluster is what the approver there decides by; and it
// may read no more than docs/approver.md gives it.
func TestRequestsOfACluster(t *testing.T) {
	c := installed(t)
	page, err := os.ReadFile("../../../docs/approver.md")
	if err != nil {
		t.Fatal(err)
	}
	c.KubectlApply(t, explainRole(t, page)+`---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: mcs-attest-csr-explain}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: mcs-attest-csr-explain}
subjects: [{kind: ServiceAccount, name: reader, namespace: csr-explained}]
---
apiVersion: v1
kind: Namespace
metadata: {name: csr-explained}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: csr-explained}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-bootstrapper"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "`+bootstrapper+`"}]
`)
	t.Cleanup(func() {
		admin := kubernetes.NewForConfigOrDie(c.Admin())
		for _, name := range []string{"csr-explained", "mcs-attest-csr-explain"} {
			if err := admin.RbacV1().ClusterRoleBindings().Delete(context.Background(), name,
				metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
		if err := admin.RbacV1().ClusterRoles().Delete(context.Background(), "mcs-attest-csr-explain",
			metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := admin.CoreV1().Namespaces().Delete(context.Background(), "csr-explained",
			metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	f := fixture{d: client(t, c), namespace: "csr-explained", own: "csr-explained"}
	var uids []string
	for _, name := range []string{"explained-0", "explained-1"} {
		o, err := f.put(machines, fmt.Sprintf(`
apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata: {name: %s, namespace: csr-explained}
spec: {}
status: {addresses: [{type: InternalDNS, address: %[1]s}]}
`, name))
		if err != nil {
			t.Fatal(err)
		}
		uids = append(uids, string(o.GetUID()))
	}
	_, err = f.put(attestations, fmt.Sprintf(`
apiVersion: mcs-attest.dev/v1alpha1
kind: MachineAttestation
metadata: {name: %s, namespace: csr-explained}
spec: {machineRef: {name: explained-0}}
status:
  machineUID: %[1]s
  phase: Fetched
  credentials: [{id: "JTI=explained", issued: %[2]q, expiry: %[3]q}]
`, uids[0], time.Now().UTC().Format(time.RFC3339), time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
	if err != nil {
		t.Fatal(err)
	}
	asks(t, c, "explained-own", "explained-0", "JTI=explained")
	asks(t, c, "explained-other", "explained-1", "JTI=explained")
	asks(t, c, "explained-shared", "explained-0", "JTI=nobodys")

	k, err := operator.OpenCluster(operator.ClusterOptions{Kubeconfig: c.Kubeconfig(
		"system:serviceaccount:csr-explained:reader"), Own: "csr-explained", Namespaces: []string{"csr-explained"},
		Now: time.Now, FieldManager: "test"})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []struct {
		name        string
		attestation config.Attestation
		outcome     approver.Outcome
		code        reason.Code
	}{
		{"explained-own", "", approver.Approve, 0},
		{"explained-other", "", approver.Deny, reason.CSROtherMachine},
		{"explained-shared", "", approver.Refuse, reason.CSRCredential},
		{"explained-shared", config.AttestationOff, approver.Approve, 0},
	} {
		t.Run(v.name+" "+string(v.attestation), func(t *testing.T) {
			r, err := k.Request(context.Background(), v.name, v.attestation)
			if err != nil {
				t.Fatal(err)
			}
			if r.Running {
				t.Error("there is no verifier, so no approver is configured")
			}
			d := approver.Decide(context.Background(), approver.FromCSR(r.CSR), r.Cluster, r.Rules, time.Now())
			if d.Outcome != v.outcome || v.code != 0 && (d.Denial == nil || d.Denial.Code != v.code) {
				t.Errorf("%s, %v; expected %s, %v\n%v", d.Outcome, d.Denial, v.outcome, v.code, d.Checks)
			}
		})
	}
	if _, err := k.Request(context.Background(), "explained-nobodys", ""); err == nil {
		t.Error("a request that does not exist was read")
	}
}
