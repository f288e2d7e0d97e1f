// SPDX-License-Identifier: Apache-2.0

// Package pods runs the verifier as the shipped manifests do: a DaemonSet and a Deployment, in pods of a
// control-plane node with a real kubelet, containerd and runc. Then another machine attests to them.
package pods

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/testvm/replicas"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

const policy = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: workers
spec:
  pools: [worker]
  tpm2:
    endorsements: [enrolled]
`

// front is the port of the DaemonSet's pods.
const front = 22643

// controllers are those of kube-controller-manager that pods need.
func controllers() cluster.Option {
	return cluster.Controllers("daemonset-controller", "deployment-controller", "replicaset-controller",
		"serviceaccount-controller", "root-ca-certificate-publisher-controller", "node-lifecycle-controller")
}

func TestManifestsRunAsPodsAndAdmitAMachine(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	c := cluster.Start(t, replicas.Controllers(), controllers(), cluster.Kubelets())
	c.InstallOpenShift(t)
	s := replicas.Start(t, r, c, replicas.Config{
		Replicas: 1, Policy: policy, Components: []string{"credential", "approver"},
		Settings: map[string]any{"credential": map[string]any{}, "approver": map[string]any{}, "upstreamName": rig.Host},
	})
	s.MCS.Set("worker", s.NodeConfig(s.SharedToken(), nil))
	machine := func(name string) (uid string, tpm *rig.TPM) {
		uid, tpm = s.Machine(name, "worker"), r.NewTPM()
		s.Provisioned(name, name)
		s.Enroll(name, tpm)
		return uid, tpm
	}

	// The first node, whose pods are the verifier from then on.
	_, tpm := machine("first")
	kubelet := s.PodKubelet(r, "first")
	kubelet.Ports = []int{front}
	node := r.Boot(rig.VM{Name: "first", TPM: tpm, Pointer: s.Pointer("worker"), Kubelet: kubelet})
	c.Reach("first", node.Address(10250))
	s.WaitNode("first")
	s.Linked("first", "first")
	origin := "https://" + rig.Host + node.Address(front)[strings.LastIndex(node.Address(front), ":"):]
	configure(t, c, func(config string) string {
		config = strings.ReplaceAll(config, s.Origin(), origin)
		return strings.ReplaceAll(config, s.MCS.URL(), fmt.Sprintf("https://%s:%d", rig.Host, s.MCS.Port()))
	})
	c.Kubectl(t, "-n", replicas.Own, "scale", "deployment/mcs-attest-controller", "--replicas=1")
	c.Kubectl(t, "label", "node", "first", "node-role.kubernetes.io/control-plane=")
	for _, workload := range []string{"daemonset/mcs-attest-verifier", "deployment/mcs-attest-controller"} {
		rollout(t, c, workload)
	}
	s.Verifiers[0].Stop()

	uid, tpm := machine("second")
	s.MCS.Set("worker", rig.Config("of the pods"))
	second := r.Boot(rig.VM{Name: "second", TPM: tpm, Pointer: rig.PointerTo(origin, "worker", s.MCS.CA())})
	second.WantProvisioned()
	s.WaitPhase(uid, "Fetched")
	s.WaitEvents(uid, "Attested", "Fetched")
	for _, p := range pods(t, c) {
		for _, one := range p.Status.ContainerStatuses {
			t.Logf("%s was started %d times", p.Metadata.Name, one.RestartCount+1)
		}
		log, err := c.KubectlAs("admin", "", "-n", replicas.Own, "logs", p.Metadata.Name)
		for deadline := time.Now().Add(rig.BootTimeout); err != nil; time.Sleep(5 * time.Second) {
			if time.Now().After(deadline) {
				t.Fatalf("%v", err)
			}
			// On a busy host, the kubelet is slower than the API server waits for it.
			log, err = c.KubectlAs("admin", "", "-n", replicas.Own, "logs", p.Metadata.Name)
		}
		if rig.HasToken(log) {
			t.Errorf("the log of %s has a token", p.Metadata.Name)
		}
	}
}

// configure changes the configuration as an administrator does.
func configure(t *testing.T, c *cluster.Cluster, change func(string) string) {
	t.Helper()
	config := change(c.Kubectl(t, "-n", replicas.Own, "get", "configmap", "mcs-attest-config",
		"-o", `jsonpath={.data.mcs-attest\.yaml}`))
	patch, err := json.Marshal(map[string]any{"data": map[string]any{"mcs-attest.yaml": config}})
	if err != nil {
		t.Fatal(err)
	}
	c.Kubectl(t, "-n", replicas.Own, "patch", "configmap", "mcs-attest-config", "--type=merge", "-p", string(patch))
}

// pod is a pod of the verifier.
type pod struct {
	Metadata struct{ Name string }
	Spec     struct{ NodeName string }
	Status   struct {
		Phase             string
		ContainerStatuses []struct {
			RestartCount int
			State        map[string]struct{ Reason, Message string }
		}
	}
}

func pods(t *testing.T, c *cluster.Cluster) []pod {
	t.Helper()
	var list struct{ Items []pod }
	out := c.Kubectl(t, "-n", replicas.Own, "get", "pods", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return list.Items
}

// rollout waits until the pods of a workload are ready. No scheduler runs here, and there is one Node.
func rollout(t *testing.T, c *cluster.Cluster, workload string) {
	t.Helper()
	for deadline := time.Now().Add(rig.BootTimeout); ; time.Sleep(5 * time.Second) {
		all := pods(t, c)
		for _, p := range all {
			if p.Spec.NodeName == "" {
				binding := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Binding", "metadata": {"name": %q}, `+
					`"target": {"kind": "Node", "name": "first"}}`, p.Metadata.Name)
				out, err := c.KubectlAs("admin", binding, "create", "--raw",
					"/api/v1/namespaces/"+replicas.Own+"/pods/"+p.Metadata.Name+"/binding", "-f", "-")
				if err != nil {
					t.Fatalf("binding of %s: %v\n%s", p.Metadata.Name, err, out)
				}
			}
		}
		out, err := c.KubectlAs("admin", "", "-n", replicas.Own, "rollout", "status", workload, "--timeout=2s")
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v\n%s\n%+v\n%s", workload, err, out, all,
				c.Kubectl(t, "-n", replicas.Own, "get", "events"))
		}
	}
}
