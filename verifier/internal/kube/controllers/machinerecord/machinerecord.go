// SPDX-License-Identifier: Apache-2.0

package machinerecord

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

const (
	workers = 12
	// bookkeepers is the number of workers that may write bookkeeping at one time.
	bookkeepers = 4

	defaultWritesPerSecond = 20
	defaultRetry           = time.Minute
)

// Options configure a [Reconciler]. WritesPerSecond, Retry, Now and Revoke are optional.
type Options struct {
	// Trigger is called with the UID of a Machine when the Machine or its record has changed. New
	// sets its fields.
	Trigger   *kube.Trigger
	Inventory Inventory
	Records   Records
	// CanChange reports whether every object was read that could prevent a change in this namespace. If
	// release is true, it also considers the objects that could prevent the release of a quarantine.
	CanChange func(namespace string, release bool) bool
	// MayBeQuarantined reports whether an object that was never readable may quarantine the Machine.
	MayBeQuarantined func(*machine.Machine) bool
	// Revoke revokes bootstrap credentials. Calls may repeat. It is nil if machines have none.
	Revoke func(ctx context.Context, uid string, all []v1alpha1.CredentialStatus) error
	Log    *slog.Logger
	Now    func() time.Time // default time.Now
	// WritesPerSecond limits bookkeeping. Default 20.
	WritesPerSecond float64
	// Retry is the pause before a step that another object prevents is retried. All Machines are
	// compared every ten times Retry. Default one minute.
	Retry time.Duration
}

// Inventory is the cached state of Machines and their records.
type Inventory interface {
	// Compare returns the next step for the record of a Machine, and the Machine, which is nil if it
	// was deleted. With StepUse, the Machine's NodeRef is the Node of its certificate.
	Compare(uid string) (record.Step, *machine.Machine)
	// OutOfLine returns the UIDs of all Machines and records with a next step.
	OutOfLine() []string
	// RecordNamespace returns the namespace of the record, or false if there is none.
	RecordNamespace(uid string) (string, bool)
	// Revocable reports whether a Machine that was deleted has live credentials.
	Revocable(uid string) bool
	// Orphaned returns the live credentials of records that were deleted before these credentials were
	// revoked. DropOrphaned removes them from memory.
	Orphaned(uid string) []v1alpha1.CredentialStatus
	DropOrphaned(uid string)
}

// Records reads and writes records.
type Records interface {
	Record(ctx context.Context, uid string) (*v1alpha1.MachineAttestation, error)
	Update(ctx context.Context, uid string, change store.Change) error
	EnsureRecord(ctx context.Context, m *machine.Machine) error
	Delete(ctx context.Context, uid string, namespaces ...string) error
	ReleaseClaims(ctx context.Context, uid string) error
}

// Reconciler keeps records consistent with their Machines. Use [New].
type Reconciler struct {
	o      Options
	budget *budget
}

// New returns a reconciler. It makes no call.
func New(o Options) *Reconciler {
	o.WritesPerSecond = cmp.Or(o.WritesPerSecond, defaultWritesPerSecond)
	o.Retry = cmp.Or(o.Retry, defaultRetry)
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Reconciler{o: o, budget: newBudget(o.WritesPerSecond, bookkeepers)}
	o.Trigger.All, o.Trigger.Interval = r.all, 10*o.Retry
	o.Trigger.Priority = func(req reconcile.Request) int {
		step, _ := o.Inventory.Compare(req.Name)
		return r.priority(req.Name, step)
	}
	return r
}

// SetupWithManager adds the controller to a manager. Each manager begins with a full budget.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	r.budget = newBudget(r.o.WritesPerSecond, bookkeepers)
	return ctrl.NewControllerManagedBy(m).Named("machinerecord").WatchesRawSource(r.o.Trigger).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
				500*time.Millisecond, time.Minute),
		}).Complete(r)
}

func (r *Reconciler) all() (requests []reconcile.Request) {
	for _, uid := range r.o.Inventory.OutOfLine() {
		requests = append(requests, kube.Request(uid))
	}
	return requests
}

// priority returns the priority of a step. Below PriorityJoin it is bookkeeping.
func (r *Reconciler) priority(uid string, step record.Step) int {
	switch {
	case step == record.StepQuarantine, step == record.StepRevoke:
		return kube.PriorityRevoke
	case step == record.StepJoin, step == record.StepDelete && r.o.Inventory.Revocable(uid):
		return kube.PriorityJoin
	}
	return kube.PriorityResync
}

// Reconcile performs the next step for the record of the Machine whose UID is the name of the request.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	uid := req.Name
	step, m := r.o.Inventory.Compare(uid)
	if !r.allowed(uid, step, m) {
		r.budget.cancel(uid)
		return reconcile.Result{}, nil // after everything was read, all Machines are compared again
	}
	priority := r.priority(uid, step)
	result := reconcile.Result{Priority: ptr.To(priority)}
	if step == record.StepRelease && r.o.MayBeQuarantined(m) {
		result.RequeueAfter = wait.Jitter(r.o.Retry/2, 1)
		return result, nil
	}
	if priority < kube.PriorityJoin {
		release, pause := r.budget.acquire(uid, time.Now())
		if release == nil {
			result.RequeueAfter = pause
			return result, nil
		}
		defer release()
	}
	err := r.perform(ctx, uid, step, m)
	if errors.Is(err, records.ErrMachineThere) {
		result.RequeueAfter = wait.Jitter(r.o.Retry/2, 1) // the watch reports it as well
		return result, nil
	}
	return result, err
}

// allowed reports whether there is a next step and enough was read to perform it. A forbidden namespace
// delays only steps of its own Machines.
func (r *Reconciler) allowed(uid string, step record.Step, m *machine.Machine) bool {
	switch step {
	case record.StepNone:
		return false
	case record.StepQuarantine, record.StepRevoke, record.StepJoin, record.StepUse:
		return true
	}
	namespace := ""
	if m != nil {
		namespace = records.Namespace(m)
	} else {
		namespace, _ = r.o.Inventory.RecordNamespace(uid)
	}
	return r.o.CanChange(namespace, step == record.StepRelease)
}

func (r *Reconciler) perform(ctx context.Context, uid string, step record.Step, m *machine.Machine) error {
	now := r.o.Now()
	change := func(f func(*v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation) error {
		return r.o.Records.Update(ctx, uid, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return f(rec), nil
		})
	}
	switch step {
	case record.StepQuarantine:
		return change(func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
			return record.Quarantine(rec, m, true, now)
		})
	case record.StepRevoke:
		// The revocation follows the latch, so that the latch stops the machine even while the Secrets
		// cannot be deleted. It also revokes credentials that were issued in the meantime.
		if err := r.revoke(ctx, uid); err != nil {
			return err
		}
		return change(record.Revoked)
	case record.StepJoin:
		return change(func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
			return record.Joined(rec, m.NodeRef, now)
		})
	case record.StepRelease:
		return change(func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
			if rec != nil && restore.Unconfirmed(rec) {
				return nil
			}
			return record.Quarantine(rec, m, false, now)
		})
	case record.StepUse:
		return change(func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
			return record.CertificateUsed(rec, m.NodeRef)
		})
	case record.StepRestate:
		return change(func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
			return restore.Confirmed(rec, now)
		})
	case record.StepCreate:
		return r.o.Records.EnsureRecord(ctx, m)
	case record.StepDelete:
		return r.delete(ctx, uid)
	}
	return nil
}

// revoke revokes the bootstrap credentials of a Machine. A credential is on the record before it is
// served, so none is missed.
func (r *Reconciler) revoke(ctx context.Context, uid string) error {
	if r.o.Revoke == nil {
		return nil
	}
	rec, err := r.o.Records.Record(ctx, uid)
	if err != nil {
		return err
	}
	var all []v1alpha1.CredentialStatus
	if rec != nil {
		all = rec.Status.Credentials
	}
	return r.o.Revoke(ctx, uid, all)
}

// delete deletes the record and the claims of a deleted Machine, if the API confirms that it was
// deleted.
func (r *Reconciler) delete(ctx context.Context, uid string) error {
	namespace, exists := r.o.Inventory.RecordNamespace(uid)
	if exists {
		if err := r.o.Records.Delete(ctx, uid, namespace); err != nil {
			return fmt.Errorf("delete the record of Machine %s: %w", uid, err)
		}
		r.o.Log.Info("record deleted with its Machine", "uid", uid)
	} else if err := r.o.Records.ReleaseClaims(ctx, uid); err != nil {
		return fmt.Errorf("release the claims of Machine %s: %w", uid, err)
	}
	orphaned := r.o.Inventory.Orphaned(uid)
	if r.o.Revoke == nil || exists && len(orphaned) == 0 {
		return nil
	}
	// The API server's garbage collector had already deleted a record.
	if err := r.o.Revoke(ctx, uid, orphaned); err != nil {
		return fmt.Errorf("revoke the credentials of Machine %s: %w", uid, err)
	}
	r.o.Inventory.DropOrphaned(uid)
	return nil
}
