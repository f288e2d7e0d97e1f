// SPDX-License-Identifier: Apache-2.0

// Package join follows a machine to the end: it attests, its config contains its own credential,
// and with that its kubelet becomes the Node of its Machine and of no other Machine.
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
func installed(t *testing.T, r *rig.Rig, files map[string]string) (s *replicas.Set, shared string) {
	t.Helper()
	c := cluster.Start(t, replicas.Controllers())
	c.InstallOpenShift(t)
	s = replicas.Start(t, r, c, replicas.Config{
		Replicas: 2, Policy: policy,
		Components: []string{"credential", "approver"},
		Settings:   map[string]any{"credential": map[string]any{}, "approver": map[string]any{}},
	})
	shared = s.SharedToken()
	files["/etc/rig-tries/shared/kubeconfig"] = s.Kubeconfig(shared)
	s.MCS.Set("worker", s.NodeConfig(shared, files))
	return s, shared
}

// machine creates a Machine that the machine-api has provisioned, with its TPM.
func machine(s *replicas.Set, r *rig.Rig, name string) (uid string, tpm *rig.TPM) {
	uid = s.Machine(name, "worker")
	s.Provisioned(name, name)
	tpm = r.NewTPM()
	s.Enroll(name, tpm)
	return uid, tpm
}

func TestMachineBecomesItsNodeWithItsOwnCredential(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	s, shared := installed(t, r, map[string]string{})
	uid, tpm := machine(s, r, "worker-0")

	node := r.Boot(rig.VM{TPM: tpm, Pointer: s.Pointer("worker"), Kubelet: s.Kubelet("worker-0")})
	s.WaitNode("worker-0")
	s.Linked("worker-0", "worker-0")
	node.WaitFor("^rig: kubelet has its server certificate")
	rec := s.WaitPhase(uid, "Joined")
	s.WaitEvents(uid, "Attested", "Fetched", "Joined")
	node.Kill()

	// The config is the upstream's, except for one token.
	for path, want := range s.NodeFiles(nil) {
		if got := node.ReadFile(path); got != want {
			t.Errorf("%s holds %q", path, got)
		}
	}
	kubeconfig := node.ReadFile("/etc/kubernetes/kubeconfig")
	stolen := s.TokenOf(kubeconfig)
	if strings.ReplaceAll(kubeconfig, `"`, "") != s.Kubeconfig(stolen) {
		t.Errorf("the kubeconfig is not the upstream's but for the token, %d bytes", len(kubeconfig))
	}
	if stolen == shared {
		t.Error("the machine has received the shared token")
	}

	// Its request names the credential in the record.
	csr := s.WaitCSR(replicas.ClientSigner, "of worker-0", func(c replicas.CSR) bool { return c.Is("Approved") })
	if i := slices.IndexFunc(rec.Status.Credentials,
		func(c replicas.Credential) bool { return c.ID == csr.Credential() }); i < 0 {
		t.Errorf("the request was made with %s, the record has %+v", csr.Credential(), rec.Status.Credentials)
	}
	if c := rec.Status.Certificate; c == nil || c.Node != "worker-0" || c.Request != csr.Metadata.Name ||
		c.CredentialID != csr.Credential() {
		t.Errorf("the record's certificate is %+v, the request %s", c, csr.Metadata.Name)
	}
	for _, signer := range []string{replicas.ClientSigner, replicas.ServingSigner} {
		for _, one := range s.CSRs(signer) {
			if !one.Is("Approved") || one.Status.Conditions[0].Reason != "mcs-attest" || len(one.Status.Certificate) == 0 {
				t.Errorf("%s is %+v", one.Metadata.Name, one.Status.Conditions)
			}
		}
	}
	if status := s.Attest("status"); !strings.Contains(status, "worker-0") || !strings.Contains(status, "Joined") {
		t.Errorf("status:\n%s", status)
	}

	// The credential is deleted with its Machine.
	if !s.Usable(stolen) {
		t.Error("the credential does not work")
	}
	s.Cluster.Kubectl(t, "-n", replicas.Machines, "delete", "machines.machine.openshift.io", "worker-0")
	for deadline := time.Now().Add(3 * time.Minute); s.Usable(stolen); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the credential still works after its Machine was deleted")
		}
	}
}

// Root on an attested machine has the machine's credential, and the shared one from an older
// config. It requests its own identity with the shared one, a neighbor's with its own, and, after a
// quarantine, its own with its own.
func TestAttack_T54_CredentialsOfAMachine(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	s, _ := installed(t, r, map[string]string{
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
