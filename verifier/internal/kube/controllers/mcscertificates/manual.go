// SPDX-License-Identifier: Apache-2.0

package mcscertificates

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/certrotation"
)

// The methods in this file implement the certs commands, which run with an administrator's account.

// Init creates the objects that do not exist, so that the controller can maintain them. The serving
// certificate and the CA that machines trust do not change. With force, Init also creates them where
// the machine-config-operator of a newer version would create a CA itself.
func (r *Reconciler) Init(ctx context.Context, force bool) (mcscert.Status, error) {
	if err := r.settle(ctx); err != nil {
		return mcscert.Status{}, err
	}
	_, s, err := r.owner(ctx)
	if err != nil {
		return s, err
	}
	if force && s.Case == mcscert.CaseOperatorToCome {
		r.always, s.Case = true, mcscert.CaseConfigured
	}
	if !s.Case.Ours() {
		return s, fmt.Errorf("%w: %s", mcscert.ErrNotOurs, s.Case)
	}
	if err := r.retype(ctx); err != nil {
		return mcscert.Status{}, err
	}
	return r.retryConflicts(ctx, false)
}

// Rotate performs the next step of a rotation; see [mcscert.Status.Next].
func (r *Reconciler) Rotate(ctx context.Context, force mcscert.Force) (mcscert.Step, mcscert.Status, error) {
	if err := r.settle(ctx); err != nil {
		return "", mcscert.Status{}, err
	}
	o, s, err := r.owner(ctx)
	switch {
	case err != nil:
		return "", s, err
	case !s.Case.Ours():
		return "", s, fmt.Errorf("%w: %s", mcscert.ErrNotOurs, s.Case)
	case o.ca == nil:
		return "", s, fmt.Errorf("the Secret %s has no CA: run 'certs init' to create it", r.ca)
	case o.serving == nil: // Init may have been interrupted
		return "", s, fmt.Errorf("the Secret %s does not exist: run 'certs init' to create it", r.serving)
	}
	// Renew what is due first, and read whether the pointer configs have it.
	if s, err = r.retryConflicts(ctx, false); err != nil {
		return "", s, err
	}
	if unsure := r.pointerConfigs.unsure; len(unsure) > 0 {
		return "", s, errUnsure(unsure...)
	}
	step, err := s.Next(r.o.Now(), force)
	if err != nil {
		return "", s, err
	}
	if step == mcscert.StepCA {
		if err := r.expireCA(ctx); err != nil {
			return step, mcscert.Status{}, err
		}
	}
	s, err = r.retryConflicts(ctx, step == mcscert.StepServing)
	return step, s, err
}

// settle asks the API server for the kinds and objects that it does not have, until it is certain that they do not
// exist.
func (r *Reconciler) settle(ctx context.Context) error {
	p := &r.pointerConfigs
	p.certain = commandCertain
	return wait.PollUntilContextCancel(ctx, commandCertain/5, true, func(ctx context.Context) (bool, error) {
		_, err := p.machineSets(ctx, p.namespaces)
		_, unknown := r.hosts(ctx)
		return err != nil || len(p.unsure) == 0 && !errors.Is(unknown, errAbsent), nil // the pass reports the error
	})
}

// retryConflicts repeats a pass after a conflict with another writer.
func (r *Reconciler) retryConflicts(ctx context.Context, force bool) (s mcscert.Status, err error) {
	overtaken := func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
	}
	err = retry.OnError(retry.DefaultRetry, overtaken, func() (err error) {
		s, err = r.ensure(ctx, force)
		return err
	})
	r.publish(ctx, s, err)
	return s, err
}

// expireCA removes an annotation, which requests a new CA.
func (r *Reconciler) expireCA(ctx context.Context) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		ca := &corev1.Secret{}
		if err := r.o.Client.Get(ctx, r.ca, ca); err != nil {
			return err
		}
		delete(ca.Annotations, certrotation.NotAfterAnnotation)
		return r.o.Client.Update(ctx, ca)
	})
	if err != nil {
		return fmt.Errorf("request a new CA in Secret %s: %w", r.ca, err)
	}
	return nil
}

// copySuffix is the suffix of the Secret that has a copy while retype recreates the serving Secret.
const copySuffix = "-copy"

// errInspect ends the error about a Secret that an administrator must inspect.
var errInspect = errors.New("inspect it, and delete it if it is not needed")

// retype recreates a serving Secret of another type. The type of a Secret is immutable, and installers
// have used Opaque. No other object may have the key, so retype first creates a copy of the Secret, and
// deletes the copy last. Whether a write succeeded is read again after each one, because its answer may
// be lost. If retype ends early, the next 'certs init' continues.
func (r *Reconciler) retype(ctx context.Context) error {
	// An interrupt does not end it while the Secret does not exist.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), passTimeout)
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		done, err := r.retypeStep(ctx)
		if ctx.Err() == nil {
			last = err
		}
		if errors.Is(err, errInspect) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
			return false, err
		}
		return done, nil
	})
	if err == nil || errors.Is(err, errInspect) {
		return err
	}
	if last != nil { // says more than that the time is over
		err = last
	}
	return fmt.Errorf("recreate Secret %s: %w; run 'certs init' again, which continues with the copy in Secret %s",
		r.serving, err, r.servingCopy())
}

func (r *Reconciler) servingCopy() client.ObjectKey {
	return client.ObjectKey{Namespace: r.serving.Namespace, Name: r.serving.Name + copySuffix}
}

// retypeStep reads the serving Secret and its copy, and does the next write.
func (r *Reconciler) retypeStep(ctx context.Context) (done bool, err error) {
	serving, err := find(ctx, r.o.Client, "Secret", r.serving, &corev1.Secret{})
	if err != nil {
		return false, err
	}
	kept, err := find(ctx, r.o.Client, "Secret", r.servingCopy(), &corev1.Secret{})
	if err != nil {
		return false, err
	}
	retyped := serving == nil || serving.Type == corev1.SecretTypeTLS
	if kept == nil && retyped {
		return true, nil
	}
	from := cmp.Or(serving, kept)
	if _, err := tls.X509KeyPair(from.Data[corev1.TLSCertKey], from.Data[corev1.TLSPrivateKeyKey]); err != nil {
		return false, fmt.Errorf("the Secret %s has no valid serving certificate (%w): %w",
			client.ObjectKeyFromObject(from), err, errInspect)
	}
	next := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.serving.Namespace, Name: r.serving.Name, Labels: from.Labels,
			Annotations: from.Annotations, OwnerReferences: from.OwnerReferences},
		Type: corev1.SecretTypeTLS, Data: from.Data,
	}
	stale := kept
	switch {
	case kept == nil:
		next.Name += copySuffix
		return false, r.o.Client.Create(ctx, next)
	case serving == nil:
		return false, r.o.Client.Create(ctx, next)
	case !maps.EqualFunc(serving.Data, kept.Data, bytes.Equal):
		return false, fmt.Errorf("the Secret %s differs from %s: %w", r.servingCopy(), r.serving, errInspect)
	case !retyped:
		stale = serving
	}
	same := client.Preconditions{UID: &stale.UID, ResourceVersion: &stale.ResourceVersion}
	return false, r.o.Client.Delete(ctx, stale, same)
}
