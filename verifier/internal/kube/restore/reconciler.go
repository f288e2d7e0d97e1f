// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	rule "github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// Reconciler repairs the records after a restore of etcd, and then requests new keys.
type Reconciler struct {
	*Guard
	// Machine returns the Machine with a UID, and the UID that names its record.
	Machine func(uid string) (m *machine.Machine, recordUID string)
	// Latch returns the cached state of a record.
	Latch func(uid string) rule.Latch
	// Update changes a record.
	Update func(ctx context.Context, uid string, change store.Change) error
	// RenewKeys replaces keys from before the restore. It returns an error if such keys remain.
	RenewKeys func(ctx context.Context) error
	// Ready reports whether Machines and records were read again. With patience, a forbidden namespace
	// counts as not read yet.
	Ready func(patience bool) bool
	// Patience is the time for which a starting API server may deny what it will allow.
	Patience time.Duration
	// Limit is the rate limit of writes.
	Limit flowcontrol.RateLimiter
	// Changed is called when the repair is complete.
	Changed func()
}

const (
	// unread is the pause while Machines and records are read again.
	unread = time.Second / 2
	// again is the interval at which a repair is triggered in any case.
	again = 10 * time.Second
	// maxReported is the maximum number of reported errors of one run.
	maxReported = 10
)

// SetupWithManager adds the controller. It runs in every replica with a memory, leader or not.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("restore").WatchesRawSource(r.trigger).
		WithOptions(controller.Options{
			NeedLeaderElection: ptr.To(false),
			RateLimiter:        workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](100*time.Millisecond, 5*time.Second),
		}).Complete(r)
}

// Repairing reports whether a repair is pending.
func (g *Guard) Repairing() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.repaired
}

// Rekeyed reports whether the repair of each record was tried, and new keys exist. Then [Guard.Outdated]
// reports the records that could not be repaired. In a process that does not repair, it is false after a
// restore.
func (g *Guard) Rekeyed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rekeyed
}

// Reconcile repairs the records, and then the keys. If a record cannot be written, its state stays in
// memory, and only its own Machine is not admitted.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	r.mu.Lock()
	if len(r.removed) > 0 {
		latches := maps.Clone(r.latches)
		maps.Copy(latches, r.removed)
		r.latches, r.removed = latches, nil
	}
	latches, epoch, repaired, rereading := r.latches, r.Epoch(), r.repaired, r.rereading
	r.mu.Unlock()
	switch {
	case repaired:
		return reconcile.Result{}, nil
	case rereading || !r.ready():
		return reconcile.Result{RequeueAfter: unread}, nil
	}
	left, why, err := r.repair(ctx, latches)
	if err == nil {
		err = r.RenewKeys(ctx)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("repair the records after a restore of etcd: %w", err)
	}
	r.mu.Lock()
	if r.rereading || r.Epoch() != epoch { // another restore was detected
		r.mu.Unlock()
		return reconcile.Result{RequeueAfter: unread}, nil
	}
	r.latches, r.repaired, r.rekeyed = left, len(left)+len(r.removed) == 0, true
	r.mu.Unlock()
	if why != nil {
		return reconcile.Result{}, fmt.Errorf("repair the records of %d Machines: %w", len(left), why)
	}
	r.o.Log.Info("the revocations from before the restore of etcd were repeated", "machines", len(latches))
	r.Changed()
	return reconcile.Result{}, nil
}

// ready reports whether the repair can begin. It does not wait for a namespace that stays forbidden,
// because all others would have no keys.
func (r *Reconciler) ready() bool {
	r.mu.Lock()
	patience := len(r.restores) > 0 && r.o.Now().Sub(r.restores[len(r.restores)-1].at) < r.Patience
	r.mu.Unlock()
	return r.Ready(patience)
}

// repair sets the latches again. It returns those that it could not write, with the errors; only their
// own Machines are not admitted. If the API does not answer, that is an error, because records must be
// repaired before keys.
func (r *Reconciler) repair(ctx context.Context, latches map[string]rule.Latch) (map[string]rule.Latch, error, error) {
	left := maps.Clone(latches)
	var why []error
	for uid, l := range latches {
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		m, recordUID := r.Machine(uid)
		// A Machine that does not exist cannot attest. The cached state does not show why a record is quarantined.
		if m == nil || recordUID != uid || !l.Quarantined && r.Latch(uid).Covers(l) {
			delete(left, uid)
			continue
		}
		if err := r.Limit.Wait(ctx); err != nil {
			return nil, nil, err
		}
		err := r.Update(ctx, uid, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return rule.Repair(rec, m, l, r.o.Now()), nil
		})
		switch {
		case err == nil || reason.From(err).Code == reason.MachineNotFound:
			delete(left, uid)
		case !ofOneRecord(err):
			return nil, nil, err
		case len(why) < maxReported:
			why = append(why, err)
		}
	}
	return left, errors.Join(why...), nil
}

// ofOneRecord reports whether an error concerns only one record. An internal error may concern one
// object, such as one that cannot be decoded. Any other error counts for all records, unless the API or
// package records explains it.
func ofOneRecord(err error) bool {
	if errors.Is(err, store.ErrRestored) { // again: what was repaired may be lost
		return false
	}
	if kerrors.IsInternalError(err) {
		return true
	}
	explained := reason.From(err).Code != reason.Internal || kerrors.ReasonForError(err) != metav1.StatusReasonUnknown
	return explained && !sources.Unavailable(err)
}
