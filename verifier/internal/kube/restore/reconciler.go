package restore

import (
	"context"
	"fmt"
	"maps"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
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

// unread is the pause while Machines and records are read again.
const unread = time.Second / 2

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

// Reconcile repairs the records, and then the keys. Where the verifier may not write, no machine can attest either:
// what is to be written there stays in memory until it may.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if !r.Repairing() {
		return reconcile.Result{}, nil
	}
	if !r.ready() {
		return reconcile.Result{RequeueAfter: unread}, nil
	}
	r.mu.Lock()
	latches, epoch := r.latches, r.Epoch()
	r.mu.Unlock()
	forbidden, why, err := r.repair(ctx, latches)
	if err == nil {
		err = r.RenewKeys(ctx)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("repair what a restore of etcd took: %w", err)
	}
	r.mu.Lock()
	if r.Epoch() != epoch { // there was another restore, which triggers again
		r.mu.Unlock()
		return reconcile.Result{}, nil
	}
	r.latches, r.repaired = forbidden, len(forbidden) == 0
	r.mu.Unlock()
	if why != nil {
		return reconcile.Result{}, fmt.Errorf("repair the records of %d Machines: %w", len(forbidden), why)
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

// repair sets the latches again. It returns those that it may not write, and why.
func (r *Reconciler) repair(ctx context.Context, latches map[string]rule.Latch) (map[string]rule.Latch, error, error) {
	forbidden := maps.Clone(latches)
	var why error
	for uid, l := range latches {
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		m, recordUID := r.Machine(uid)
		if m == nil || recordUID != uid || r.Latch(uid).Covers(l) {
			delete(forbidden, uid) // a Machine that does not exist cannot attest
			continue
		}
		r.Limit.Accept()
		err := r.Update(ctx, uid, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			return rule.Repair(rec, m, l, r.o.Now()), nil
		})
		switch {
		case kerrors.IsForbidden(err):
			why = err
		case err != nil && reason.From(err).Code != reason.MachineNotFound:
			return nil, nil, err
		default:
			delete(forbidden, uid)
		}
	}
	return forbidden, why, nil
}
