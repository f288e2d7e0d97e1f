// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

var (
	console = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")
	yamlDoc = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
	blanks  = regexp.MustCompile(`\s+`)
	// What differs from one day to the next.
	passing = regexp.MustCompile(
		`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z|\b[0-9]{2}:[0-9]{2}:[0-9]{2}\b|\b[0-9]{4}-[0-9]{2}-[0-9]{2}\b|\b[0-9]+[smhd]\b`)
)

func normal(s string) string {
	return strings.TrimSpace(blanks.ReplaceAllString(passing.ReplaceAllString(s, "TIME"), " "))
}

// The pod of a rehearsal requires an SCC, which the user who creates the pod must be allowed to use. No test cluster
// has OpenShift's admission of pods.
func TestDocs_RoleOfTheCommandsMayUseTheSCCOfARehearsal(t *testing.T) {
	raw, err := os.ReadFile("../../../docs/kubectl-plugin.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("rehearse/pod.go")
	if err != nil {
		t.Fatal(err)
	}
	scc := regexp.MustCompile(`"openshift.io/required-scc": "([a-z]+)"`).FindSubmatch(source)
	var role rbacv1.ClusterRole
	if err := yaml.Unmarshal(yamlDoc.FindSubmatch(raw)[1], &role); err != nil || scc == nil {
		t.Fatalf("%v, %q", err, scc)
	}
	if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, "securitycontextconstraints") && slices.Contains(r.Verbs, "use") &&
			slices.Equal(r.ResourceNames, []string{string(scc[1])})
	}) {
		t.Errorf("the role does not allow the use of the SCC %s", scc[1])
	}
}

// Every command of docs/kubectl-plugin.md runs, in the order of the page, with the
// permissions that the page gives, and prints the lines that the page shows.
func TestDocs_PluginCommandsPrintWhatThePageShows(t *testing.T) {
	raw, err := os.ReadFile("../../../docs/kubectl-plugin.md")
	if err != nil {
		t.Fatal(err)
	}
	approver, err := os.ReadFile("../../../docs/approver.md")
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.Start(t)
	c.InstallOpenShift(t)
	c.InstallOwn(t)
	role := yamlDoc.FindSubmatch(raw)
	if role == nil {
		t.Fatal("the page has no ClusterRole")
	}
	c.KubectlApply(t, string(role[1])+"---\n"+explainRole(t, approver)+`---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: explain}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: mcs-attest-csr-explain}
subjects: [{kind: ServiceAccount, name: operator, namespace: mcs-attest}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bootstrapper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-bootstrapper"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "`+bootstrapper+`"}]
---
apiVersion: v1
kind: Namespace
metadata: {name: mcs-attest}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: operator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: mcs-attest-operator}
subjects: [{kind: ServiceAccount, name: operator, namespace: mcs-attest}]
---
apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata: {name: worker}
spec: {pools: [worker], evidence: [{all: [tpm2]}, {all: [provisioning-token]}], provisioningTokenAlone: true}
`)
	d := client(t, c)
	available(t, d)
	f := fixture{d: d, namespace: "openshift-machine-api", own: "mcs-attest"}
	for i, m := range []struct{ node, phase, reason string }{{"node-0", "Joined", ""},
		{"", "Denied", "EKNotEnrolled"}, {}} {
		name := fmt.Sprintf("worker-%d", i)
		uid, err := f.machine(name, m.node)
		if err == nil && m.phase != "" {
			err = f.record(name, uid, m.phase, m.reason)
		}
		if err == nil && m.phase == "Denied" {
			_, err = f.put(events, fmt.Sprintf("apiVersion: v1\nkind: Event\nmetadata: {name: %[1]s.1, namespace: "+
				"openshift-machine-api}\ninvolvedObject: {kind: Machine, namespace: openshift-machine-api, name: %[1]s, uid: "+
				"%[2]s}\nreason: Denied\nmessage: EKNotEnrolled\n", name, uid))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := f.waiting("2c87d5a92a9a6ed6",
		"2c87d5a92a9a6ed68bf6b23b0d53cfeb74cef1d3c4d8284f2edc8a18ae8df7a0"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run(t, nil, "mcs-attest-verifier", "init", filepath.Join(dir, "w"), "--origin", "https://api-int.test:22623")
	c.Kubectl(t, "create", "secret", "generic", "mcs-attest-keys", "-n", "mcs-attest", "--from-file="+
		filepath.Join(dir, "w", "keys", "token.json"), "--from-file="+filepath.Join(dir, "w", "keys", "seal.json"))
	c.Kubectl(t, "create", "configmap", "mcs-attest-config", "-n", "mcs-attest",
		"--from-literal=mcs-attest.yaml={origins: ['https://api-int.test:22623'], kubernetes: {}}")
	if err := os.WriteFile(filepath.Join(dir, "worker-1.yaml"), []byte("ekSHA256: ["+strings.Repeat("b",
		64)+"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pointer, err := os.ReadFile(filepath.Join(dir, "w", "pointers", "worker.ign"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "worker.ign"), pointer, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	// A request with a credential that is on no record, and certificates that the
	// verifier keeps.
	asks(t, c, "csr-8vnps", "worker-0", "JTI=nobodys")
	admin, err := os.ReadFile(c.Kubeconfig("admin"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "admin.kubeconfig"), admin, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	run(t, nil, "kubectl-attest", "certs", "init", "--kubeconfig", c.Kubeconfig("admin"))
	// "oc attest" is oc's way to call oc-attest; there need be no oc here.
	if err := os.WriteFile(filepath.Join(dir, "oc"), []byte("#!/bin/sh\nshift\nexec oc-attest \"$@\"\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+path(t, c), "HOME="+dir,
		"KUBECONFIG="+c.Kubeconfig("system:serviceaccount:mcs-attest:operator"))

	ran := map[string]bool{}
	for _, block := range console.FindAllSubmatch(raw, -1) {
		for _, part := range strings.Split("\n"+string(block[1]), "\n$ ")[1:] {
			line, want, _ := strings.Cut(part, "\n")
			cmd := exec.Command("sh", "-c", line)
			cmd.Dir, cmd.Env = dir, env
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("$ %s\n%v\n%s", line, err, out)
				continue
			}
			got := normal(string(out))
			for _, w := range strings.Split(strings.TrimSpace(want), "\n") {
				if !strings.Contains(got, normal(w)) {
					t.Errorf("$ %s\nprinted\n%s\nwithout %q", line, out, w)
				}
			}
			ran[strings.Join(strings.Fields(line)[1:3], " ")] = true
		}
	}
	help, _ := run(t, nil, "kubectl-attest", "--help")
	for _, command := range regexp.MustCompile(`(?m)^  ([a-z-]+) +[A-Z]`).FindAllStringSubmatch(help, -1) {
		// rehearse needs a kubelet: rehearse_test.go.
		if name := command[1]; !slices.Contains([]string{"help", "completion", "rehearse"}, name) && !ran["attest "+name] {
			t.Errorf("the page has no example of %q", name)
		}
	}
}
