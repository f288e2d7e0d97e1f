// SPDX-License-Identifier: Apache-2.0

package restore_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	rule "github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// cache is what a process knows of one Machine. Until Reset, that is what it was before the restore.
type cache struct {
	mu    sync.Mutex
	ready bool
	latch rule.Latch
	asked int
}

func (c *cache) set(ready bool, l rule.Latch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ready, c.latch = ready, l
}

func (c *cache) questions() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

// of has a reconciler ask the cache.
func (c *cache) of(r *restore.Reconciler) {
	r.Ready = func(bool) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asked++
		return c.ready
	}
	r.Latch = func(string) rule.Latch {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.latch
	}
}

// logged calls a function after each message.
type logged struct {
	slog.Handler
	then func()
}

func (l logged) Enabled(context.Context, slog.Level) bool { return true }
func (l logged) Handle(context.Context, slog.Record) error {
	l.then()
	return nil
}

// The controller runs while a restore is noticed. It must not repair by what was known before the restore.
func TestReconciler_RunsWhileARestoreIsNoticed(t *testing.T) {
	before := rule.Latch{Joined: true}
	known := &cache{ready: true, latch: before}
	// gap gives a worker that was triggered too early the time to begin.
	gap := func() {
		was := known.questions()
		for end := time.Now().Add(100 * time.Millisecond); known.questions() == was && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}
	p, early := newProcess(), -1
	p.Guard = restore.New(restore.Options{
		Log: slog.New(logged{slog.DiscardHandler, gap}), Now: func() time.Time { return noon }, Probe: time.Hour,
		Remember: func() restore.Memory { return restore.Memory{Latches: map[string]rule.Latch{"u": before}} },
		Void:     func() {},
		Reset: func() {
			gap()
			early = known.questions()
			known.set(false, before)
		},
		Reread: func() { known.set(true, rule.Latch{}) }, // the backup is from before the join
	})
	records := map[string]*v1alpha1.MachineAttestation{}
	r, changed := p.reconciler(records), make(chan struct{}, 1)
	known.of(r)
	r.Changed = func() { changed <- struct{}{} }
	m, err := kube.NewManager(&rest.Config{Host: "127.0.0.1:1"}, kube.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.SetupWithManager(m); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx) }()
	for end := time.Now().Add(time.Minute); !p.Triggered(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the controller does not start")
		}
	}
	p.Restored(0, "test")
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Error("the repair does not end")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if early != 0 {
		t.Error("the repair began before the sources were marked as not read")
	}
	if rec := records["u"]; rec == nil || rec.Status.Phase != v1alpha1.PhaseJoined || p.Repairing() {
		t.Errorf("repairing %v, record %+v", p.Repairing(), rec)
	}
}

// A run for an earlier reason, such as a pause that is over, comes while a restore is noticed.
func TestReconciler_WaitsUntilSourcesAreMarked(t *testing.T) {
	for name, at := range map[string]func(p *process, run func()){
		"before the epoch is raised":        func(p *process, run func()) { p.void = run },
		"before the sources are marked":     func(p *process, run func()) { p.reset = run },
		"another restore during the repair": nil,
	} {
		t.Run(name, func(t *testing.T) {
			p, renewed := newProcess(), 0
			before := rule.Latch{Joined: true}
			p.memory.Latches = map[string]rule.Latch{"u": before}
			known, records := &cache{ready: true, latch: before}, map[string]*v1alpha1.MachineAttestation{}
			r := p.reconciler(records)
			known.of(r)
			run := func() {
				t.Helper()
				result, err := r.Reconcile(t.Context(), reconcile.Request{})
				if err != nil || result.RequeueAfter == 0 || !p.Repairing() {
					t.Errorf("%+v, %v, repairing %v", result, err, p.Repairing())
				}
			}
			if at != nil {
				r.RenewKeys = func(context.Context) error { renewed++; return nil }
				at(p, run)
				p.Restored(0, "test")
			} else {
				p.Restored(0, "test")
				r.RenewKeys = func(context.Context) error { p.Restored(1, "another"); return nil }
				run()
			}
			if renewed != 0 || len(records) != 0 || p.Rekeyed() {
				t.Errorf("keys renewed %d times, %d records", renewed, len(records))
			}
			r.RenewKeys = func(context.Context) error { renewed++; return nil }
			known.set(true, rule.Latch{})
			_, err := r.Reconcile(t.Context(), reconcile.Request{})
			if err != nil || p.Repairing() || renewed != 1 || records["u"] == nil {
				t.Errorf("%v, keys renewed %d times, %d records", err, renewed, len(records))
			}
		})
	}
}

// Without the condition, a leader that starts after the restore lifts a quarantine that no object requires.
func TestReconciler_MarksAQuarantineThatARestoredRecordAlreadyHas(t *testing.T) {
	p, lost := newProcess(), rule.Latch{Quarantined: true}
	p.memory.Latches = map[string]rule.Latch{"u": lost}
	p.Restored(0, "test")
	records := map[string]*v1alpha1.MachineAttestation{"u": {}}
	records["u"].Status.Quarantined = true // by a process whose inventory was from before the restore
	r := p.reconciler(records)
	(&cache{ready: true, latch: lost}).of(r)
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil || p.Repairing() {
		t.Errorf("%v, repairing %v", err, p.Repairing())
	}
	if !rule.Unconfirmed(records["u"]) {
		t.Errorf("the next leader would lift the quarantine: %+v", records["u"].Status)
	}
}

// A record that cannot be written keeps out only its own Machine.
func TestReconciler_OneBadRecordDelaysNoKeys(t *testing.T) {
	p, renewed := newProcess(), 0
	lost := rule.Latch{Quarantined: true}
	p.memory.Latches = map[string]rule.Latch{"bad": lost, "corrupt": lost, "a": lost, "z": lost, "gone": lost}
	p.Restored(0, "test")
	records := map[string]*v1alpha1.MachineAttestation{}
	for _, uid := range []string{"bad", "corrupt", "a", "z"} {
		records[uid] = &v1alpha1.MachineAttestation{}
	}
	r := p.reconciler(records)
	write := r.Update
	foreign := reason.Wrap(reason.StoreUnavailable, errors.New(`status.machineUID is "other"`), "record")
	corrupt := reason.Wrap(reason.StoreUnavailable, kerrors.NewInternalError(errors.New("cannot be decoded")), "record")
	r.RenewKeys = func(context.Context) error { renewed++; return nil }
	refused := map[string]error{
		"bad": foreign, "corrupt": corrupt, "gone": reason.Deny(reason.MachineNotFound, "it was deleted"),
	}
	tried := []string{}
	r.Update = func(ctx context.Context, uid string, change store.Change) error {
		tried = append(tried, uid)
		if err := refused[uid]; err != nil {
			return err
		}
		return write(ctx, uid, change)
	}
	_, err := r.Reconcile(t.Context(), reconcile.Request{})
	if !errors.Is(err, foreign) || !errors.Is(err, corrupt) || renewed != 1 || !p.Repairing() {
		t.Errorf("%v, keys renewed %d times, repairing %v", err, renewed, p.Repairing())
	}
	if !records["a"].Status.Quarantined || !records["z"].Status.Quarantined {
		t.Error("others were not written")
	}
	for _, uid := range []string{"a", "z"} {
		p.Recorded(uid, lost, restore.Demand{}) // as the watch reports it
	}
	p.acknowledge(noon) // does not repair what is left
	if !p.Rekeyed() {
		t.Error("all others wait, too")
	}
	for uid, held := range map[string]bool{"bad": true, "corrupt": true, "a": false, "z": false, "gone": false} {
		if (p.Outdated(uid) != nil) != held {
			t.Errorf("%s: %v", uid, p.Outdated(uid))
		}
	}
	tried, refused = nil, nil
	_, err = r.Reconcile(t.Context(), reconcile.Request{})
	if p.Outdated("bad") != nil {
		t.Error("it was repaired, and is held")
	}
	if slices.Sort(tried); err != nil || p.Repairing() || !slices.Equal(tried, []string{"bad", "corrupt"}) {
		t.Errorf("%v, tried %q, repairing %v", err, tried, p.Repairing())
	}
}

// While the API does not answer, records come before keys.
func TestReconciler_AnAPIThatDoesNotAnswerEndsTheRun(t *testing.T) {
	for _, cause := range []error{
		context.DeadlineExceeded, kerrors.NewTimeoutError("slow", 1), kerrors.NewServiceUnavailable("down"),
		kerrors.NewTooManyRequests("full", 1),
	} {
		p := newProcess()
		p.memory.Latches = map[string]rule.Latch{"u": {Joined: true}, "v": {Joined: true}}
		p.Restored(0, "test")
		r, tried := p.reconciler(nil), 0
		r.RenewKeys = func(context.Context) error { t.Errorf("%v: keys came before the records", cause); return nil }
		r.Update = func(context.Context, string, store.Change) error {
			tried++
			return reason.Wrap(reason.StoreUnavailable, cause, "read record")
		}
		if _, err := r.Reconcile(t.Context(), reconcile.Request{}); !errors.Is(err, cause) || tried != 1 || !p.Repairing() {
			t.Errorf("%v after %d records, repairing %v", err, tried, p.Repairing())
		}
	}
	p := newProcess()
	p.memory.Latches = map[string]rule.Latch{"u": {Joined: true}, "v": {Joined: true}}
	p.Restored(0, "test")
	r := p.reconciler(map[string]*v1alpha1.MachineAttestation{})
	r.Limit = flowcontrol.NewTokenBucketRateLimiter(0.0001, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.Reconcile(ctx, reconcile.Request{}); err == nil || !p.Repairing() {
		t.Error("the limit is not left when the process ends")
	}
}
