// SPDX-License-Identifier: Apache-2.0

package machinerecord_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/machinerecord"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// fake is an inventory with one step, and records that only count.
type fake struct {
	step     record.Step
	machine  *machine.Machine
	recorded bool
	orphaned []v1alpha1.CredentialStatus
	err      error // of every call
	calls    []string
}

func (f *fake) Compare(string) (record.Step, *machine.Machine) { return f.step, f.machine }
func (f *fake) OutOfLine() []string                            { return []string{"u"} }
func (f *fake) RecordNamespace(string) (string, bool)          { return "m", f.recorded }
func (f *fake) Revocable(string) bool                          { return len(f.orphaned) > 0 }
func (f *fake) Orphaned(string) []v1alpha1.CredentialStatus    { return f.orphaned }
func (f *fake) DropOrphaned(string)                            { f.orphaned = nil }

func (f *fake) call(what string) error {
	f.calls = append(f.calls, what)
	return f.err
}
func (f *fake) Record(context.Context, string) (*v1alpha1.MachineAttestation, error) {
	return nil, f.call("read")
}
func (f *fake) Update(context.Context, string, store.Change) error    { return f.call("update") }
func (f *fake) EnsureRecord(context.Context, *machine.Machine) error  { return f.call("create") }
func (f *fake) Delete(_ context.Context, _ string, _ ...string) error { return f.call("delete") }
func (f *fake) ReleaseClaims(context.Context, string) error           { return f.call("release claims") }
func (f *fake) revoke(context.Context, string, []v1alpha1.CredentialStatus) error {
	return f.call("revoke")
}

func (f *fake) reconciler(change ...func(*machinerecord.Options)) *machinerecord.Reconciler {
	o := machinerecord.Options{
		Trigger: &kube.Trigger{}, Inventory: f, Records: f, Revoke: f.revoke, Log: slog.New(slog.DiscardHandler),
		CanChange:        func(string, bool) bool { return true },
		MayBeQuarantined: func(*machine.Machine) bool { return false },
	}
	for _, c := range change {
		c(&o)
	}
	return machinerecord.New(o)
}

var request = reconcile.Request{NamespacedName: types.NamespacedName{Name: "u"}}

// A step has its priority in the queue, when it is repeated, and after an error.
func TestReconcile_KeepsThePriorityOfItsStep(t *testing.T) {
	m := &machine.Machine{Namespace: "m", Name: "one", UID: "u"}
	failed := errors.New("the API is unavailable")
	for _, c := range []struct {
		name     string
		step     record.Step
		machine  *machine.Machine
		orphaned []v1alpha1.CredentialStatus
		priority int
		calls    []string
	}{
		{"quarantine", record.StepQuarantine, m, nil, kube.PriorityRevoke, []string{"update"}},
		{"revoke", record.StepRevoke, m, nil, kube.PriorityRevoke, []string{"read", "revoke", "update"}},
		{"join", record.StepJoin, m, nil, kube.PriorityJoin, []string{"update"}},
		{"delete with live credentials", record.StepDelete, nil, []v1alpha1.CredentialStatus{{ID: "a"}}, kube.PriorityJoin,
			[]string{"release claims", "revoke"}},
		{"delete", record.StepDelete, nil, nil, kube.PriorityResync, []string{"release claims", "revoke"}},
		{"release", record.StepRelease, m, nil, kube.PriorityResync, []string{"update"}},
		{"restate", record.StepRestate, m, nil, kube.PriorityResync, []string{"update"}},
		{"use", record.StepUse, m, nil, kube.PriorityResync, []string{"update"}},
		{"create", record.StepCreate, m, nil, kube.PriorityResync, []string{"create"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fake{step: c.step, machine: c.machine, orphaned: c.orphaned}
			var trigger *kube.Trigger
			r := f.reconciler(func(o *machinerecord.Options) { trigger = o.Trigger })
			if got := trigger.Priority(request); got != c.priority {
				t.Errorf("priority %d in the queue, want %d", got, c.priority)
			}
			f.err = failed
			result, err := r.Reconcile(t.Context(), request)
			if !errors.Is(err, failed) || result.Priority == nil || *result.Priority != c.priority {
				t.Errorf("after an error: %+v, %v", result, err)
			}
			f.err, f.calls = nil, nil
			if _, err := r.Reconcile(t.Context(), request); err != nil || !slices.Equal(f.calls, c.calls) {
				t.Errorf("calls %q, want %q; %v", f.calls, c.calls, err)
			}
			if f.orphaned != nil {
				t.Error("credentials that were revoked are still remembered")
			}
		})
	}
}

// Bookkeeping that has no turn occupies no worker, and holds up no quarantine.
func TestReconcile_BookkeepingWithoutATurnGoesBackToTheQueue(t *testing.T) {
	f := &fake{step: record.StepCreate, machine: &machine.Machine{Namespace: "m", Name: "one", UID: "u"}}
	r := f.reconciler(func(o *machinerecord.Options) { o.WritesPerSecond = 0.001 })
	for i := range 2 {
		result, err := r.Reconcile(t.Context(), request)
		if err != nil || i > 0 && (result.RequeueAfter < 15*time.Minute || *result.Priority != kube.PriorityResync) {
			t.Errorf("call %d: %+v, %v", i, result, err)
		}
	}
	if !slices.Equal(f.calls, []string{"create"}) {
		t.Errorf("calls %q", f.calls)
	}
	f.step = record.StepQuarantine
	if result, err := r.Reconcile(t.Context(), request); err != nil || result.RequeueAfter != 0 || len(f.calls) != 2 {
		t.Errorf("the quarantine waits: %+v, %v", result, err)
	}
}

// What rests on the absence of something waits until everything was read.
func TestReconcile_WaitsForWhatWasNotRead(t *testing.T) {
	m := &machine.Machine{Namespace: "m", Name: "one", UID: "u"}
	for step, wants := range map[record.Step]bool{
		record.StepQuarantine: true, record.StepRevoke: true, record.StepJoin: true, record.StepUse: true,
		record.StepRelease: false, record.StepRestate: false, record.StepCreate: false, record.StepDelete: false,
	} {
		f := &fake{step: step, machine: m, recorded: true}
		r := f.reconciler(func(o *machinerecord.Options) {
			o.CanChange = func(namespace string, release bool) bool {
				if namespace != "m" || release != (step == record.StepRelease) {
					t.Errorf("step %v: asked of %q, %v", step, namespace, release)
				}
				return false
			}
		})
		if _, err := r.Reconcile(t.Context(), request); err != nil || (len(f.calls) > 0) != wants {
			t.Errorf("step %v: calls %q, %v", step, f.calls, err)
		}
	}
	f := &fake{step: record.StepRelease, machine: m}
	r := f.reconciler(func(o *machinerecord.Options) {
		o.MayBeQuarantined = func(*machine.Machine) bool { return true }
	})
	if result, err := r.Reconcile(t.Context(), request); err != nil || result.RequeueAfter == 0 || len(f.calls) > 0 {
		t.Errorf("an unreadable object may demand the quarantine: %+v, %v, calls %q", result, err, f.calls)
	}
	f = &fake{step: record.StepDelete, recorded: true, err: records.ErrMachineThere}
	if result, err := f.reconciler().Reconcile(t.Context(), request); err != nil || result.RequeueAfter == 0 {
		t.Errorf("the API has the Machine: %+v, %v", result, err)
	}
}
