// SPDX-License-Identifier: Apache-2.0

// Package rendered has no Machine Config Server: the verifiers render the configs from the
// cluster's MachineConfigs. Real Ignition applies what they serve, and a real kubelet starts with
// it: the pre-approved part, and, after an attestation, the full config.
package rendered

import (
	"encoding/json"
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
  unattested: PreApproved
  tpm2:
    endorsements: [enrolled]
`

const (
	kubeconfigPath = "/etc/kubernetes/kubeconfig"
	encapsulated   = "/etc/ignition-machine-config-encapsulated.json"
	annotations    = "/etc/machine-config-daemon/node-annotations.json"
	password       = "/etc/site/password"
)

// installed returns a cluster with a pool of two MachineConfigs: the operator's, and a customer's
// with a secret.
func installed(t *testing.T, r *rig.Rig) *replicas.Set {
	t.Helper()
	c := cluster.Start(t, replicas.Controllers())
	c.InstallOpenShift(t)
	s := replicas.Start(t, r, c, replicas.Config{
		Replicas: 1, Policy: policy, OwnSource: true,
		Components: []string{"credential", "approver", "render"},
		Settings: map[string]any{
			"credential": map[string]any{}, "approver": map[string]any{},
			"render": map[string]any{"preApprovedAllows": []any{kubeconfigPath}},
		},
	})
	s.Pool("worker")
	s.MachineConfig("00-worker", "worker", true, nil, rig.ConfigWith(s.NodeFiles(nil)))
	s.MachineConfig("99-site", "worker", false, nil, rig.ConfigWith(map[string]string{password: "a customer's password"}))
	s.Machine("worker-0", "worker")
	s.Provisioned("worker-0", "worker-0")
	return s
}

// A machine without a token receives the pre-approved part. If an administrator allows a kubeconfig
// in it, that is enough to request a certificate, which a person must approve.
func TestMachineWithoutTheAgentReceivesThePreApprovedPartAndWaits(t *testing.T) {
	r := rig.New(t)
	s := installed(t, r)
	shared := s.SharedToken()
	s.MachineConfig("01-worker-bootstrap", "worker", false,
		map[string]string{"mcs-attest.dev/needed-before-node-approved": "true"},
		rig.ConfigWith(map[string]string{kubeconfigPath: s.Kubeconfig(shared)}))

	node := r.Boot(rig.VM{Pointer: s.Pointer("worker"), Initrd: rig.Initrd{Agent: rig.NoAgent},
		Kubelet: s.Kubelet("worker-0")})
	csr := s.WaitCSR(replicas.ClientSigner, "at all", func(replicas.CSR) bool { return true })
	if out := s.Explain(csr.Metadata.Name, 1); !strings.Contains(out, "CSRCredential") {
		t.Errorf("the request:\n%s", out)
	}
	if again := s.CSRs(replicas.ClientSigner)[0]; len(again.Status.Conditions) > 0 {
		t.Errorf("it was decided: %+v", again)
	}
	s.Cluster.Kubectl(t, "certificate", "approve", csr.Metadata.Name)
	s.WaitNode("worker-0")
	node.Kill()

	if got := node.ReadFile(password); got != "" {
		t.Errorf("anybody receives %s: %q", password, got)
	}
	if got := node.ReadFile("/etc/kubernetes/kubelet.conf"); got != rig.KubeletConfig() {
		t.Errorf("kubelet.conf holds %q", got)
	}
	if got := node.ReadFile(encapsulated); !strings.Contains(got, `"rendered-worker-`) {
		t.Errorf("%s holds %q", encapsulated, got)
	}
}

// The full config, as the Machine Config Server would send it, with the machine's own credential.
func TestAttestedMachineBecomesItsNodeWithTheFullConfig(t *testing.T) {
	r := rig.New(t)
	s := installed(t, r)
	uid := s.UID("worker-0")
	tpm := r.NewTPM()
	s.Enroll("worker-0", tpm)

	node := r.Boot(rig.VM{TPM: tpm, Pointer: s.Pointer("worker"), Kubelet: s.Kubelet("worker-0")})
	s.WaitNode("worker-0")
	s.Linked("worker-0", "worker-0")
	node.WaitFor("^rig: kubelet has its server certificate")
	rec := s.WaitPhase(uid, "Joined")
	s.WaitEvents(uid, "Attested", "Fetched", "Joined")
	node.Kill()

	for path, want := range s.NodeFiles(nil) {
		if got := node.ReadFile(path); got != want {
			t.Errorf("%s holds %q", path, got)
		}
	}
	if got := node.ReadFile(password); got != "a customer's password" {
		t.Errorf("%s holds %q", password, got)
	}
	own := s.TokenOf(node.ReadFile(kubeconfigPath))
	if !s.Usable(own) || own == s.SharedToken() || len(rec.Status.Credentials) == 0 {
		t.Errorf("no credential of its own: %+v", rec.Status.Credentials)
	}
	var written map[string]string
	if err := json.Unmarshal([]byte(node.ReadFile(annotations)), &written); err != nil {
		t.Errorf("%s: %v", annotations, err)
	}
	if name := written["machineconfiguration.openshift.io/currentConfig"]; !strings.HasPrefix(name, "rendered-worker-") ||
		!strings.Contains(node.ReadFile(encapsulated), name) {
		t.Errorf("the node would report %q", name)
	}

	// Its request names the credential in the record.
	csr := s.WaitCSR(replicas.ClientSigner, "of worker-0", func(c replicas.CSR) bool { return c.Is("Approved") })
	if !slices.ContainsFunc(rec.Status.Credentials,
		func(c replicas.Credential) bool { return c.ID == csr.Credential() }) {
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
	s.Cluster.Kubectl(t, "-n", replicas.Machines, "delete", "machines.machine.openshift.io", "worker-0")
	for deadline := time.Now().Add(3 * time.Minute); s.Usable(own); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the credential still works after its Machine was deleted")
		}
	}
}
