// SPDX-License-Identifier: Apache-2.0

// Command demo-cluster demonstrates a cluster: a real Kubernetes API with OpenShift's Machines,
// three verifiers behind a load balancer, and one virtual machine. The machine attests and is
// provisioned, and its kubelet becomes the Node of its Machine, while one verifier is killed. The
// demo prints the events as they happen, each line with its source.
//
// Everything is real except for the hardware, the container runtime, which runs no containers, and
// the Machine Config Server, which answers like the real one. `make demo-cluster` runs it.
package main

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"

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
	s.Say("you", "$ kubectl apply -k my-cluster    # overlays/openshift, components/credential, components/approver")
	s.Say("you", "$ kubectl create -f deploy/policies/audit.yaml    # every pool: Audit")
	s.Say("you", "$ kubectl apply -f policy-workers.yaml    # pool worker: Enforce")
	var last atomic.Int32
	installed := replicas.Start(s, r, c, replicas.Config{
		Policy: policy, Components: []string{"credential", "approver"},
		Settings: map[string]any{"credential": map[string]any{}, "approver": map[string]any{}},
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

	s.Rule("an administrator approves it for its Machine")
	show(s, installed, "attest", "approve", id, "--machine", "worker-0")
	node.WaitFor("^rig: provisioned ")

	s.Rule("its kubelet requests a certificate with the machine's own credential")
	installed.WaitNode("worker-0")
	installed.Linked("worker-0", "worker-0")
	node.WaitFor("^rig: kubelet has its server certificate")
	installed.Cluster.Kubectl(s, "wait", "--for=condition=Ready", "--timeout=2m", "node/worker-0")
	show(s, installed, "get", "csr")
	show(s, installed, "get", "nodes", "-o", "wide")
	installed.WaitPhase(uid, "Joined")
	installed.WaitEvents(uid, "Attested", "Fetched", "Joined")
	node.Kill()
	if got := node.ReadFile("/etc/provisioned"); got != content {
		s.Fatalf("the disk holds %q", got)
	}

	s.Rule("the cluster's record of it")
	show(s, installed, "attest", "status")
	show(s, installed, "-n", replicas.Machines, "get", "machineattestations")
	show(s, installed, "-n", replicas.Machines, "events", "--for", "machine.machine.openshift.io/worker-0")
}

// show runs a kubectl command and prints its output.
func show(s *stage.Stage, installed *replicas.Set, args ...string) {
	s.Say("you", "$ kubectl %s", strings.Join(args, " "))
	s.Lines("kubectl", installed.Cluster.Kubectl(s, args...))
}
