// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/restore"
)

// Status row F10, attack T58: nothing that was revoked becomes valid again when etcd
// is restored to yesterday.
func TestAttack_T58_EtcdIsRestoredToYesterday(t *testing.T) {
	w := newWhole(t)
	w.policy("all", map[string]any{})
	p, q := w.start("a"), w.start("b")
	until(t, "sync", p.synced)
	until(t, "sync", q.synced)
	until(t, "keys", func() error { return errorIf(len(p.keyIDs()) != 1 || len(q.keyIDs()) != 1, "none") })
	uids := map[string]string{}
	for i, name := range []string{"bystander", "quarantined", "joined", "granted"} {
		o := w.worker(name, annotated(i+1),
			func(o map[string]any) { o["spec"] = map[string]any{"providerID": "aws:///a/i-" + name} })
		uids[name] = string(o.GetUID())
		attestationsOf(w, uids[name])
	}
	status := func(name string) v1alpha1.MachineAttestationStatus {
		rec, err := p.Records().Record(t.Context(), uids[name])
		if err != nil || rec == nil {
			return v1alpha1.MachineAttestationStatus{}
		}
		return rec.Status
	}
	until(t, "known", p.matches(t, 1, "worker", "openshift-machine-api/bystander"))
	m, _ := p.Registry().ByUID(uids["bystander"])
	if err := attest(p.Records(), m, unique(), "before", time.Now()); err != nil {
		t.Fatal(err)
	}
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	if err := w.cluster.Snapshot(snapshot); err != nil {
		t.Fatal(err)
	}

	// What is revoked after the snapshot.
	// No answer shows the grant. The watch delivers it before the quarantine, which is written later and has an answer.
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	w.patch(attestations, machineNamespace, uids["granted"], `{"status":{"grantUsed":"`+end.Format(time.RFC3339)+`","grantAttestations":3}}`, "status")
	w.patch(attestations, machineNamespace, uids["quarantined"], `{"spec":{"quarantined":true}}`)
	w.patch(machines, machineNamespace, "joined", `{"status":{"nodeRef":{"name":"n"}}}`, "status")
	until := func(what string, check func() error) { t.Helper(); until(t, what, check) }
	until("latched", func() error {
		return errorIf(!status("quarantined").Quarantined || status("joined").Phase != v1alpha1.PhaseJoined, "not yet")
	})
	for _, replica := range []*process{p, q} {
		until("everyone has seen it", replica.denies(t, 2, "worker", reason.Quarantined))
		until("everyone has seen it", replica.denies(t, 3, "worker", reason.MachineJoined))
	}
	old := p.keyIDs()

	if err := w.cluster.Restore(snapshot); err != nil {
		t.Fatal(err)
	}
	until("noticed", func() error {
		return errorIf(!strings.Contains(p.log.String(), "went back to an earlier time"), "not yet")
	})
	until("by the other, too", func() error {
		return errorIf(!strings.Contains(q.log.String(), "went back to an earlier time"), "not yet")
	})
	until("new keys", func() error {
		ids := p.keyIDs()
		return errorIf(len(ids) == 0 || slices.Contains(ids, old[0]) || !slices.Equal(ids, q.keyIDs()),
			"%v and %v, before %v",
			ids, q.keyIDs(), old)
	})
	if got := status("quarantined"); !got.Quarantined {
		t.Errorf("keys came before the quarantine was latched again: %+v", got)
	}
	if got := status("joined"); got.Phase != v1alpha1.PhaseJoined {
		t.Errorf("a Machine that had joined: %s", got.Phase)
	}
	if got := status("granted"); got.GrantUsed == nil || !got.GrantUsed.Time.Equal(end) || got.GrantAttestations != 3 {
		t.Errorf("a grant that was used up: %v, %d", got.GrantUsed, got.GrantAttestations)
	}
	if got := status("bystander"); got.Phase != v1alpha1.PhaseAttested || got.Quarantined {
		t.Errorf("a Machine that nothing happened to: %+v", got)
	}
	until("the watches go on", p.synced)
	w.worker("later", annotated(9))
	until("what comes afterwards is seen", p.matches(t, 9, "worker", "openshift-machine-api/later"))
	until("Degraded", func() error {
		c := w.condition(verifiers, "", "cluster", v1alpha1.ConditionDegraded)
		return errorIf(c.Reason != "EtcdRestored", "%+v", c)
	})

	t.Run("the quarantine stays although no object requires it", func(t *testing.T) {
		time.Sleep(3 * time.Second) // several passes
		if !status("quarantined").Quarantined {
			t.Error("it was lifted")
		}
		w.patch(attestations, machineNamespace, uids["quarantined"], `{"status":{"quarantined":false}}`, "status")
		until("a front lifts it, and it is set again", func() error {
			return errorIf(!status("quarantined").Quarantined, "not yet")
		})
		w.patch(attestations, machineNamespace, uids["quarantined"], `{"spec":{"quarantined":true}}`)
		until("an administrator sets it again", func() error {
			for _, c := range status("quarantined").Conditions {
				if c.Type == "Quarantined" && c.Status == metav1.ConditionFalse {
					return nil
				}
			}
			return errorIf(true, "%+v", status("quarantined").Conditions)
		})
		w.patch(attestations, machineNamespace, uids["quarantined"], `{"spec":{"quarantined":false}}`)
		until("and lifts it", func() error { return errorIf(status("quarantined").Quarantined, "still") })
	})
	t.Run("an administrator acknowledges", func(t *testing.T) {
		w.patch(verifiers, "", "cluster", `{"metadata":{"annotations":{"`+restore.AnnotationRestoreSeen+`":"`+time.Now().Add(time.Minute).UTC().Format(time.RFC3339)+`"}}}`)
		until("no longer Degraded", func() error {
			c := w.condition(verifiers, "", "cluster", v1alpha1.ConditionDegraded)
			return errorIf(c.Status != metav1.ConditionFalse, "%+v", c)
		})
	})
}

// A replica that starts after the restore remembers nothing. The one that does repairs, leader or not, and the other
// one lifts nothing afterwards.
func TestReplicaThatStartsAfterARestore_ReleasesNoQuarantine(t *testing.T) {
	w := newWhole(t)
	w.policy("all", map[string]any{})
	p := w.start("remembers")
	until(t, "sync", p.synced)
	uids := map[string]string{}
	for i, name := range []string{"quarantined", "joined"} {
		uids[name] = string(w.worker(name, annotated(i+1)).GetUID())
		attestationsOf(w, uids[name])
	}
	until(t, "keys", func() error { return errorIf(len(p.keyIDs()) != 1, "none") })
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	if err := w.cluster.Snapshot(snapshot); err != nil {
		t.Fatal(err)
	}
	// Without many revisions in between, the restored etcd overtakes what the process has seen.
	for i := range 300 {
		w.patch(machines, machineNamespace, "joined", fmt.Sprintf(`{"metadata":{"annotations":{"revision":"%d"}}}`, i))
	}
	w.patch(attestations, machineNamespace, uids["quarantined"], `{"spec":{"quarantined":true}}`)
	w.patch(machines, machineNamespace, "joined", `{"status":{"nodeRef":{"name":"n"}}}`, "status")
	until(t, "seen", p.denies(t, 1, "worker", reason.Quarantined))
	until(t, "seen", p.denies(t, 2, "worker", reason.MachineJoined))
	old := p.keyIDs()

	if err := w.cluster.Restore(snapshot); err != nil {
		t.Fatal(err)
	}
	q := w.start("starts afterwards")
	until(t, "sync", q.synced)
	latched := func() error {
		quarantined, err := q.Records().Record(t.Context(), uids["quarantined"])
		if err != nil || quarantined == nil || !quarantined.Status.Quarantined {
			return errorIf(true, "not quarantined: %v", err)
		}
		joined, err := q.Records().Record(t.Context(), uids["joined"])
		return errorIf(err != nil || joined == nil || joined.Status.Phase != v1alpha1.PhaseJoined, "not joined: %v", err)
	}
	until(t, "latched again", latched)
	until(t, "new keys of both", func() error {
		ids := q.keyIDs()
		return errorIf(len(ids) == 0 || slices.Contains(ids, old[0]) || !slices.Equal(ids, p.keyIDs()),
			"%v and %v, before %v",
			ids, p.keyIDs(), old)
	})
	p.stop()
	until(t, "the other one leads", func() error { return errorIf(q.holds() != 1, "%d", q.holds()) })
	time.Sleep(3 * time.Second) // several passes
	if err := latched(); err != nil {
		t.Error(err)
	}
}
