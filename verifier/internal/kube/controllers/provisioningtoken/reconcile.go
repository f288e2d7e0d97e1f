// SPDX-License-Identifier: Apache-2.0

// Package provisioningtoken rotates the provisioning token, and completes the edits of an
// administrator. Package provisioning has the rules.
//
// It watches nothing itself. The inventory watches the Secret and uses the trigger. The controller also
// reconciles when a rotation is due, and after each interval. It reads the Secret live.
//
// It writes the Secret that provisioningToken.secret of the configuration names, in two cases. First, a
// rotation is due by provisioningToken.rotateEvery. Second, an administrator wrote another token: the
// previous one stays valid for the grace period, and the Secret must tell this to replicas that start
// later. It never creates a Secret, and never replaces a token that it cannot parse. It writes nothing
// while a restore of etcd suspends the token.
//
// It needs get and update on that Secret.
//
// If it runs twice at the same time, the slower write conflicts and changes nothing. If it runs late,
// the token is rotated late, and a replica that starts in the meantime does not accept the token from
// before an edit.
package provisioningtoken

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/provisioning"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
)

// Options configure a [Reconciler]. All but RotateEvery are required.
type Options struct {
	Client client.Client    // reads live, see kube.NewClient
	Secret client.ObjectKey // of the token
	// RotateEvery is the time between rotations. If zero, the token is never rotated.
	RotateEvery time.Duration
	Grace       time.Duration
	// InForce returns the tokens that the inventory uses, and the resourceVersion of the Secret from
	// which they come. They differ from the content of that Secret if an administrator edited it.
	// InForce returns false if no token is in force.
	InForce  func() (v provisioning.View, resourceVersion string, ok bool)
	Interval time.Duration // the longest time between two reconciliations
	Trigger  *kube.Trigger
	Now      func() time.Time
	Log      *slog.Logger
}

// Reconciler maintains the provisioning token.
type Reconciler struct{ o Options }

// New returns a reconciler. It makes no call.
func New(o Options) *Reconciler { return &Reconciler{o} }

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("provisioningtoken").WatchesRawSource(r.o.Trigger).
		WithOptions(kube.ControllerOptions()).Complete(r)
}

// Reconcile completes an edit, or rotates the token if that is due.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	again := reconcile.Result{RequeueAfter: r.o.Interval}
	view, version, ok := r.o.InForce()
	if !ok {
		return again, nil // a rotation would keep a restored token valid as the previous one
	}
	var secret corev1.Secret
	if err := r.o.Client.Get(ctx, r.o.Secret, &secret); kerrors.IsNotFound(err) {
		return again, nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("read Secret %s: %w", r.o.Secret, err)
	}
	read, err := provisioning.Parse(secret.Data)
	if err != nil {
		return again, nil // the inventory reports it
	}
	now := r.o.Now()
	inForce, _ := view.At(now)
	due, rotates := read.Due(secret.CreationTimestamp.Time, r.o.RotateEvery, r.o.Grace)
	edited := !inForce.Equal(read)
	switch {
	// The inventory does not have an edit yet, and requests another reconciliation then. A rotation now would end
	// the token from before the edit. After a second edit, the previous token may have been removed on purpose.
	case secret.ResourceVersion != version:
		return again, nil
	case edited:
		read = inForce
	case !rotates:
		return again, nil
	case now.Before(due):
		return reconcile.Result{RequeueAfter: min(due.Sub(now), r.o.Interval)}, nil
	default:
		if read, err = read.Rotate(now, rand.Reader, r.o.Grace); errors.Is(err, provisioning.ErrRotating) {
			return again, nil
		} else if err != nil {
			return reconcile.Result{}, err
		}
	}
	for name, value := range read.Data() {
		secret.Data[name] = value
	}
	if err := r.o.Client.Update(ctx, &secret); kerrors.IsConflict(err) {
		return again, nil // the inventory receives the other change
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("write the provisioning token: %w", err)
	}
	r.o.Log.Info("provisioning token", "edited", edited, "previous_until", read.PreviousExpires.Format(time.RFC3339))
	return again, nil
}
