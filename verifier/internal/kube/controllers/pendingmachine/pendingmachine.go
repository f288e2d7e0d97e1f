// SPDX-License-Identifier: Apache-2.0

// Package pendingmachine deletes machines that were pending for too long: MachineAttestations in the
// verifier's namespace that no administrator has approved, and whose machine stopped sending requests.
//
// It watches nothing and runs once a minute. It lists and deletes MachineAttestations in the verifier's
// namespace, and needs those two verbs there.
//
// An object is deleted only in the version that was read, so an approval is never lost. A late or
// repeated run does no harm: the front also expires machines when there are too many.
package pendingmachine

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
)

// Reconciler expires pending machines. All fields are required.
type Reconciler struct {
	// Expire deletes the machines that were pending for too long at this time.
	Expire func(ctx context.Context, now time.Time) error
	Now    func() time.Time
	Every  time.Duration
}

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("pendingmachine").WatchesRawSource(kube.Every(r.Every)).
		WithOptions(controller.Options{
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute),
		}).Complete(r)
}

// Reconcile deletes the machines that were pending for too long.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	return reconcile.Result{}, r.Expire(ctx, r.Now())
}
