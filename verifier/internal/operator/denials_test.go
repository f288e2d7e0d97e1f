// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// A machine that is not enrolled is no object of the API. It is in the audit logs of the verifiers.
func TestCluster_ShowsMachinesThatAreNotEnrolled(t *testing.T) {
	c := cluster.Start(t)
	c.InstallOpenShift(t)
	c.InstallOwn(t)
	c.KubectlApply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: mcs-attest}\n---\napiVersion: v1\nkind: "+
		"ServiceAccount\n"+
		"metadata: {name: default, namespace: mcs-attest}\n")
	f := fixture{d: client(t, c), namespace: "openshift-machine-api", own: "mcs-attest"}
	if _, err := f.machine("worker-0", ""); err != nil {
		t.Fatal(err)
	}
	_, err := f.put(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, `
apiVersion: v1
kind: Pod
metadata: {name: verifier-0, namespace: mcs-attest, labels: {app.kubernetes.io/name: mcs-attest-verifier}}
spec: {containers: [{name: verifier, image: registry.test/mcs-attest}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	// Its log cannot be read, because its Node is gone.
	_, err = f.put(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, `
apiVersion: v1
kind: Pod
metadata: {name: verifier-1, namespace: mcs-attest, labels: {app.kubernetes.io/name: mcs-attest-verifier}}
spec: {nodeName: gone, containers: [{name: verifier, image: registry.test/mcs-attest}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	line := func(ago time.Duration, id string) string {
		return fmt.Sprintf(`{"time":%q,"level":"WARN","msg":"decision","log":"audit","event":"attest","outcome":"denied",`+
			`"correlation_id":%q,"source":"10.0.2.15","pool":"worker","reason":"EKNotEnrolled","temporary":true,`+
			`"detail":"EKNotEnrolled: EK %s","ek":%[3]q}`+"\n", time.Now().Add(-ago).Format(time.RFC3339Nano), id, ek)
	}
	env := []string{"KUBECONFIG=" + inFront(t, c, "text of another kind\n"+line(time.Minute, "b871e0c8ece82eb1")+
		line(time.Second, "b871e0c8ece82eb2"))}
	command := "kubectl attest enroll --ek-sha256 " + ek + " --machine NAME"
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"status"}, []string{"openshift-machine-api/worker-0", "(unknown " + ek[:16] + ")",
			"\n  " + command + "\n", "may be missing: the log of pod verifier-1: "}},
		{[]string{"explain", "b871e0c8ece82eb1"}, []string{"EKNotEnrolled: ", "2 times", "from            10.0.2.15",
			command}},
		{[]string{"explain", strings.ToUpper(ek)}, []string{"EKNotEnrolled: ", "b871e0c8ece82eb2", command}},
	} {
		out, _ := run(t, env, "kubectl-attest", tt.args...)
		for _, w := range tt.want {
			if !strings.Contains(out, w) {
				t.Errorf("%q printed\n%s\nwithout %q", tt.args, out, w)
			}
		}
	}

	// An administrator who may not read logs has the rest of status, and explain returns the reason.
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	c.KubectlApply(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules:
- {apiGroups: [mcs-attest.dev, machine.openshift.io], resources: ["*"], verbs: [get, list]}
- {apiGroups: [""], resources: [namespaces], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: mcs-attest}]
`)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"status"}, "(machines that are not enrolled may be missing: you may not list pods"},
		{[]string{"explain", "b871e0c8ece82eb1"}, "hint: an administrator grants the RBAC verb"},
	} {
		cmd := exec.Command(filepath.Join(dir, "kubectl-attest"), tt.args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig("system:serviceaccount:mcs-attest:reader"))
		if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), tt.want) {
			t.Errorf("%q printed\n%s\nwithout %q", tt.args, out, tt.want)
		}
	}
}
