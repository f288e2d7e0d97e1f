// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

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
	v.standalone().Keeper.Sweep(t.Context())
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
	v.standalone().Keeper.Sweep(t.Context())
	v.enroll("m1", "worker", [32]byte{0xab, 0xcd})
	if rec := v.machine("m1").Record; rec != nil {
		t.Errorf("the record of a deleted machine stays: %+v", rec)
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
