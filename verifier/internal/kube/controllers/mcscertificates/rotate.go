// SPDX-License-Identifier: Apache-2.0

package mcscertificates

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/certrotation"
)

const legacyKey = "ca.crt"

// objects are the objects that a pass read; a field is nil if the object does not exist. legacy is read
// only if the verifier renews the certificates. forbidden is why names of the cluster are unknown. If unsure is true,
// the cluster may have names that the API server did not return.
type objects struct {
	ca, serving    *corev1.Secret
	bundle, legacy *corev1.ConfigMap
	forbidden      error
	unsure         bool
}

func (r *Reconciler) read(ctx context.Context) (o objects, err error) {
	var errs [3]error
	o.ca, errs[0] = find(ctx, r.o.Client, "Secret", r.ca, &corev1.Secret{})
	o.serving, errs[1] = find(ctx, r.o.Client, "Secret", r.serving, &corev1.Secret{})
	o.bundle, errs[2] = find(ctx, r.o.Client, "ConfigMap", r.ca, &corev1.ConfigMap{})
	return o, errors.Join(errs[:]...)
}

// readLegacy reads the installer's CA.
func (r *Reconciler) readLegacy(ctx context.Context) (*corev1.ConfigMap, error) {
	return find(ctx, r.o.Client, "ConfigMap", legacyCA, &corev1.ConfigMap{})
}

// find reads an object. It returns nil if the object does not exist.
func find[T client.Object](ctx context.Context, c client.Reader, kind string, key client.ObjectKey, into T) (T, error) {
	var none T
	if err := c.Get(ctx, key, into); apierrors.IsNotFound(err) {
		return none, nil
	} else if err != nil {
		return none, fmt.Errorf("read %s %s: %w", kind, key, err)
	}
	return into, nil
}

// ensure renews what is due: the CA and its bundle, the pointer configs, and the serving certificate.
// If force is true, it replaces the serving certificate in any case. It returns the state afterward.
func (r *Reconciler) ensure(ctx context.Context, force bool) (mcscert.Status, error) {
	o, s, err := r.owner(ctx)
	if err != nil {
		return s, err
	}
	var failed error
	forbidden := o.forbidden
	if s.Case.Ours() {
		s.PointerConfigs, failed = r.rotate(ctx, o, s.Hosts, force)
		if o, err = r.read(ctx); err != nil {
			return mcscert.Status{}, errors.Join(failed, err)
		}
	}
	err = o.describe(&s)
	return s, errors.Join(failed, err, forbidden)
}

func (r *Reconciler) rotate(
	ctx context.Context, o objects, hosts []string, force bool,
) ([]mcscert.PointerConfig, error) {
	if o.serving != nil && o.serving.Type != corev1.SecretTypeTLS {
		return nil, fmt.Errorf("the Secret %s has the type %s, which is immutable:"+
			" run 'certs init' to recreate it with the same content", r.serving, o.serving.Type)
	}
	ca, why, err := r.certs.CA(ctx, r.ca, o.ca, o.serving)
	if err != nil {
		return nil, explain(err)
	}
	r.renewed("CARenewed", "the CA in Secret", r.ca, why)
	r.mine = true
	bundle, why, err := r.certs.Bundle(ctx, r.ca, o.bundle, append(o.issuer(r.o.Now()), ca.Certificate)...)
	if err != nil {
		return nil, explain(err)
	}
	r.renewed("CABundleRenewed", "the bundle in ConfigMap", r.ca, why)
	// Machines must trust the CA before it signs a certificate.
	with := o.authorities(bundle, ca.Certificate)
	with.Earlier = append(with.Earlier, r.former...)
	found, incomplete := r.pointerConfigs.renew(ctx, with, false)
	failed := slices.ContainsFunc(found, func(p mcscert.PointerConfig) bool { return p.Failed })
	known := incomplete == nil && len(r.pointerConfigs.unsure) == 0
	switch {
	case known && !failed:
		r.former = nil
	case o.bundle != nil && !strings.Contains(string(r.former), o.bundle.Data[certrotation.BundleKey]):
		r.former = append(r.former, o.bundle.Data[certrotation.BundleKey]+"\n"...)
	}
	if o.unsure && len(o.issuer(r.o.Now())) > 0 { // the current certificate is valid, and a later pass knows the names
		if force {
			err = fmt.Errorf("read the names of the cluster: %w", errAbsent)
		}
		return found, errors.Join(err, incomplete)
	}
	why, err = r.certs.Serving(ctx, r.serving, o.serving, ca, mcscert.Serving{
		Hosts: hosts, Bundle: bundle, PointerConfigs: found, Incomplete: !known, Force: force,
	})
	if err != nil {
		return found, errors.Join(explain(err), incomplete)
	}
	r.renewed("ServingCertificateRenewed", "the serving certificate in Secret", r.serving, why)
	return found, incomplete
}

// authorities returns what pointer configs must have. The bundle also replaces the installer's CA and
// the CAs of the bundle that was read, which are no longer in the bundle after they have expired.
func (o objects) authorities(bundle []*x509.Certificate, signer *x509.Certificate) mcscert.Authorities {
	a := mcscert.Authorities{Bundle: bundle, Signer: signer}
	if o.legacy != nil {
		a.Earlier = []byte(o.legacy.Data[legacyKey] + "\n")
	}
	if o.bundle != nil {
		a.Earlier = append(a.Earlier, o.bundle.Data[certrotation.BundleKey]...)
	}
	return a
}

// issuer returns the CA of the current serving certificate. The CA stays in the bundle, because machines
// trust the Machine Config Server by it. There is none if no machine can verify the certificate.
func (o objects) issuer(now time.Time) []*x509.Certificate {
	if o.serving == nil {
		return nil
	}
	chain, err := mcscert.Parse(o.serving.Data[corev1.TLSCertKey])
	if err != nil || !now.Before(chain[0].NotAfter) {
		return nil
	}
	known := chain[1:]
	if o.legacy != nil {
		if cas, err := mcscert.Parse([]byte(o.legacy.Data[legacyKey])); err == nil {
			known = append(known, cas...)
		}
	}
	if ca := mcscert.IssuerOf(chain[0], known); ca != nil {
		return []*x509.Certificate{ca}
	}
	return nil
}

// renewed reports a change. why is "" if there was none.
func (r *Reconciler) renewed(reason, what string, name client.ObjectKey, why string) {
	if why == "" {
		return
	}
	r.o.Log.Info("certificates of the Machine Config Server", "step", reason, "why", why)
	r.emit(false, reason, fmt.Sprintf("renewed %s %s: %s", what, name, why))
}

// explain adds a hint to the error of a write.
func explain(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; the controller's account may not create this object:"+
			" run 'certs init' once with an administrator's account", err)
	}
	return err
}
