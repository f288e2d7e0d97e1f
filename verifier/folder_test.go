// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
)

func TestUnmountedFolder_DeletesNoRecord(t *testing.T) {
	v, _, _ := attested(t)
	before := v.machine("m1").Record.Identity
	dir := filepath.Join(v.dir, "attestations")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	v.refresh()
	v.advance(9 * time.Minute)
	v.standalone().Keeper.Sync(t.Context())
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	v.refresh()
	if rec := v.machine("m1").Record; rec == nil || rec.Identity != before {
		t.Fatalf("the record is gone: %+v", rec)
	}
	// Gone for good, it goes.
	if err := v.remove("attestations/m1.yaml"); err != nil {
		t.Fatal(err)
	}
	v.advance(11 * time.Minute)
	v.standalone().Keeper.Sync(t.Context())
	v.enroll("m1", "worker", [32]byte{0xab, 0xcd})
	if rec := v.machine("m1").Record; rec != nil {
		t.Errorf("the record of a deleted machine stays: %+v", rec)
	}
}

// A database that cannot be written for a moment delays a join and a quarantine, and loses neither.
func TestFolder_WhatCouldNotBeRecordedIsRecordedLater(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	created := time.Now().UTC().Format(time.RFC3339)
	machine := func(extra string) string {
		return "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Machine\nmetadata:\n  name: w0\n  namespace: capi\n  uid: u0\n" +
			"  creationTimestamp: " + created + "\nspec: {clusterName: c}\n" + extra
	}
	const ref = "  machineRef: {namespace: capi, name: w0}\n"
	v.change("machines/w0.yaml", machine(""))
	v.change("attestations/w0.yaml", enrolment("w0", ref, n.id.EKSPKI))
	if _, err := n.attest(); err != nil {
		t.Fatal("honest:", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	k := v.standalone().Keeper
	v.write("machines/w0.yaml", machine("status: {nodeRef: {name: w0}}\n"))
	v.write("attestations/w0.yaml", enrolment("w0", ref+"  quarantined: true\n", n.id.EKSPKI))
	s, _ := v.standalone().Files.Refresh()
	k.Apply(ended, s)
	if rec := v.machine("capi/w0").Record; rec.Phase == v1alpha1.PhaseJoined || rec.Quarantined {
		t.Fatalf("it was recorded: %+v", rec)
	}
	k.Sync(t.Context())
	if rec := v.machine("capi/w0").Record; rec.Phase != v1alpha1.PhaseJoined || !rec.Quarantined {
		t.Errorf("it was not recorded: %s, quarantined %t", rec.Phase, rec.Quarantined)
	}
}

func TestFolder_EmptiedPolicyStaysInForce(t *testing.T) {
	v := newVerifier(t)
	v.policy("  mode: Audit\n")
	const worker = "apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\nmetadata: {name: worker}\n" +
		"spec: {pools: [worker], mode: Enforce}\n"
	v.change("policies/worker.yaml", worker)
	v.wantFetch("honest", "/config/worker", "", http.StatusUnauthorized)
	for _, content := range []string{"", "\n", "# nothing\n", "---\n"} {
		v.change("policies/worker.yaml", content)
		v.wantFetch("with the policy cut to "+content, "/config/worker", "", http.StatusUnauthorized)
	}
	if len(v.state().Problems) == 0 {
		t.Error("an emptied policy is no problem")
	}
	v.stop()
	v.start()
	if code, _, _ := v.fetch(http.MethodGet, "/config/worker", ""); code == http.StatusOK {
		t.Error("after a restart the pool fell back to *")
	}
	if len(v.server.Problems()) == 0 {
		t.Error("ready with a file that is broken since the start")
	}
}

func TestFolder_QuarantineSurvivesABrokenFile(t *testing.T) {
	v := newVerifier(t)
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.change("machines/w0.yaml", "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Machine\nmetadata:\n  name: w0\n"+
		"  namespace: capi\n  uid: u0\n  creationTimestamp: "+
		time.Now().UTC().Format(time.RFC3339)+"\n  annotations: {mcs-attest.dev/ek-sha256: "+hexOf(n.id.EKSPKI)+
		"}\nspec: {clusterName: c}\n")
	res, err := n.attest()
	if err != nil {
		t.Fatal("honest:", err)
	}
	const quarantine = "  machineRef: {namespace: capi, name: w0}\n  quarantined: true\n"
	v.change("attestations/q.yaml", enrolment("q", quarantine))
	v.wantFetch("quarantined", "/config/worker", res.GetToken(), http.StatusServiceUnavailable)
	v.stop()
	v.write("attestations/q.yaml", "{broken")
	v.start()
	v.wantFetch("after a restart with a broken file", "/config/worker", res.GetToken(), http.StatusServiceUnavailable)
	v.advance(later)
	if _, err := n.again(); err == nil {
		t.Error("attested although the quarantine was never lifted")
	}
	v.wantReason("Quarantined")
	if err := v.remove("attestations/q.yaml"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.again(); err != nil {
		t.Error("after the administrator lifted it:", err)
	}
}
