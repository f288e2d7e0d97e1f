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

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
)

const bundleKey, legacyKey = "ca-bundle.crt", "ca.crt"

// errOvertaken replaces the nil error of library-go after a conflict.
var errOvertaken = errors.New("somebody else wrote the object first")

// ensure renews what is due: the CA and its bundle, the pointer configs, the serving
// certificate. Force replaces the last one. It returns how things are afterward.
func (r *Reconciler) ensure(ctx context.Context, force bool) (mcscert.Status, error) {
	ca, s, err := r.owner(ctx)
	if err != nil {
		return s, err
	}
	if s.Case.Ours() {
		s.PointerConfigs, err = r.rotate(ctx, ca, force)
	}
	return r.describe(ctx, s, err)
}

func (r *Reconciler) rotate(ctx context.Context, caSecret *corev1.Secret, force bool) ([]mcscert.PointerConfig, error) {
	leaf, err := r.secret(ctx, r.serving)
	if err != nil {
		return nil, err
	}
	if leaf != nil && leaf.Type != corev1.SecretTypeTLS {
		return nil, fmt.Errorf("the Secret %s is of type %s, which cannot be changed in place:"+
			" 'certs init' makes it anew with the same content", r.serving, leaf.Type)
	}
	legacy, err := r.configMap(ctx, legacyCA)
	if err != nil {
		return nil, err
	}
	configMap, err := r.keepIssuer(ctx, leaf, legacy)
	if err != nil {
		return nil, hintInit(err)
	}
	api, events := writer{r.o.Client}, newRecorder()
	ca, _, err := certrotation.RotatedSigningCASecret{
		Namespace: r.ca.Namespace, Name: r.ca.Name, Validity: mcscert.Validity, Refresh: mcscert.Refresh,
		AdditionalAnnotations: describe("CA that signs the Machine Config Server's certificate"),
		Lister:                secretLister(caSecret), Client: api, EventRecorder: events,
	}.EnsureSigningCertKeyPair(ctx)
	if err != nil || ca == nil {
		return nil, hintInit(orOvertaken(err))
	}
	r.renewed(events)
	r.mine = true
	bundle, err := certrotation.CABundleConfigMap{
		Namespace: r.ca.Namespace, Name: r.ca.Name,
		AdditionalAnnotations: describe("every CA by which machines may know the Machine Config Server"),
		Lister:                configMapLister(configMap), Client: api, EventRecorder: events,
	}.EnsureConfigMapCABundle(ctx, ca, r.ca.String())
	if err != nil || bundle == nil {
		return nil, hintInit(orOvertaken(err))
	}
	r.renewed(events)
	// Machines must trust the CA before it signs anything.
	found, incomplete := r.pointerConfigs.renew(ctx, authorities(bundle, ca.Config.Certs[0], legacy), false)
	rules := mcscert.Serving{Hosts: r.o.Hostnames, PointerConfigs: found, Incomplete: incomplete != nil, Force: force}
	serving, err := certrotation.RotatedSelfSignedCertKeySecret{
		Namespace: r.serving.Namespace, Name: r.serving.Name, Validity: mcscert.Validity, Refresh: mcscert.Refresh,
		AdditionalAnnotations: describe("serving certificate of the Machine Config Server"),
		CertCreator:           servingCreator{rules},
		Lister:                secretLister(leaf), Client: api, EventRecorder: events,
	}.EnsureTargetCertKeyPair(ctx, ca, bundle)
	if err != nil || serving == nil {
		return found, errors.Join(hintInit(orOvertaken(err)), incomplete)
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
// trust the Machine Config Server because of it. It returns the ConfigMap, nil if there is none.
func (r *Reconciler) keepIssuer(ctx context.Context, leaf *corev1.Secret, legacy *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	m, err := r.configMap(ctx, r.ca)
	if err != nil || leaf == nil {
		return m, err
	}
	chain, err := mcscert.Parse(leaf.Data[corev1.TLSCertKey])
	if err != nil || !r.o.Now().Before(chain[0].NotAfter) {
		return m, nil // no machine can use it
	}
	var bundle []*x509.Certificate
	if m != nil && m.Data[bundleKey] != "" {
		if bundle, err = mcscert.Parse([]byte(m.Data[bundleKey])); err != nil {
			return nil, fmt.Errorf("the bundle in ConfigMap %s, %s: %w", r.ca, bundleKey, err)
		}
	}
	known := chain[1:]
	if legacy != nil {
		if cas, err := mcscert.Parse([]byte(legacy.Data[legacyKey])); err == nil {
			known = append(known, cas...)
		}
	}
	issuer := mcscert.IssuerOf(chain[0], known)
	if mcscert.IssuerOf(chain[0], bundle) != nil || issuer == nil || !r.o.Now().Before(issuer.NotAfter) {
		return m, nil
	}
	write := func() error { return r.o.Client.Update(ctx, m) }
	if m == nil {
		m = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.ca.Namespace, Name: r.ca.Name}}
		write = func() error { return r.o.Client.Create(ctx, m) }
	}
	if m.Data == nil {
		m.Data = map[string]string{}
	}
	m.Data[bundleKey] = string(mcscert.Encode(append(bundle, issuer)...))
	if err := write(); err != nil {
		return nil, fmt.Errorf("keep the CA of what is served: %w", err)
	}
	r.o.Log.Info("the CA of what is served stays in the bundle", "ca", issuer.Subject.CommonName, "not_after", issuer.NotAfter)
	return m, nil
}

// renewed reports what library-go has done.
func (r *Reconciler) renewed(events *recorder) {
	for _, e := range events.take() {
		r.o.Log.Info("certificates of the Machine Config Server", "step", e.reason, "why", e.message)
		r.emit(false, e.reason, e.message)
	}
}

func orOvertaken(err error) error {
	if err == nil {
		return errOvertaken
	}
	return err
}

// hintInit states what to do where the verifier's account is not sufficient.
func hintInit(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; the verifier's account makes no such objects: 'certs init' with an administrator's does, once", err)
	}
	return err
}
