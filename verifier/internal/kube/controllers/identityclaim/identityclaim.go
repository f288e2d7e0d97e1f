// SPDX-License-Identifier: Apache-2.0

// Package identityclaim releases the IdentityClaims of Machines that were deleted and left no record.
// Such a claim does no harm, because it is also released when another machine presents the identity. So
// the controller reads all claims only when it starts, and once an hour.
//
// It watches nothing. It lists IdentityClaims, and deletes those whose Machine the API confirms as
// deleted. Package records revokes the remaining bootstrap credentials of such a Machine first. So the
// controller needs list and delete on identityclaims, get on machines and namespaces, and delete on the
// Secrets of credentials: those that package credential creates, and those that it publishes.
//
// A claim is deleted only in the version that was read. So a late or repeated run deletes no claim that
// another machine holds. If the verifier may not read a namespace, or if a revocation failed, the claims
// of those Machines remain for the next run.
package identityclaim

import (
	"cmp"
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

const (
	every        = time.Hour
	defaultRetry = time.Minute
)

// Options configure a [Reconciler]. Retry is optional.
type Options struct {
	Claims Claims
	// Known reports whether a Machine with this UID exists.
	Known func(uid string) bool
	// Synced reports whether the Machines were read. CanChange reports this for one namespace.
	Synced    func() (bool, []string)
	CanChange func(namespace string) bool
	// Limit is the rate limit of deletions.
	Limit flowcontrol.RateLimiter
	// Retry is the pause before the next run if the Machines were not read yet. Default one minute.
	Retry time.Duration
}

// Claims reads and releases claims.
type Claims interface {
	EachClaim(ctx context.Context, f func(v1alpha1.IdentityClaimSpec)) error
	// ReleaseClaims also revokes the credentials of the Machine.
	ReleaseClaims(ctx context.Context, uid string) error
}

// Reconciler releases claims. Use [New].
type Reconciler struct{ o Options }

// New returns a reconciler. It makes no call.
func New(o Options) *Reconciler {
	o.Retry = cmp.Or(o.Retry, defaultRetry)
	return &Reconciler{o: o}
}

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("identityclaim").WatchesRawSource(kube.Every(every)).
		WithOptions(controller.Options{
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, 10*time.Minute),
		}).Complete(r)
}

// Reconcile releases the claims of every Machine that was deleted.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if synced, _ := r.o.Synced(); !synced {
		return reconcile.Result{RequeueAfter: wait.Jitter(r.o.Retry/2, 1)}, nil
	}
	deleted := map[string]string{} // namespace by the UID of the Machine
	err := r.o.Claims.EachClaim(ctx, func(claim v1alpha1.IdentityClaimSpec) {
		if uid := claim.MachineUID; uid != "" && !r.o.Known(uid) && !record.IsBreakGlass(uid) {
			deleted[uid] = claim.MachineRef.Namespace
		}
	})
	if err != nil {
		return reconcile.Result{}, err
	}
	var failed []error
	for uid, namespace := range deleted {
		if !r.o.CanChange(namespace) {
			continue
		}
		if err := r.release(ctx, uid); err != nil {
			failed = append(failed, err)
		}
		if ctx.Err() != nil {
			return reconcile.Result{}, ctx.Err()
		}
	}
	return reconcile.Result{}, errors.Join(failed...)
}

func (r *Reconciler) release(ctx context.Context, uid string) error {
	if err := r.o.Limit.Wait(ctx); err != nil {
		return err
	}
	err := r.o.Claims.ReleaseClaims(ctx, uid)
	if errors.Is(err, records.ErrMachineThere) {
		return nil // the watch reports it as well
	}
	return err
}
