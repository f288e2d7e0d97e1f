// SPDX-License-Identifier: Apache-2.0

// Package join follows a machine to the end: it attests, and its kubelet becomes the Node of its Machine and of no
// other Machine. Package rendered does the same with a bootstrap credential of the machine's own.
package join

import (
	"slices"
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

// installed returns a cluster whose verifiers are in front of a Machine Config Server, create
// credentials, and approve requests.
func installed(t *testing.T, r *rig.Rig, files map[string]string) *replicas.Set {
	t.Helper()
	c := cluster.Start(t, replicas.Controllers())
	c.InstallOpenShift(t)
	s := replicas.Start(t, r, c, replicas.Config{
		Replicas: 2, Policy: policy,
		Components: []string{"credential", "approver"},
		Settings:   map[string]any{"credential": map[string]any{}, "approver": map[string]any{}},
	})
	shared := s.SharedToken()
	files["/etc/rig-tries/shared/kubeconfig"] = s.Kubeconfig(shared)
	s.MCS.Set("worker", s.NodeConfig(shared, files))
	return s
}

// machine creates a Machine that the machine-api has provisioned, with its TPM.
func machine(s *replicas.Set, r *rig.Rig, name string) (uid string, tpm *rig.TPM) {
	uid = s.Machine(name, "worker")
	s.Provisioned(name, name)
	tpm = r.NewTPM()
	s.Enroll(name, tpm)
	return uid, tpm
}

// Root on an attested machine has the machine's credential, and the shared one from an older
// config. It requests its own identity with the shared one, a neighbor's with its own, and, after a
// quarantine, its own with its own.
func TestAttack_T54_CredentialsOfAMachine(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	s := installed(t, r, map[string]string{
		"/etc/rig-tries/shared/node":   "worker-0",
		"/etc/rig-tries/neighbor/node": "worker-1",
	})
	uid, tpm := machine(s, r, "worker-0")
	neighbor, _ := machine(s, r, "worker-1")
	kubelet := s.Kubelet("worker-0")
	kubelet.Held = true
	node := r.Boot(rig.VM{TPM: tpm, Pointer: s.Pointer("worker"), Kubelet: kubelet})
	rec := s.WaitPhase(uid, "Fetched")
	own := func(c replicas.CSR) bool {
		return slices.ContainsFunc(rec.Status.Credentials,
			func(one replicas.Credential) bool { return one.ID == c.Credential() })
	}

	// The credential proved one identity, and the request is for another one.
	denied := s.WaitCSR(replicas.ClientSigner, "denied", func(c replicas.CSR) bool { return own(c) && c.Is("Denied") })
	if why := denied.Status.Conditions[0]; !strings.Contains(why.Message, "CSROtherMachine") {
		t.Errorf("denied: %+v", why)
	}
	// Any machine may have the shared one, so the decision is left to a person.
	left := s.WaitCSR(replicas.ClientSigner, "with the shared credential", func(c replicas.CSR) bool { return !own(c) })
	if out := s.Explain(left.Metadata.Name, 1); !strings.Contains(out, "CSRCredential") {
		t.Errorf("the request with the shared credential:\n%s", out)
	}
	rec = s.WaitPhase(uid, "Fetched")
	if !rec.Is("CertificateRefused") {
		t.Errorf("the record does not mention it: %+v", rec.Status.Conditions)
	}
	if rec := s.Record(neighbor); rec != nil && len(rec.Status.History) > 0 {
		t.Errorf("the neighbor's record is %+v", rec.Status)
	}

	s.Attest("quarantine", "worker-0")
	stolen := s.TokenOf(node.Probe())
	for deadline := time.Now().Add(3 * time.Minute); s.Usable(stolen); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the credential still works after the quarantine")
		}
	}
	before := len(s.CSRs(replicas.ClientSigner))
	node.Release()
	node.WaitFor("^rig: kubelet: .*Unauthorized")
	if after := len(s.CSRs(replicas.ClientSigner)); after != before {
		t.Errorf("there are %d requests more", after-before)
	}

	for _, one := range s.CSRs(replicas.ClientSigner) {
		if one.Is("Approved") {
			t.Errorf("%+v was approved", one)
		}
	}
	if nodes := s.Cluster.Kubectl(t, "get", "nodes", "-o", "name"); nodes != "" {
		t.Errorf("there are Nodes: %s", nodes)
	}
	if again := s.CSRs(replicas.ClientSigner); slices.ContainsFunc(again, func(c replicas.CSR) bool {
		return c.Metadata.Name == left.Metadata.Name && len(c.Status.Conditions) > 0
	}) {
		t.Errorf("the request with the shared credential was decided: %+v", again)
	}
}
