// SPDX-License-Identifier: Apache-2.0

// Package certrotation keeps the CA of the Machine Config Server, the bundle of every valid CA and the
// serving certificate in two Secrets and a ConfigMap. The controller mcscertificates decides whether the
// verifier renews them, and calls the methods of [Rotator] in the order of a rotation. Package mcscert has
// the rules, and package pki creates the certificates.
//
// The objects have the names, annotations and labels that OpenShift's library-go gives them. Earlier
// versions of the verifier wrote them with it, and the machine-config-operator does. Each of these programs
// accepts the objects of the others without a rotation.
//
// The content of an object is untrusted:
//
//   - A CA that cannot sign, and a bundle that cannot be parsed, are errors and stay unchanged. They may be
//     the only copy of what machines trust.
//   - A serving certificate without its key is replaced, because no server can use it.
//   - Only the certificate's own dates, and the type of its key, decide about its renewal. The annotations repeat
//     the dates for other programs. An administrator requests a new CA by removing one of these annotations.
//
// Each method writes at most one object, and only if the object is still as the caller read it. Of two
// replicas that run at the same time, one receives a conflict or AlreadyExists and has changed nothing.
package certrotation

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/openshift/api/annotations"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/secret"
)

// BundleKey is the key of the bundle in the ConfigMap.
const BundleKey = "ca-bundle.crt"

// The annotations and the label of library-go, pkg/operator/certrotation.
const (
	NotBeforeAnnotation = "auth.openshift.io/certificate-not-before" // RFC 3339
	NotAfterAnnotation  = "auth.openshift.io/certificate-not-after"  // RFC 3339
	issuerAnnotation    = "auth.openshift.io/certificate-issuer"     // its common name
	hostnamesAnnotation = "auth.openshift.io/certificate-hostnames"  // sorted, with commas
	refreshAnnotation   = "certificates.openshift.io/refresh-period" // a Go duration

	typeLabel                          = "auth.openshift.io/managed-certificate-type"
	typeSigner, typeBundle, typeTarget = "signer", "ca-bundle", "target"
)

// Rotator writes the objects. Client and Now are required.
type Rotator struct {
	Client client.Client
	Now    func() time.Time
	// SignerKey is the type of a CA's key. A CA of another type is replaced. If empty, a CA of any type stays, and a
	// new one has the type that the machine-config-operator uses.
	SignerKey mcscert.KeyType
}

// CA is a CA with its key. Only [Rotator.CA] returns one.
type CA struct {
	Certificate *x509.Certificate
	pair        pki.Pair // the certificate, the certificates above it, and the key
}

// CA returns the CA in a Secret. It creates or replaces the CA first if that is due, and returns why.
// have is the Secret as it was read, or nil if it does not exist. serving is that of the serving certificate, or nil.
func (r *Rotator) CA(ctx context.Context, name client.ObjectKey, have, serving *corev1.Secret) (
	ca CA, why string, err error) {
	now, next := r.Now(), secretOf(name, have)
	describe(&next.ObjectMeta, "CA that signs the Machine Config Server's certificate")
	ca, err = parseCA(next.Data[corev1.TLSCertKey], next.Data[corev1.TLSPrivateKeyKey])
	switch {
	case have == nil:
		why = "it does not exist"
	case requested(have, now):
		why = "an administrator requested it"
	case err != nil:
		return CA{}, "", fmt.Errorf("the CA in Secret %s: %w; restore it, or remove its annotation %s to replace it",
			name, err, NotAfterAnnotation)
	case !now.Before(mcscert.Renewal(ca.Certificate)):
		why = "it is past its renewal on " + mcscert.Day(mcscert.Renewal(ca.Certificate))
	default:
		why = r.otherKey(ca.Certificate, serving)
	}
	if why != "" {
		if ca, err = r.newCA(name, now); err != nil {
			return CA{}, "", fmt.Errorf("create a CA for Secret %s: %w", name, err)
		}
		store(next, typeSigner, ca.Certificate, ca.pair)
	}
	if err := r.write(ctx, "Secret", have, next); err != nil {
		return CA{}, "", err
	}
	return ca, why, nil
}

// otherKey returns why a CA is replaced because of its key, or "". If the serving certificate ends soon, the CA stays
// until it has signed the next one. Its key would be lost, and a new CA would sign before all machines trust it.
func (r *Rotator) otherKey(ca *x509.Certificate, serving *corev1.Secret) string {
	have := mcscert.KeyTypeOf(ca.PublicKey)
	if r.SignerKey == "" || r.SignerKey == have {
		return ""
	}
	if serving != nil {
		chain, err := mcscert.Parse(serving.Data[corev1.TLSCertKey])
		if err == nil && !mcscert.Matures(chain[0], r.Now()) {
			return ""
		}
	}
	return fmt.Sprintf("its key is %s, and certificates.signerKey is %s", have, r.SignerKey)
}

// newCA creates a CA. It is not backdated, because its age is the time since machines have been able to
// know it.
func (r *Rotator) newCA(name client.ObjectKey, now time.Time) (CA, error) {
	key, err := cmp.Or(r.SignerKey, mcscert.RSA2048).New()
	if err != nil {
		return CA{}, fmt.Errorf("create key: %w", err)
	}
	common := fmt.Sprintf("%s_%s@%d", name.Namespace, name.Name, now.Unix())
	pair, err := pki.SelfSign(common, key, now, now.Add(mcscert.Validity))
	if err != nil {
		return CA{}, err
	}
	return parseCA(pair.Certificate, pair.Key.Expose())
}

// parseCA returns a CA if it can sign.
func parseCA(certificates, key []byte) (CA, error) {
	chain, err := mcscert.Parse(certificates)
	if err != nil {
		return CA{}, err
	}
	if _, err := tls.X509KeyPair(certificates, key); err != nil {
		return CA{}, err
	}
	if c := chain[0]; !c.IsCA || c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0 {
		return CA{}, errors.New("its certificate may not sign certificates")
	}
	return CA{chain[0], pki.Pair{Certificate: mcscert.Encode(chain...), Key: secret.New(key)}}, nil
}

// requested reports whether an administrator requests a new CA as in all of OpenShift: an annotation of
// the CA's dates is missing or in the past.
func requested(in *corev1.Secret, now time.Time) bool {
	_, err := time.Parse(time.RFC3339, in.Annotations[NotBeforeAnnotation])
	notAfter, bad := time.Parse(time.RFC3339, in.Annotations[NotAfterAnnotation])
	return err != nil || bad != nil || now.After(notAfter)
}

// Bundle returns the CAs of the bundle in a ConfigMap. It first adds cas, and removes CAs that have
// expired. why is the reason for a change, or "". have is the ConfigMap as it was read, or nil.
func (r *Rotator) Bundle(ctx context.Context, name client.ObjectKey, have *corev1.ConfigMap,
	cas ...*x509.Certificate) (bundle []*x509.Certificate, why string, err error) {
	next := have.DeepCopy()
	if next == nil {
		next = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	}
	describe(&next.ObjectMeta, "every CA that machines may trust for the Machine Config Server")
	old := next.Data[BundleKey]
	if old != "" {
		if bundle, err = mcscert.Parse([]byte(old)); err != nil {
			return nil, "", fmt.Errorf("the bundle in ConfigMap %s, %s: %w", name, BundleKey, err)
		}
	}
	bundle = slices.DeleteFunc(append(bundle, cas...),
		func(c *x509.Certificate) bool { return !r.Now().Before(c.NotAfter) })
	// The order is library-go's, so that the two programs do not rewrite each other's bundle.
	slices.SortFunc(bundle, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	bundle = slices.CompactFunc(bundle, (*x509.Certificate).Equal)
	if text := string(mcscert.Encode(bundle...)); text != old {
		if why = "its CAs have changed"; have == nil {
			why = "it does not exist"
		}
		if next.Data == nil {
			next.Data = map[string]string{}
		}
		next.Data[BundleKey] = text
		metav1.SetMetaDataLabel(&next.ObjectMeta, typeLabel, typeBundle)
	}
	if err := r.write(ctx, "ConfigMap", have, next); err != nil {
		return nil, "", err
	}
	return bundle, why, nil
}

// Serving replaces the serving certificate in a Secret if it is due by the rules, and returns why.
// It sets Now, Leaf and Signer of the rules. have is the Secret as it was read, or nil.
func (r *Rotator) Serving(ctx context.Context, name client.ObjectKey, have *corev1.Secret, ca CA,
	rules mcscert.Serving) (why string, err error) {
	next := secretOf(name, have)
	describe(&next.ObjectMeta, "serving certificate of the Machine Config Server")
	rules.Now, rules.Leaf, rules.Signer = r.Now(), nil, ca.Certificate
	// The installer's Secret has no annotations, so only the certificate counts.
	if pair, err := tls.X509KeyPair(next.Data[corev1.TLSCertKey], next.Data[corev1.TLSPrivateKeyKey]); err == nil {
		rules.Leaf = pair.Leaf
	}
	if why = rules.Due(); why != "" {
		pair, err := ca.pair.Serve(rules.Hosts, rules.Now)
		if err != nil {
			return "", err
		}
		leaf, err := mcscert.Parse(pair.Certificate)
		if err != nil {
			return "", err
		}
		pair.Certificate = append(pair.Certificate, ca.pair.Certificate...)
		store(next, typeTarget, leaf[0], pair)
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, hostnamesAnnotation, strings.Join(mcscert.Hosts(leaf[0]), ","))
	}
	return why, r.write(ctx, "Secret", have, next)
}

// secretOf returns a copy of a Secret, or an empty one.
func secretOf(name client.ObjectKey, have *corev1.Secret) *corev1.Secret {
	if have != nil {
		return have.DeepCopy()
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
		Type: corev1.SecretTypeTLS}
}

// describe states whose object it is, and what for.
func describe(o *metav1.ObjectMeta, text string) {
	metav1.SetMetaDataAnnotation(o, annotations.OpenShiftComponent, mcscert.OwningComponent)
	metav1.SetMetaDataAnnotation(o, annotations.OpenShiftDescription, text)
}

// store puts a certificate and its key into a Secret.
func store(in *corev1.Secret, kind string, certificate *x509.Certificate, pair pki.Pair) {
	if in.Data == nil {
		in.Data = map[string][]byte{}
	}
	in.Data[corev1.TLSCertKey], in.Data[corev1.TLSPrivateKeyKey] = pair.Certificate, pair.Key.Expose()
	for key, value := range map[string]string{
		issuerAnnotation:    certificate.Issuer.CommonName,
		NotBeforeAnnotation: certificate.NotBefore.Format(time.RFC3339),
		NotAfterAnnotation:  certificate.NotAfter.Format(time.RFC3339),
		refreshAnnotation:   mcscert.Refresh.String(),
	} {
		metav1.SetMetaDataAnnotation(&in.ObjectMeta, key, value)
	}
	metav1.SetMetaDataLabel(&in.ObjectMeta, typeLabel, kind)
}

// write creates an object, or updates it if it has changed.
func (r *Rotator) write(ctx context.Context, kind string, have, next client.Object) (err error) {
	switch {
	case next.GetResourceVersion() == "":
		err = r.Client.Create(ctx, next)
	case !equality.Semantic.DeepEqual(have, next):
		err = r.Client.Update(ctx, next)
	}
	if err != nil {
		return fmt.Errorf("write %s %s: %w", kind, client.ObjectKeyFromObject(next), err)
	}
	return nil
}
