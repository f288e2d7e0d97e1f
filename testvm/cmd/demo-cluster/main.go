// SPDX-License-Identifier: Apache-2.0

// Command demo-cluster demonstrates a cluster: a real Kubernetes API with OpenShift's Machines,
// three verifiers behind a load balancer, and one virtual machine. The machine attests and is
// provisioned, and its kubelet becomes the Node of its Machine, while one verifier is killed. Its
// config has no credential: the agent gets the node's certificate. A second machine gets a credential
// of its own instead. The demo prints the events as they happen, each line with its source.
//
// Everything is real except for the hardware, the container runtime, which runs no containers, and
// the Machine Config Server, which answers like the real one. `make demo-cluster` runs it.
package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/testvm/replicas"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
	"github.com/mcs-attest/mcs-attest/testvm/stage"
)

func main() { os.Exit(stage.Play("demo-cluster", story)) }

const content = "pull secret, kubeconfig, and all that a node needs"

// policy is for one pool. The policy of the installation covers all pools and denies no machine.
const policy = `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: workers
spec:
  pools: [worker]
  tpm2:
    endorsements: [enrolled, manufacturer]
`

// story is the script of the demo.
func story(s *stage.Stage) {
	r := rig.New(s)
	s.Say("demo", "a cluster: a machine must prove which Machine it is before it receives a config;")
	s.Say("demo",
		"three verifiers without state of their own check that, and it becomes only that Machine's Node")
	s.Rule("a Kubernetes API with OpenShift's Machines; the verifier is installed")
	c := cluster.Start(s, replicas.Controllers())
	c.InstallOpenShift(s)
	s.Say("you", "$ kubectl apply -k my-cluster    # overlays/openshift, and the components credential, approver and "+
		"node-certificate")
	s.Say("you", "$ cat mcs-attest.yaml    # credential: {mode: CertificateOrToken}, approver: {}")
	s.Say("you", "$ kubectl create -f deploy/policies/audit.yaml    # every pool: Audit")
	s.Say("you", "$ kubectl apply -f policy-workers.yaml    # pool worker: Enforce")
	var last atomic.Int32
	installed := replicas.Start(s, r, c, replicas.Config{
		Policy: policy, Components: []string{"credential", "approver", "node-certificate"},
		Settings: map[string]any{"credential": map[string]any{"mode": "CertificateOrToken"}, "approver": map[string]any{}},
		OnAudit: func(replica int, a rig.Audit) {
			last.Store(int32(replica))
			s.Audit(fmt.Sprintf("replica%d", replica), a)
		},
	})
	installed.MCS.Set("worker", installed.NodeConfig(installed.SharedToken(),
		map[string]string{"/etc/provisioned": content}))
	s.Say("demo", "three replicas are ready behind haproxy at %s", installed.Origin())

	s.Rule("a Machine is created and switched on")
	uid := installed.Machine("worker-0", "worker")
	installed.Provisioned("worker-0", "worker-0")
	show(s, installed, "-n", replicas.Machines, "get", "machines.machine.openshift.io")
	tpm := r.NewTPM()
	installed.EKRoots("rig", r.EKRoots())
	node := r.Boot(rig.VM{Name: "worker-0", TPM: tpm, Pointer: installed.Pointer("worker"),
		Kubelet: installed.Kubelet("worker-0"), OnLine: s.Console})
	id := installed.WaitPending()

	s.Rule("its TPM is genuine, but not assigned to a Machine; it waits")
	show(s, installed, "attest", "status")

	s.Rule("the replica that it asked is killed")
	killed := last.Load()
	s.Say("you", "$ kill -9 replica%d", killed)
	installed.Verifiers[killed].Kill()
	installed.WaitLeader(time.Now())
	s.Say("demo", "another replica answers in its place, and leads if it led")

	s.Rule("an administrator approves it for its Machine")
	show(s, installed, "attest", "approve", id, "--machine", "worker-0")
	node.WaitFor("^rig: provisioned ")

	s.Rule("its kubelet uses the certificate for the key that the machine attested")
	joined(s, installed, node, "worker-0")
	show(s, installed, "get", "csr")
	show(s, installed, "get", "nodes", "-o", "wide")
	installed.WaitPhase(uid, "Joined")
	installed.WaitEvents(uid, "Attested", "Certified", "Fetched", "Joined")
	node.Kill()
	s.Say("demo", "its kubeconfig has the token %q", installed.TokenOf(node.ReadFile("/etc/kubernetes/kubeconfig")))
	if got := node.ReadFile("/etc/provisioned"); got != content {
		s.Fatalf("the disk holds %q", got)
	}

	s.Rule("a machine whose pointer config cannot carry a certificate gets a credential of its own")
	installed.Machine("worker-1", "worker")
	installed.Provisioned("worker-1", "worker-1")
	other := r.NewTPM()
	installed.Enroll("worker-1", other)
	second := r.Boot(rig.VM{Name: "worker-1", TPM: other, Kubelet: installed.Kubelet("worker-1"), OnLine: s.Console,
		Pointer: bytes.Replace(installed.Pointer("worker"), []byte("{"), []byte(`{"storage":{"directories":[{"path":"`+
			pointer.NodePair+`"}]},`), 1)})
	joined(s, installed, second, "worker-1")
	second.Kill()
	show(s, installed, "get", "csr")

	s.Rule("the time from the attestation to the Node's condition Ready")
	s.Say("demo", "with the certificate: %v", took(s, installed, "worker-0"))
	s.Say("demo", "with a credential:    %v", took(s, installed, "worker-1"))

	s.Rule("the cluster's record of it")
	show(s, installed, "attest", "status")
	show(s, installed, "-n", replicas.Machines, "get", "machineattestations")
	show(s, installed, "-n", replicas.Machines, "events", "--for", "machine.machine.openshift.io/worker-0")
}

// joined waits until the machine is the Node of its Machine.
func joined(s *stage.Stage, installed *replicas.Set, node *rig.Node, name string) {
	installed.WaitNode(name)
	installed.Linked(name, name)
	node.WaitFor("^rig: kubelet has its server certificate")
	installed.Cluster.Kubectl(s, "wait", "--for=condition=Ready", "--timeout=2m", "node/"+name)
}

// took returns the time from the attestation of a machine until its Node was ready, in seconds.
func took(s *stage.Stage, installed *replicas.Set, name string) time.Duration {
	read := func(args ...string) time.Time {
		text := strings.TrimSpace(installed.Cluster.Kubectl(s, args...))
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			s.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
		}
		return at
	}
	uid := strings.TrimSpace(installed.Cluster.Kubectl(s, "-n", replicas.Machines, "get", "machines.machine.openshift.io",
		name, "-o", "jsonpath={.metadata.uid}"))
	attested := read("-n", replicas.Machines, "get", "machineattestations", "-o",
		`jsonpath={.items[?(@.status.machineUID=="`+uid+`")].status.lastAttested}`)
	ready := read("get", "node", name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].lastTransitionTime}`)
	return ready.Sub(attested)
}

// show runs a kubectl command and prints its output.
func show(s *stage.Stage, installed *replicas.Set, args ...string) {
	s.Say("you", "$ kubectl %s", strings.Join(args, " "))
	s.Lines("kubectl", installed.Cluster.Kubectl(s, args...))
}
