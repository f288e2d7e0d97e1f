// SPDX-License-Identifier: Apache-2.0

package mcscertificates

import (
	"context"
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	"github.com/openshift/library-go/pkg/crypto"
	"github.com/openshift/library-go/pkg/operator/certrotation"
	"github.com/openshift/library-go/pkg/operator/events"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
)

// library-go's certrotation reads through listers, writes through a clientset, and reports through its
// own kind of recorder. These adapters give it the objects that one pass has read live.

// only returns an indexer with one object, or an empty one if the object is nil.
func only[T interface {
	comparable
	client.Object
}](o T) cache.Indexer {
	var none T
	all := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if o != none {
		_ = all.Add(o) // The object has a name.
	}
	return all
}

// writer is the part of a clientset that certrotation uses: create and update.
type writer struct{ client client.Client }

func (w writer) Secrets(string) corev1client.SecretInterface { return secretWriter{client: w.client} }

func (w writer) ConfigMaps(string) corev1client.ConfigMapInterface {
	return configMapWriter{client: w.client}
}

type (
	secret    = corev1.Secret
	configMap = corev1.ConfigMap
)

type secretWriter struct {
	corev1client.SecretInterface // nil, because certrotation calls no other method
	client                       client.Client
}

func (w secretWriter) Create(ctx context.Context, s *secret, _ metav1.CreateOptions) (*secret, error) {
	return s, w.client.Create(ctx, s)
}

func (w secretWriter) Update(ctx context.Context, s *secret, _ metav1.UpdateOptions) (*secret, error) {
	return s, w.client.Update(ctx, s)
}

type configMapWriter struct {
	corev1client.ConfigMapInterface // nil, because certrotation calls no other method
	client                          client.Client
}

func (w configMapWriter) Create(ctx context.Context, m *configMap, _ metav1.CreateOptions) (*configMap, error) {
	return m, w.client.Create(ctx, m)
}

func (w configMapWriter) Update(ctx context.Context, m *configMap, _ metav1.UpdateOptions) (*configMap, error) {
	return m, w.client.Update(ctx, m)
}

// reasons maps certrotation's Events to the reasons of the verifier's Events.
var reasons = map[string]string{
	"SignerUpdateRequired":   "CARenewed",
	"CABundleUpdateRequired": "CABundleRenewed",
	"TargetUpdateRequired":   "ServingCertificateRenewed",
}

// recorder stores what certrotation reports before each attempt, until the attempt has succeeded.
type recorder struct {
	events.Recorder
	pending []renewal
}

type renewal struct{ reason, message string }

func newRecorder() *recorder {
	return &recorder{Recorder: events.NewInMemoryRecorder("mcs-attest-verifier", clock.RealClock{})}
}

// Eventf implements events.Recorder.
func (r *recorder) Eventf(reason, format string, a ...any) {
	if ours, ok := reasons[reason]; ok {
		r.pending = append(r.pending, renewal{ours, fmt.Sprintf(format, a...)})
	}
}

// Warningf implements events.Recorder. It does nothing, because certrotation also returns the error.
func (r *recorder) Warningf(string, string, ...any) {}

func (r *recorder) take() (all []renewal) {
	all, r.pending = r.pending, nil
	return all
}

func metadata(text string) certrotation.AdditionalAnnotations {
	return certrotation.AdditionalAnnotations{JiraComponent: mcscert.OwningComponent, Description: text}
}

// servingCreator creates the serving certificate by the rules of package mcscert.
type servingCreator struct{ rules mcscert.Serving }

// NewCertificate implements certrotation.TargetCertCreator.
func (c servingCreator) NewCertificate(signer *crypto.CA, _ time.Duration) (*crypto.TLSCertificateConfig, error) {
	leaf, key, err := mcscert.NewServing(signer.Config.Certs[0], signer.Config.Key, c.rules.Hosts, time.Now())
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	return &crypto.TLSCertificateConfig{Certs: append([]*x509.Certificate{leaf}, signer.Config.Certs...), Key: key}, nil
}

// NeedNewTargetCertKeyPair implements certrotation.TargetCertCreator. It reads the certificate instead
// of the annotations, because the installer's Secret has none.
func (c servingCreator) NeedNewTargetCertKeyPair(s *corev1.Secret, signer *crypto.CA, bundle []*x509.Certificate,
	_ time.Duration, _, creationRequired bool,
) string {
	rules := c.rules
	rules.Now, rules.Signer, rules.Bundle = time.Now(), signer.Config.Certs[0], bundle
	if chain, err := mcscert.Parse(s.Data[corev1.TLSCertKey]); err == nil && !creationRequired {
		rules.Leaf = chain[0]
	}
	return rules.Due()
}

// SetAnnotations implements certrotation.TargetCertCreator.
func (c servingCreator) SetAnnotations(cert *crypto.TLSCertificateConfig, to map[string]string) map[string]string {
	to[certrotation.CertificateHostnames] = strings.Join(mcscert.Hosts(cert.Certs[0]), ",")
	return to
}
