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

// errOvertaken replaces the nil error of library-go after a conflict.
var errOvertaken = errors.New("another client wrote the object first")

// objects are what a pass has read; nil: it does not exist. Legacy is only read
// where it is needed: where the certificates are ours to renew.
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

// find reads an object; nil if it does not exist.
func find[T client.Object](ctx context.Context, c client.Reader, kind string, key client.ObjectKey, into T) (T, error) {
	var none T
	if err := c.Get(ctx, key, into); apierrors.IsNotFound(err) {
		return none, nil
	} else if err != nil {
		return none, fmt.Errorf("read %s %s: %w", kind, key, err)
	}
	return into, nil
}

// ensure renews what is due: the CA and its bundle, the pointer configs, the serving
// certificate. Force replaces the last one. It returns how things are afterward.
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
		return nil, fmt.Errorf("the Secret %s is of type %s, which cannot be changed in place:"+
			" 'certs init' makes it anew with the same content", r.serving, o.serving.Type)
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
		AdditionalAnnotations: metadata("every CA by which machines may know the Machine Config Server"),
		Lister:                corev1listers.NewConfigMapLister(only(o.bundle)), Client: api, EventRecorder: events,
	}.EnsureConfigMapCABundle(ctx, ca, r.ca.String())
	if err != nil || bundle == nil {
		return nil, explain(err)
	}
	r.renewed(events)
	// Machines must trust the CA before it signs anything.
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

// authorities are what pointer configs must have. The bundle also replaces the installer's CA,
// which is no longer in the bundle when it has expired.
func authorities(bundle []*x509.Certificate, signer *x509.Certificate, legacy *corev1.ConfigMap) mcscert.Authorities {
	a := mcscert.Authorities{Bundle: bundle, Signer: signer}
	if legacy != nil {
		a.Earlier = []byte(legacy.Data[legacyKey])
	}
	return a
}

// keepIssuer adds the CA of what is served to the bundle before anything else does: machines
// trust the Machine Config Server because of it.
func (r *Reconciler) keepIssuer(ctx context.Context, o *objects) error {
	if o.serving == nil {
		return nil
	}
	chain, err := mcscert.Parse(o.serving.Data[corev1.TLSCertKey])
	if err != nil || !r.o.Now().Before(chain[0].NotAfter) {
		return nil // no machine can use it
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
		return explain(fmt.Errorf("keep the CA of what is served: %w", err))
	}
	o.bundle = m
	r.o.Log.Info("the CA of what is served stays in the bundle",
		"ca", issuer.Subject.CommonName, "not_after", issuer.NotAfter)
	return nil
}

// renewed reports what library-go has done.
func (r *Reconciler) renewed(events *recorder) {
	for _, e := range events.take() {
		r.o.Log.Info("certificates of the Machine Config Server", "step", e.reason, "why", e.message)
		r.emit(false, e.reason, e.message)
	}
}

// explain states what to do about an error of a write, or that library-go returned none.
func explain(err error) error {
	switch {
	case err == nil:
		return errOvertaken
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; the controller's account makes no such objects:"+
			" 'certs init' with an administrator's does, once", err)
	}
	return err
}
