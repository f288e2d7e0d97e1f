// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/machinerecord"
	verifier "github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
)

// workers creates n Machines and returns their UIDs by name.
func (w *whole) workers(n int) map[string]string {
	w.Helper()
	uids := map[string]string{}
	names := make(chan string)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for name := range names {
				uid := string(w.worker(name).GetUID())
				mu.Lock()
				uids[name] = uid
				mu.Unlock()
			}
		})
	}
	for i := range n {
		names <- fmt.Sprintf("new-%d", i)
	}
	close(names)
	wg.Wait()
	return uids
}

// quarantine creates an object of an administrator that quarantines a Machine.
func (w *whole) quarantine(name string) {
	w.Helper()
	w.create(attestations, machineNamespace, map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
		"metadata": map[string]any{"name": "stop-" + name},
		"spec":     map[string]any{"machineRef": map[string]any{"name": name}, "quarantined": true},
	})
}

// recorded returns how many Machines have a record.
func (w *whole) recorded(uids map[string]string) (n int) {
	w.Helper()
	of := map[string]bool{}
	for _, uid := range uids {
		of[uid] = true
	}
	for _, o := range w.list(attestations, machineNamespace) {
		if of[o.GetName()] {
			n++
		}
	}
	return n
}

// The budget of bookkeeping is used up, so the records of all other Machines wait for longer than
// the test runs: what comes before them does not depend on how fast the computer is.
func TestPriority_QuarantineAndJoinDoNotWaitForBookkeeping(t *testing.T) {
	w := theWhole(t)
	w.lease = 10 * time.Minute // a replica that acquires the lease again has a new budget
	w.policy("all", map[string]any{})
	const arriving = 2000
	var gone revoked
	slow := func(o *machinerecord.Options) { o.WritesPerSecond = 0.001 }
	p := w.startWith(w.cluster.Admin(), "a", slow,
		func(_ *config.Kubernetes, o *verifier.Options) { o.Revoke = gone.revoke })
	until(t, "sync", p.synced)
	uids := w.workers(arriving)
	until(t, "all are known", func() error {
		machines, _ := p.Counts()
		return errorIf(machines != arriving, "%d", machines)
	})
	until(t, "the budget is used up", func() error {
		return errorIf(w.recorded(uids) != 1, "%d records", w.recorded(uids))
	})

	began := time.Now()
	stop := []string{"new-7", fmt.Sprintf("new-%d", arriving-1)}
	for _, name := range stop {
		w.quarantine(name)
	}
	rec := func(name string) v1alpha1.MachineAttestationStatus {
		rec, err := p.Records().Record(t.Context(), uids[name])
		if err != nil || rec == nil {
			return v1alpha1.MachineAttestationStatus{}
		}
		return rec.Status
	}
	for _, name := range stop {
		until(t, name+" is quarantined", func() error { return errorIf(!rec(name).Quarantined, "not") })
	}
	t.Logf("quarantined after %v", time.Since(began))
	if err := p.Records().Update(t.Context(), uids["new-7"],
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			rec = rec.DeepCopy()
			rec.Status.Credentials = []v1alpha1.CredentialStatus{{ID: "JTI=one", Issued: metav1.Now(),
				Expiry: metav1.NewTime(time.Now().Add(time.Hour))}}
			return rec, nil
		}); err != nil {
		t.Fatal(err)
	}
	until(t, "the credentials are revoked", func() error { return gone.has(uids["new-7"], "JTI=one") })
	w.patch(machines, machineNamespace, "new-7", `{"status":{"nodeRef":{"name":"n"}}}`, "status")
	until(t, "joined", func() error {
		return errorIf(rec("new-7").Phase != v1alpha1.PhaseJoined, "%s", rec("new-7").Phase)
	})
	if n := w.recorded(uids); n > 1+len(stop) {
		t.Errorf("%d records: other Machines did not wait", n)
	}
}

// A quarantine among 5 000 Machines that arrive at one time, with the budget of production.
func BenchmarkQuarantineWhile5000MachinesArrive(b *testing.B) {
	w := theWhole(b)
	w.policy("all", map[string]any{})
	p := w.start("a")
	until(b, "sync", p.synced)
	uids := w.workers(5000)
	var all []time.Duration
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprintf("new-%d", i)
		began := time.Now()
		w.quarantine(name)
		until(b, "quarantined", func() error {
			rec, err := p.Records().Record(context.Background(), uids[name])
			return errorIf(err != nil || rec == nil || !rec.Status.Quarantined, "not")
		})
		all = append(all, time.Since(began))
	}
	b.ReportMetric(float64(5000-w.recorded(uids)), "waiting")
	b.ReportMetric(slices.Max(all).Seconds(), "s-max")
}
