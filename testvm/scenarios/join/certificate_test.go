// SPDX-License-Identifier: Apache-2.0

package join

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/testvm/replicas"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// The machine gets its node's certificate for the key that it attested, before it fetches its config.
// Neither the config nor the root disk has a credential of the bootstrapper's kind.
func TestMachineBecomesItsNodeWithItsAttestedKey(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	c := cluster.Start(t, replicas.Controllers())
	c.InstallOpenShift(t)
	s := replicas.Start(t, r, c, replicas.Config{
		Replicas: 2, Policy: policy,
		Components: []string{"credential", "approver", "node-certificate"},
		Settings: map[string]any{"credential": map[string]any{"mode": "Certificate"},
			"approver": map[string]any{}},
	})
	s.MCS.Set("worker", s.NodeConfig(s.SharedToken(), nil))
	uid, tpm := machine(s, r, "worker-0")

	node := r.Boot(rig.VM{TPM: tpm, Pointer: s.Pointer("worker"), Kubelet: s.Kubelet("worker-0")})
	s.WaitNode("worker-0")
	s.Linked("worker-0", "worker-0")
	node.WaitFor("^rig: kubelet has its server certificate")
	rec := s.WaitPhase(uid, "Joined")
	s.WaitEvents(uid, "Attested", "Certified", "Fetched", "Joined")
	node.Kill()

	// T73: a disk image of this first boot has no bearer token in any block.
	node.WantNoTokensLeft()
	kubeconfig := node.ReadFile("/etc/kubernetes/kubeconfig")
	if !strings.Contains(kubeconfig, `token: ""`) {
		t.Errorf("the kubeconfig has a credential, %d bytes", len(kubeconfig))
	}
	if len(rec.Status.Credentials) != 0 {
		t.Errorf("the machine has bootstrap credentials: %+v", rec.Status.Credentials)
	}
	requests := s.CSRs(replicas.ClientSigner)
	if len(requests) != 1 || !requests[0].Is("Approved") ||
		!strings.HasPrefix(requests[0].Metadata.Name, "mcs-attest-"+uid) ||
		rec.Status.Certificate == nil || rec.Status.Certificate.Request != requests[0].Metadata.Name {
		t.Errorf("the requests are %+v, the record has %+v", requests, rec.Status.Certificate)
	}
}
