// SPDX-License-Identifier: Apache-2.0

// Package cluster boots a machine in a cluster: a real API server with OpenShift's Machines, three
// verifiers without state of their own, and a load balancer that is not configured for any of this.
package cluster

import (
	"slices"
	"strings"
	"sync"
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
  token:
    lifetime: 1h # a replica and the API server restart between attestation and fetch
  tpm2:
    endorsements: [enrolled, manufacturer]
`

// decisions records which replica made which decision.
type decisions struct {
	mu  sync.Mutex
	all []decision
}

type decision struct {
	replica int
	rig.Audit
}

func (d *decisions) add(replica int, a rig.Audit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, decision{replica, a})
}

// last returns the last replica with such a decision, or -1. A reason of "" matches any.
func (d *decisions) last(event, outcome, reason string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range slices.Backward(d.all) {
		if one.Event == event && one.Outcome == outcome && (reason == "" || one.Reason == reason) {
			return one.replica
		}
	}
	return -1
}

// wait waits for such a decision.
func (d *decisions) wait(t *testing.T, event, outcome, reason string) (replica int) {
	t.Helper()
	for deadline := time.Now().Add(rig.BootTimeout); ; time.Sleep(50 * time.Millisecond) {
		if replica = d.last(event, outcome, reason); replica >= 0 {
			return replica
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %s %s %s within %v", event, outcome, reason, rig.BootTimeout)
		}
	}
}

// The first boot of a Machine whose TPM is genuine and not enrolled. The replica that received its
// first request is killed while it waits, the one that attested it before it has its config, and
// then the API server is unavailable. The boot succeeds.
func TestMachineIsProvisionedByTheRemainingReplica(t *testing.T) {
	r := rig.New(t)
	c := cluster.Start(t, cluster.Controllers("garbage-collector-controller"))
	c.InstallOpenShift(t)
	var decided decisions
	s := replicas.Start(t, r, c, replicas.Config{
		Configs: map[string]string{"worker": rig.Config("by the MCS behind")}, Policy: policy, OnAudit: decided.add,
	})
	uid := s.Machine("worker-0", "worker")
	tpm := r.NewTPM()
	s.EKRoots("rig", r.EKRoots())
	s.MCS.SetDown(true)

	node := r.Boot(rig.VM{TPM: tpm, Pointer: s.Pointer("worker")})
	id := s.WaitPending()
	asked := decided.wait(t, "attest", "denied", "PendingApproval")
	s.Verifiers[asked].Kill()
	if status := s.Attest("status"); !strings.Contains(status, id) {
		t.Errorf("status does not list the waiting machine, %s:\n%s", id, status)
	}
	s.Attest("approve", id, "--machine", replicas.Machines+"/worker-0")

	rec := s.WaitPhase(uid, "Attested")
	token := rec.Status.Token.ID
	attested := decided.wait(t, "attest", "allowed", "")
	if attested == asked {
		t.Errorf("replica %d attested after its end", attested)
	}
	s.Verifiers[asked].Start()
	s.Verifiers[asked].WaitReady()
	s.Verifiers[attested].Kill()

	// A config whose delivery cannot be recorded is not delivered, although it is available.
	c.StopAPIServer()
	s.MCS.SetDown(false)
	decided.wait(t, "fetch", "denied", "StoreUnavailable")
	if replica := decided.last("fetch", "allowed", ""); replica >= 0 {
		t.Errorf("replica %d delivered a config without a record", replica)
	}
	if err := c.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	node.WantProvisioned()

	if got := node.ReadFile("/etc/provisioned"); got != "by the MCS behind" {
		t.Errorf("the disk holds %q", got)
	}
	node.WantNoTokensLeft()
	rec = s.WaitPhase(uid, "Fetched")
	if fetched := decided.wait(t, "fetch", "allowed", ""); fetched == attested {
		t.Errorf("replica %d gave the config after its end", fetched)
	}
	if rec.Status.Token.ID != token || rec.Status.Token.Uses != 1 {
		t.Errorf("the machine attested with token %s and fetched with %+v", token, rec.Status.Token)
	}
	if rec.Status.Endorsement != "enrolled" || rec.Status.Pool != "worker" {
		t.Errorf("the record is %+v", rec.Status)
	}
	if o := rec.Metadata.OwnerReferences; len(o) != 1 || o[0].UID != uid {
		t.Errorf("the record belongs to %+v", o)
	}
	s.WaitEvents(uid, "Attested", "Fetched")
	if status := s.Attest("status"); !strings.Contains(status, "worker-0") || !strings.Contains(status, "Fetched") ||
		strings.Contains(status, id) {
		t.Errorf("status:\n%s", status)
	}

	// The record is deleted with its Machine.
	c.Kubectl(t, "-n", replicas.Machines, "delete", "machines.machine.openshift.io", "worker-0")
	c.Kubectl(t, "-n", replicas.Machines, "wait", "--for=delete", "machineattestation/"+uid, "--timeout=10m")
}
