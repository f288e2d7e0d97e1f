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

// Reconciler repairs what a restore of etcd took from the records, and then has new keys made.
type Reconciler struct {
	*Guard
	// Machine returns the Machine of a UID, and the UID that its record is named by.
	Machine func(uid string) (m *machine.Machine, recordUID string)
	// Latch returns what a record has, as far as it is known.
	Latch func(uid string) rule.Latch
	// Update changes a record.
	Update func(ctx context.Context, uid string, change store.Change) error
	// RenewKeys replaces keys from before the restore. It returns an error if there are no others afterwards.
	RenewKeys func(ctx context.Context) error
	// Ready reports whether Machines and records were read again. With patience, a namespace that may not be read
	// counts as one that was not read yet.
	Ready func(patience bool) bool
	// Patience is how long an API server that has just started may refuse what it will allow.
	Patience time.Duration
	// Limit bounds what is written.
	Limit flowcontrol.RateLimiter
	// Changed is called when the repair is complete.
	Changed func()
}

const (
	// unread is the pause while Machines and records are read again.
	unread = time.Second / 2
	// again is how often a repair is triggered in any case.
	again = 10 * time.Second
	// maxTold bounds the errors of one run that are reported.
	maxTold = 10
)

// SetupWithManager adds the controller. It runs in every replica that has a memory, leader or not.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("restore").WatchesRawSource(r.trigger).
		WithOptions(controller.Options{
			NeedLeaderElection: ptr.To(false),
			RateLimiter:        workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](100*time.Millisecond, 5*time.Second),
		}).Complete(r)
}

// Repairing reports whether something is still to be repaired.
func (g *Guard) Repairing() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.repaired
}

// Rekeyed reports whether the repair of each record was tried, and there are new keys. Then [Guard.Outdated] says which
// records could not be repaired. In a process that does not repair it is false after a restore.
func (g *Guard) Rekeyed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rekeyed
}

// Reconcile repairs the records, and then the keys. A record that cannot be written keeps only its own Machine
// out: what is to be written there stays in memory.
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
		return reconcile.Result{}, fmt.Errorf("repair what a restore of etcd took: %w", err)
	}
	r.mu.Lock()
	if r.rereading || r.Epoch() != epoch { // there was another restore
		r.mu.Unlock()
		return reconcile.Result{RequeueAfter: unread}, nil
	}
	r.latches, r.repaired, r.rekeyed = left, len(left)+len(r.removed) == 0, true
	r.mu.Unlock()
	if why != nil {
		return reconcile.Result{}, fmt.Errorf("repair the records of %d Machines: %w", len(left), why)
	}
	r.o.Log.Info("what was revoked before the restore of etcd is revoked again", "machines", len(latches))
	r.Changed()
	return reconcile.Result{}, nil
}

// ready reports whether the repair can begin. A namespace that stays forbidden is not waited for: it would keep all
// others without keys.
func (r *Reconciler) ready() bool {
	r.mu.Lock()
	patience := len(r.restores) > 0 && r.o.Now().Sub(r.restores[len(r.restores)-1].at) < r.Patience
	r.mu.Unlock()
	return r.Ready(patience)
}

// repair sets the latches again. It returns those that it could not write, and why: these keep only their own Machines
// out. An API that does not answer is an error: records come before keys.
func (r *Reconciler) repair(ctx context.Context, latches map[string]rule.Latch) (map[string]rule.Latch, error, error) {
	left := maps.Clone(latches)
	var why []error
	for uid, l := range latches {
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		m, recordUID := r.Machine(uid)
		if m == nil || recordUID != uid || r.Latch(uid).Covers(l) {
			delete(left, uid) // a Machine that does not exist cannot attest
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
		case len(why) < maxTold:
			why = append(why, err)
		}
	}
	return left, errors.Join(why...), nil
}

// ofOneRecord reports whether an error says nothing of other records. An internal error may be that of one object, such
// as one that cannot be decoded. An error that neither the API nor the package of records explains counts for all.
func ofOneRecord(err error) bool {
	if kerrors.IsInternalError(err) {
		return true
	}
	explained := reason.From(err).Code != reason.Internal || kerrors.ReasonForError(err) != metav1.StatusReasonUnknown
	return explained && !sources.Unavailable(err)
}
