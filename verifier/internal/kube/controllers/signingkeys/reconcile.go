// SPDX-License-Identifier: Apache-2.0

// Package signingkeys creates and rotates the keys that all replicas of the verifier share: those that
// sign tokens, and those that seal challenges and report tickets. Package keys has the rules.
//
// It watches nothing itself. The inventory watches the Secret and uses the trigger. The controller also
// reconciles when a rotation is due, and after each interval. It reads the Secret live.
//
// It writes the Secret mcs-attest-keys, and creates it if it does not exist. It never replaces keys
// that it cannot parse: the inventory reports those, and an administrator deletes or corrects them.
// After a restore of etcd it replaces the keys that are void.
//
// It needs get, create and update on that Secret. No other part of the verifier writes keys, so an
// account that serves machines needs only list and watch.
//
// If it runs twice at the same time, the slower write conflicts and changes nothing. If it runs late,
// keys are rotated late. Without the Secret no machine is served until the controller has run.
package signingkeys

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
)

// Options configure a [Reconciler]. All are required.
type Options struct {
	Client client.Client    // reads live, see kube.NewClient
	Secret client.ObjectKey // of the keys
	// Rotation is the time between new keys. Publish is the time before a new key is used.
	Rotation, Publish time.Duration
	// Voided reports whether one of the keys is from before a restore of etcd.
	Voided func(keys.Pair) bool
	// Repairing reports whether [Reconciler.Renew] will be called, after earlier revocations were
	// repeated.
	Repairing func() bool
	Interval  time.Duration // the longest time between two reconciliations
	Trigger   *kube.Trigger
	Now       func() time.Time
	Log       *slog.Logger
}

// Reconciler maintains the keys.
type Reconciler struct{ o Options }

// New returns a reconciler. It makes no call.
func New(o Options) *Reconciler { return &Reconciler{o} }

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("signingkeys").WatchesRawSource(r.o.Trigger).
		WithOptions(kube.ControllerOptions()).Complete(r)
}

// Reconcile creates keys if there are none, and rotates those that are due.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	secret, pair, err := r.read(ctx)
	if errors.Is(err, errUnreadable) {
		return reconcile.Result{}, nil // the inventory reports it
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	now := r.o.Now()
	due := pair.Due(now, r.o.Rotation)
	switch {
	case secret == nil || r.o.Voided(pair):
		if !r.o.Repairing() {
			err = r.write(ctx, secret, keys.Pair{}, 0)
		}
	case pair.Rotating(now):
	case now.Before(due):
		return reconcile.Result{RequeueAfter: min(due.Sub(now), r.o.Interval)}, nil
	default:
		err = r.write(ctx, secret, pair, r.o.Publish)
	}
	return reconcile.Result{RequeueAfter: r.o.Interval}, err
}

// Renew replaces keys from before a restore of etcd. It returns an error if such keys remain. Each
// process that detected the restore may call it; the first call replaces the keys for all.
func (r *Reconciler) Renew(ctx context.Context) error {
	secret, pair, err := r.read(ctx)
	if errors.Is(err, errUnreadable) {
		return nil // no replica uses them
	}
	if err != nil || secret != nil && !r.o.Voided(pair) {
		return err
	}
	if err := r.write(ctx, secret, keys.Pair{}, 0); err != nil {
		return err
	}
	// Another process may have replaced them first.
	if _, pair, err = r.read(ctx); err == nil && r.o.Voided(pair) {
		err = errors.New("the keys are still those from before the restore of etcd")
	}
	return err
}

// errUnreadable means that the Secret exists but has no valid keys.
var errUnreadable = errors.New("the keys cannot be parsed")

// read returns the Secret, or nil if it does not exist, and its keys.
func (r *Reconciler) read(ctx context.Context) (*corev1.Secret, keys.Pair, error) {
	secret := &corev1.Secret{}
	if err := r.o.Client.Get(ctx, r.o.Secret, secret); kerrors.IsNotFound(err) {
		return nil, keys.Pair{}, nil
	} else if err != nil {
		return nil, keys.Pair{}, fmt.Errorf("read Secret %s: %w", r.o.Secret, err)
	}
	pair, err := keys.Parse(secret.Data)
	if err != nil {
		return secret, keys.Pair{}, errors.Join(errUnreadable, err)
	}
	return secret, pair, nil
}

// write adds keys to the pair and stores it in the Secret. It creates the Secret if it is nil. It does
// not overwrite what another process wrote in the meantime.
func (r *Reconciler) write(ctx context.Context, secret *corev1.Secret, pair keys.Pair, publish time.Duration) error {
	now := r.o.Now()
	next, err := pair.Rotate(now, publish)
	if err != nil {
		return err
	}
	data, err := next.Data()
	if err != nil {
		return err
	}
	first := secret == nil
	if first {
		err = r.o.Client.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.o.Secret.Namespace, Name: r.o.Secret.Name},
			Type:       corev1.SecretTypeOpaque, Data: data,
		})
	} else {
		for name, value := range data {
			secret.Data[name] = value
		}
		err = r.o.Client.Update(ctx, secret)
	}
	if kerrors.IsAlreadyExists(err) || kerrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the keys: %w", err)
	}
	r.o.Log.Info("new keys", "used_from", now.Add(publish).UTC().Format(time.RFC3339), "first", first)
	return nil
}
