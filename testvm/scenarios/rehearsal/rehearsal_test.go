// SPDX-License-Identifier: Apache-2.0

// Package rehearsal rehearses the provisioning of a machine that became a Node: "kubectl attest rehearse"
// runs the agent in a privileged pod of that Node, with a real kubelet, containerd and runc.
package rehearsal

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/testvm/replicas"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// policy endorses TPMs in one way.
func policy(endorsement string) string {
	return `apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata:
  name: workers
spec:
  pools: [worker]
  tpm2:
    endorsements: [` + endorsement + `]
`
}

func TestRehearsalRunsInAPodOfTheNode(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	c := cluster.Start(t, replicas.Controllers(), cluster.Kubelets())
	c.InstallOpenShift(t)
	s := replicas.Start(t, r, c, replicas.Config{
		Replicas: 1, Policy: policy("enrolled"), Components: []string{"credential", "approver"},
		Settings: map[string]any{"credential": map[string]any{}, "approver": map[string]any{}},
	})
	s.MCS.Set("worker", s.NodeConfig(s.SharedToken(), nil))
	// The controller of ServiceAccounts does not run here.
	c.Kubectl(t, "-n", replicas.Own, "create", "serviceaccount", "default")
	uid, tpm := s.Machine("worker-0", "worker"), r.NewTPM()
	s.Provisioned("worker-0", "worker-0")
	s.Enroll("worker-0", tpm)

	node := r.Boot(rig.VM{TPM: tpm, Pointer: s.Pointer("worker"), Kubelet: s.PodKubelet(r, "worker-0")})
	c.Reach("worker-0", node.Address(10250))
	s.WaitNode("worker-0")
	s.Linked("worker-0", "worker-0")
	s.WaitPhase(uid, "Joined")
	c.Kubectl(t, "wait", "--for=condition=Ready", "node/worker-0", "--timeout="+rig.BootTimeout.String())

	rehearse := func() (out string, passed bool) {
		t.Helper()
		out, err := c.KubectlAs("admin", "", "attest", "rehearse", "worker-0", "--timeout", "20m")
		t.Logf("%s", out)
		return out, err == nil
	}
	if out, passed := rehearse(); !passed || !strings.Contains(out, "pass") {
		t.Errorf("the rehearsal failed:\n%s", out)
	}
	if rec := s.Record(uid); !rec.Is("Rehearsed") || rec.Status.Phase != "Joined" || rec.Status.Token != nil {
		t.Errorf("the record is %+v", rec.Status)
	}
	// The administrator removes what endorsed this TPM.
	c.KubectlApply(t, policy("manufacturer"))
	if out, passed := rehearse(); passed || !strings.Contains(out, "EKUntrusted") {
		t.Errorf("no root endorses this TPM, and the rehearsal says:\n%s", out)
	}
	if rec := s.Record(uid); rec.Is("Rehearsed") || rec.Status.Phase != "Joined" {
		t.Errorf("the record is %+v", rec.Status)
	}
	if pods := c.Kubectl(t, "-n", replicas.Own, "get", "pods", "-o", "name"); pods != "" {
		t.Errorf("there are still %s", pods)
	}

	// No log and no container of the Node has the ticket.
	node.Kill()
	disk, err := os.ReadFile(node.Disk())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(disk, []byte("mcs-attest-rehearsal-")) {
		t.Error("the disk has no trace of the pod: the test proves nothing")
	}
	if bytes.Contains(disk, []byte(`{"ticket"`)) {
		t.Error("the disk has the ticket")
	}
}
