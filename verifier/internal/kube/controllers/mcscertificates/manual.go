// SPDX-License-Identifier: Apache-2.0

package mcscertificates

import (
	"context"
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
	o, s, err := r.owner(ctx)
	if err != nil {
		return s, err
	}
	if force && s.Case == mcscert.CaseOperatorToCome {
		r.always, s.Case = true, mcscert.CaseConfigured
	}
	if !s.Case.Ours() {
		return s, fmt.Errorf("%w: %s", mcscert.ErrNotOurs, s.Case)
	}
	if err := r.retype(ctx, o.serving); err != nil {
		return mcscert.Status{}, err
	}
	return r.retryConflicts(ctx, false)
}

// Rotate performs the next step of a rotation; see [mcscert.Status.Next].
func (r *Reconciler) Rotate(ctx context.Context, force mcscert.Force) (mcscert.Step, mcscert.Status, error) {
	o, s, err := r.owner(ctx)
	switch {
	case err != nil:
		return "", s, err
	case !s.Case.Ours():
		return "", s, fmt.Errorf("%w: %s", mcscert.ErrNotOurs, s.Case)
	case o.ca == nil:
		return "", s, fmt.Errorf("the Secret %s has no CA: run 'certs init' to create it", r.ca)
	}
	// Renew what is due first, and read whether the pointer configs have it.
	if s, err = r.retryConflicts(ctx, false); err != nil {
		return "", s, err
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

// retype recreates a serving Secret of another type. The type of a Secret is immutable, and installers
// have used Opaque.
func (r *Reconciler) retype(ctx context.Context, s *corev1.Secret) error {
	if s == nil || s.Type == corev1.SecretTypeTLS {
		return nil
	}
	if _, err := mcscert.Parse(s.Data[corev1.TLSCertKey]); err != nil {
		return fmt.Errorf("the Secret %s has no valid serving certificate (%w):"+
			" inspect it, and delete it if it is not needed", r.serving, err)
	}
	next := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, Labels: maps.Clone(s.Labels),
			Annotations: maps.Clone(s.Annotations), OwnerReferences: s.OwnerReferences},
		Type: corev1.SecretTypeTLS, Data: s.Data,
	}
	// A dry run proves that the API server accepts the new Secret before the old one is deleted.
	try := next.DeepCopy()
	try.Name += "-try"
	if err := r.o.Client.Create(ctx, try, client.DryRunAll); err != nil {
		return fmt.Errorf("recreate Secret %s: %w", r.serving, err)
	}
	same := client.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion}
	if err := r.o.Client.Delete(ctx, s, same); err != nil {
		return fmt.Errorf("recreate Secret %s: %w", r.serving, err)
	}
	// From here on, an interrupt must not lose the certificate.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), passTimeout)
	defer cancel()
	always := func(error) bool { return true }
	err := retry.OnError(wait.Backoff{Steps: 5, Duration: time.Second}, always, func() error {
		return client.IgnoreAlreadyExists(r.o.Client.Create(ctx, next.DeepCopy()))
	})
	if err != nil {
		return fmt.Errorf("the Secret %s was deleted and could not be recreated;"+
			" run 'certs init' to create another one: %w", r.serving, err)
	}
	return nil
}
