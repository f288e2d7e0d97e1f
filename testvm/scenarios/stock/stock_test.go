// SPDX-License-Identifier: Apache-2.0

// Package stock boots an image without the agent: the stand-in for CoreOS as it is installed, with
// systemd in the real root. The machine receives the pre-approved config that the verifier renders,
// attests in the real root, and Ignition applies the full config in its second boot. With the
// credential in that config, its kubelet becomes its Node.
package stock

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/firstboot"
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
  stage: RealRoot
  tpm2:
    endorsements: [enrolled]
`

// kubelet is the unit of a MachineConfig of the operator, as kubelet.service is on OpenShift.
const kubelet = `[Unit]
After=crio.service
Requires=crio.service
[Service]
ExecStartPre=/bin/mkdir -p /var/log /var/lib
ExecStart=/bin/kubelet --hostname-override=worker-0 --bootstrap-kubeconfig=/etc/kubernetes/kubeconfig \
  --kubeconfig=/var/lib/kubelet/kubeconfig --root-dir=/var/lib/kubelet --cert-dir=/var/lib/kubelet/pki \
  --config=/etc/kubernetes/kubelet.conf --port=10250 --healthz-port=0 --v=1
Restart=always
[Install]
WantedBy=multi-user.target
`

// site is the unit of a customer's MachineConfig, which only the full config has.
const site = `[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
[Install]
WantedBy=multi-user.target
`

const agentUnit = firstboot.UnitName

// withUnits adds units to a config, enabled.
func withUnits(t *testing.T, config string, units map[string]string) string {
	t.Helper()
	var c map[string]any
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		t.Fatal(err)
	}
	var all []any
	for name, contents := range units {
		unit := map[string]any{"name": name, "enabled": true}
		if contents != "" {
			unit["contents"] = contents
		}
		all = append(all, unit)
	}
	c["systemd"] = map[string]any{"units": all}
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// installed returns a cluster whose verifier is in front of a Machine Config Server, renders the
// pre-approved config, and serves the agent.
func installed(t *testing.T, r *rig.Rig) (s *replicas.Set, shared string) {
	t.Helper()
	agents := t.TempDir()
	agent, err := os.ReadFile(r.Agent())
	if err == nil {
		err = os.WriteFile(filepath.Join(agents, "mcs-attest-agent-amd64"), agent, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.Start(t, replicas.Controllers())
	c.InstallOpenShift(t)
	s = replicas.Start(t, r, c, replicas.Config{
		Replicas: 1, Policy: policy,
		Components: []string{"credential", "approver", "render"},
		Settings: map[string]any{
			"credential": map[string]any{}, "approver": map[string]any{}, "render": map[string]any{},
			"agents": map[string]any{"folder": agents, "architectures": []string{"amd64"}},
		},
	})
	s.Pool("worker")
	units := map[string]string{"crio.service": "", "kubelet.service": kubelet}
	s.MachineConfig("00-worker", "worker", true, nil, withUnits(t, rig.ConfigWith(s.NodeFiles(nil)), units))
	units["site.service"] = site
	shared = s.SharedToken()
	s.MCS.Set("worker", withUnits(t, s.NodeConfig(shared, nil), units))
	return s, shared
}

func TestAttack_T72_StockImageAttestsInTheRealRootAndBecomesItsNode(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	s, shared := installed(t, r)
	uid := s.Machine("worker-0", "worker")
	s.Provisioned("worker-0", "worker-0")
	v, tpm := s.Verifiers[0], r.NewTPM()
	disk := r.NewStockDisk(s.Pointer("worker"), s.Kubelet("worker-0"))

	// With a TPM that is not the machine's, it keeps the pre-approved config, says so, and waits.
	first := r.Boot(rig.VM{Name: "first", TPM: tpm, CoreOS: disk})
	waiting := []string{"crio.service", "kubelet.service", "systemd-user-sessions.service"}
	for _, unit := range waiting {
		first.WaitFor(` ` + regexp.QuoteMeta(unit) + ` +start +waiting`)
	}
	first.WaitFor(`mcs-attest: .*; trying again in `)
	v.WaitAudit("attest", "denied", "EKNotEnrolled") // the first line may be about a connection that was too slow
	v.WantAudit("fetch", "pre-approved", "")
	v.WantNoAudit("fetch", "allowed", "")
	s.Enroll("worker-0", tpm)
	first.WaitFor(`mcs-attest: capped PCR 11`)
	first.WaitFor(`mcs-attest: .*; rebooting, so that Ignition applies it$`)
	first.Wait()
	v.WantAudit("attest", "allowed", "")
	if !strings.Contains(first.Journal(), "systemd[1]: Starting "+agentUnit) {
		t.Errorf("the journal has no real root:\n%s", first.Journal())
	}
	for _, unit := range waiting {
		if at := started(first, unit); at >= 0 {
			t.Errorf("%s started in the first boot:\n%.200s", unit, first.Journal()[at:])
		}
	}
	first.WantNoTokensLeft()

	second := r.Boot(rig.VM{Name: "second", TPM: tpm, CoreOS: disk})
	second.WaitFor(`^rig: provisioned a node's config`)
	second.WaitFor(`^rig: another program$`)
	second.WaitFor(`^mcs-attest: the machine keeps the pre-approved config and waits: `)
	v.WantAudit("attest", "denied", "PCRCapped")
	s.WaitNode("worker-0")
	s.Linked("worker-0", "worker-0")
	rec := s.WaitPhase(uid, "Joined")
	s.WaitEvents(uid, "Attested", "Fetched", "Joined")
	// systemd enables units only in a first boot. Nothing starts before the cap. CoreOS's own unit has removed the config
	// from /boot before.
	agent := waitStarted(t, second, agentUnit)
	if at := waitStarted(t, second, "coreos-ignition-firstboot-complete.service"); at > agent {
		t.Errorf("the agent's unit started before CoreOS's own:\n%.200s", second.Journal()[agent:])
	}
	for _, unit := range waiting {
		if at := waitStarted(t, second, unit); at < agent {
			t.Errorf("%s started before the agent's unit:\n%.200s", unit, second.Journal()[at:])
		}
	}
	waitStarted(t, second, "site.service")
	second.Kill()
	if second.Said(`^rig: left `) {
		t.Errorf("the config or the flag is still in /boot:\n%s", second.Console())
	}

	// Its request was made with the credential in the record, which is the only token on its disk.
	csr := s.WaitCSR(replicas.ClientSigner, "of worker-0", func(c replicas.CSR) bool { return c.Is("Approved") })
	if csr.Status.Conditions[0].Reason != "mcs-attest" || !slices.ContainsFunc(rec.Status.Credentials,
		func(c replicas.Credential) bool { return c.ID == csr.Credential() }) {
		t.Errorf("the request was made with %s, and approved as %+v; the record has %+v", csr.Credential(),
			csr.Status.Conditions, rec.Status.Credentials)
	}
	if c := rec.Status.Certificate; c == nil || c.Node != "worker-0" || c.CredentialID != csr.Credential() {
		t.Errorf("the record's certificate is %+v", c)
	}
	if tokens := second.Tokens(); len(tokens) != 1 || tokens[0] == shared || !s.Usable(tokens[0]) {
		t.Errorf("the machine has %d tokens", len(tokens))
	}
	if out := s.Attest("explain", "worker-0"); !strings.Contains(out, "RealRoot") {
		t.Errorf("explain:\n%s", out)
	}
}

// started returns where the journal has the start of a unit, or -1.
func started(node *rig.Node, unit string) int {
	found := regexp.MustCompile(`systemd\[1\]: (Started|Finished) ` + regexp.QuoteMeta(unit)).
		FindStringIndex(node.Journal())
	if found == nil {
		return -1
	}
	return found[0]
}

// waitStarted waits until the journal has the start of a unit.
func waitStarted(t *testing.T, node *rig.Node, unit string) int {
	t.Helper()
	for deadline := time.Now().Add(rig.BootTimeout); ; time.Sleep(100 * time.Millisecond) {
		if at := started(node, unit); at >= 0 {
			return at
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s did not start:\n%s", unit, node.Journal())
		}
	}
}
