// SPDX-License-Identifier: Apache-2.0

package mcscertificates

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/openshift/library-go/pkg/operator/certrotation"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
)

const bundleKey, legacyKey = "ca-bundle.crt", "ca.crt"

// errOvertaken means that library-go returned no error after a conflict.
var errOvertaken = errors.New("another client wrote the object first")

// objects are the objects that a pass read; a field is nil if the object does not exist. legacy is read
// only if the verifier renews the certificates.
type objects struct {
	ca, serving    *corev1.Secret
	bundle, legacy *corev1.ConfigMap
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
	if s.Case.Ours() {
		s.PointerConfigs, failed = r.rotate(ctx, o, force)
		if o, err = r.read(ctx); err != nil {
			return mcscert.Status{}, errors.Join(failed, err)
		}
	}
	err = o.describe(&s)
	return s, errors.Join(failed, err)
}

func (r *Reconciler) rotate(ctx context.Context, o objects, force bool) ([]mcscert.PointerConfig, error) {
	if o.serving != nil && o.serving.Type != corev1.SecretTypeTLS {
		return nil, fmt.Errorf("the Secret %s has the type %s, which is immutable:"+
			" run 'certs init' to recreate it with the same content", r.serving, o.serving.Type)
	}
	if err := r.keepIssuer(ctx, &o); err != nil {
		return nil, err
	}
	api, events := writer{r.o.Client}, newRecorder()
	ca, _, err := certrotation.RotatedSigningCASecret{
		Namespace: r.ca.Namespace, Name: r.ca.Name, Validity: mcscert.Validity, Refresh: mcscert.Refresh,
		AdditionalAnnotations: metadata("CA that signs the Machine Config Server's certificate"),
		Lister:                corev1listers.NewSecretLister(only(o.ca)), Client: api, EventRecorder: events,
	}.EnsureSigningCertKeyPair(ctx)
	if err != nil || ca == nil {
		return nil, explain(err)
	}
	r.renewed(events)
	r.mine = true
	bundle, err := certrotation.CABundleConfigMap{
		Namespace: r.ca.Namespace, Name: r.ca.Name,
		AdditionalAnnotations: metadata("every CA that machines may trust for the Machine Config Server"),
		Lister:                corev1listers.NewConfigMapLister(only(o.bundle)), Client: api, EventRecorder: events,
	}.EnsureConfigMapCABundle(ctx, ca, r.ca.String())
	if err != nil || bundle == nil {
		return nil, explain(err)
	}
	r.renewed(events)
	// Machines must trust the CA before it signs a certificate.
	found, incomplete := r.pointerConfigs.renew(ctx, authorities(bundle, ca.Config.Certs[0], o.legacy), false)
	rules := mcscert.Serving{Hosts: r.o.Hostnames, PointerConfigs: found, Incomplete: incomplete != nil, Force: force}
	serving, err := certrotation.RotatedSelfSignedCertKeySecret{
		Namespace: r.serving.Namespace, Name: r.serving.Name, Validity: mcscert.Validity, Refresh: mcscert.Refresh,
		AdditionalAnnotations: metadata("serving certificate of the Machine Config Server"),
		CertCreator:           servingCreator{rules},
		Lister:                corev1listers.NewSecretLister(only(o.serving)), Client: api, EventRecorder: events,
	}.EnsureTargetCertKeyPair(ctx, ca, bundle)
	if err != nil || serving == nil {
		return found, errors.Join(explain(err), incomplete)
	}
	r.renewed(events)
	return found, incomplete
}

// authorities returns what pointer configs must have. The bundle also replaces the installer's CA,
// which is no longer in the bundle after it has expired.
func authorities(bundle []*x509.Certificate, signer *x509.Certificate, legacy *corev1.ConfigMap) mcscert.Authorities {
	a := mcscert.Authorities{Bundle: bundle, Signer: signer}
	if legacy != nil {
		a.Earlier = []byte(legacy.Data[legacyKey])
	}
	return a
}

// keepIssuer adds the CA of the current serving certificate to the bundle before any other change,
// because machines trust the Machine Config Server by that CA.
func (r *Reconciler) keepIssuer(ctx context.Context, o *objects) error {
	if o.serving == nil {
		return nil
	}
	chain, err := mcscert.Parse(o.serving.Data[corev1.TLSCertKey])
	if err != nil || !r.o.Now().Before(chain[0].NotAfter) {
		return nil // no machine can verify it
	}
	m, write := o.bundle, r.o.Client.Update
	if m == nil {
		m = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.ca.Namespace, Name: r.ca.Name}}
		write = func(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
			return r.o.Client.Create(ctx, o)
		}
	}
	var bundle []*x509.Certificate
	if raw := m.Data[bundleKey]; raw != "" {
		if bundle, err = mcscert.Parse([]byte(raw)); err != nil {
			return fmt.Errorf("the bundle in ConfigMap %s, %s: %w", r.ca, bundleKey, err)
		}
	}
	known := chain[1:]
	if o.legacy != nil {
		if cas, err := mcscert.Parse([]byte(o.legacy.Data[legacyKey])); err == nil {
			known = append(known, cas...)
		}
	}
	issuer := mcscert.IssuerOf(chain[0], known)
	if mcscert.IssuerOf(chain[0], bundle) != nil || issuer == nil || !r.o.Now().Before(issuer.NotAfter) {
		return nil
	}
	if m.Data == nil {
		m.Data = map[string]string{}
	}
	m.Data[bundleKey] = string(mcscert.Encode(append(bundle, issuer)...))
	if err := write(ctx, m); err != nil {
		return explain(fmt.Errorf("keep the CA of the serving certificate: %w", err))
	}
	o.bundle = m
	r.o.Log.Info("the CA of the serving certificate stays in the bundle",
		"ca", issuer.Subject.CommonName, "not_after", issuer.NotAfter)
	return nil
}

// renewed reports the changes that library-go made.
func (r *Reconciler) renewed(events *recorder) {
	for _, e := range events.take() {
		r.o.Log.Info("certificates of the Machine Config Server", "step", e.reason, "why", e.message)
		r.emit(false, e.reason, e.message)
	}
}

// explain adds a hint to the error of a write, or states that library-go returned none.
func explain(err error) error {
	switch {
	case err == nil:
		return errOvertaken
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; the controller's account may not create this object:"+
			" run 'certs init' once with an administrator's account", err)
	}
	return err
}
