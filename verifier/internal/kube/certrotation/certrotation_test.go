// SPDX-License-Identifier: Apache-2.0

package certrotation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
)

const host = "api-int.example.com"

var (
	start   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	caName  = client.ObjectKey{Namespace: "ns", Name: "ca"}
	tlsName = client.ObjectKey{Namespace: "ns", Name: "tls"}
)

// rig is a cluster in memory, with a clock that the test sets.
type rig struct {
	*testing.T
	api client.Client
	now time.Time
	r   Rotator
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, api: fake.NewClientBuilder().Build(), now: start}
	r.r = Rotator{Client: r.api, Now: func() time.Time { return r.now }, SignerKey: mcscert.ECDSAP256}
	return r
}

// objects reads the objects; nil stands for one that does not exist.
func (r *rig) objects() (ca, serving *corev1.Secret, bundle *corev1.ConfigMap) {
	r.Helper()
	ca, serving, bundle = &corev1.Secret{}, &corev1.Secret{}, &corev1.ConfigMap{}
	if !r.get(caName, ca) {
		ca = nil
	}
	if !r.get(tlsName, serving) {
		serving = nil
	}
	if !r.get(caName, bundle) {
		bundle = nil
	}
	return ca, serving, bundle
}

func (r *rig) get(name client.ObjectKey, o client.Object) bool {
	r.Helper()
	err := r.api.Get(r.Context(), name, o)
	if client.IgnoreNotFound(err) != nil {
		r.Fatal(err)
	}
	return err == nil
}

func (r *rig) update(o client.Object) {
	r.Helper()
	if err := r.api.Update(r.Context(), o); err != nil {
		r.Fatal(err)
	}
}

// pass performs a whole rotation, and returns why each object changed.
func (r *rig) pass() (why [3]string) {
	r.Helper()
	haveCA, haveServing, haveBundle := r.objects()
	ca, whyCA, err := r.r.CA(r.Context(), caName, haveCA, haveServing)
	if err != nil {
		r.Fatal(err)
	}
	bundle, whyBundle, err := r.r.Bundle(r.Context(), caName, haveBundle, ca.Certificate)
	if err != nil {
		r.Fatal(err)
	}
	rules := mcscert.Serving{Hosts: []string{host}, Bundle: bundle}
	whyServing, err := r.r.Serving(r.Context(), tlsName, haveServing, ca, rules)
	if err != nil {
		r.Fatal(err)
	}
	return [3]string{whyCA, whyBundle, whyServing}
}

func TestRotator_WritesTheAnnotationsOfOpenShift(t *testing.T) {
	r := newRig(t)
	if why := r.pass(); why != [3]string{"it does not exist", "it does not exist", "it does not exist"} {
		t.Errorf("reasons %q", why)
	}
	ca, serving, bundle := r.objects()
	const end = "2035-12-30T00:00:00Z"
	for _, c := range []struct {
		o           client.Object
		kind        string
		annotations map[string]string
	}{
		{ca, "signer", map[string]string{
			"openshift.io/owning-component":            "mcs-attest",
			"openshift.io/description":                 "CA that signs the Machine Config Server's certificate",
			"auth.openshift.io/certificate-issuer":     "ns_ca@1767225600",
			"auth.openshift.io/certificate-not-before": "2026-01-01T00:00:00Z",
			"auth.openshift.io/certificate-not-after":  end,
			"certificates.openshift.io/refresh-period": "70080h0m0s",
		}},
		{bundle, "ca-bundle", map[string]string{
			"openshift.io/owning-component": "mcs-attest",
			"openshift.io/description":      "every CA that machines may trust for the Machine Config Server",
		}},
		{serving, "target", map[string]string{
			"openshift.io/owning-component":            "mcs-attest",
			"openshift.io/description":                 "serving certificate of the Machine Config Server",
			"auth.openshift.io/certificate-issuer":     "ns_ca@1767225600",
			"auth.openshift.io/certificate-hostnames":  host,
			"auth.openshift.io/certificate-not-before": "2025-12-31T00:00:00Z",
			"auth.openshift.io/certificate-not-after":  end,
			"certificates.openshift.io/refresh-period": "70080h0m0s",
		}},
	} {
		if got := c.o.GetAnnotations(); !maps.Equal(got, c.annotations) {
			t.Errorf("%s: annotations %v", c.kind, got)
		}
		if got := c.o.GetLabels()["auth.openshift.io/managed-certificate-type"]; got != c.kind {
			t.Errorf("%s: it is labeled %q", c.kind, got)
		}
	}
	if ca.Type != corev1.SecretTypeTLS || serving.Type != corev1.SecretTypeTLS {
		t.Errorf("types %s, %s", ca.Type, serving.Type)
	}
}

func TestRotator_WritesNothingThatIsNotDue(t *testing.T) {
	r := newRig(t)
	r.pass()
	ca, serving, bundle := r.objects()
	r.now = start.Add(mcscert.Refresh - mcscert.Backdate - time.Second)
	if why := r.pass(); why != [3]string{} {
		t.Errorf("reasons %q", why)
	}
	ca2, serving2, bundle2 := r.objects()
	if ca.ResourceVersion != ca2.ResourceVersion || serving.ResourceVersion != serving2.ResourceVersion ||
		bundle.ResourceVersion != bundle2.ResourceVersion {
		t.Error("an object was written")
	}
}

// Machines verify the certificates of each type of key.
func TestRotator_KeyTypes(t *testing.T) {
	for _, kind := range append([]mcscert.KeyType{""}, mcscert.KeyTypes...) {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t)
			r.r.SignerKey = kind
			r.pass()
			if why := r.pass(); why != [3]string{} {
				t.Errorf("the next pass does not accept it: %q", why)
			}
			_, serving, bundle := r.objects()
			pair, err := tls.X509KeyPair(serving.Data["tls.crt"], serving.Data["tls.key"])
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			if !roots.AppendCertsFromPEM([]byte(bundle.Data[BundleKey])) {
				t.Fatal("no CA in the bundle")
			}
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: r.now}); err != nil {
				t.Error(err)
			}
			if len(pair.Certificate) != 2 {
				t.Errorf("%d certificates are served, want the CA beside the leaf", len(pair.Certificate))
			}
		})
	}
}

// A CA whose key has another type than the configured one is replaced once. The old CA stays in the bundle, and the
// serving certificate stays until the new CA may sign.
func TestCA_FollowsTheConfiguredTypeOfKey(t *testing.T) {
	r := newRig(t)
	r.r.SignerKey = ""
	r.pass()
	before, _, _ := r.objects()
	r.r.SignerKey = mcscert.ECDSAP384
	want := [3]string{"its key is RSA-2048, and certificates.signerKey is ECDSA-P384", "its CAs have changed", ""}
	if why := r.pass(); why != want {
		t.Errorf("reasons %q", why)
	}
	after, _, bundle := r.objects()
	ca, err := mcscert.Parse(after.Data["tls.crt"])
	if err != nil || mcscert.KeyTypeOf(ca[0].PublicKey) != mcscert.ECDSAP384 {
		t.Errorf("the new CA: %v, %v", mcscert.KeyTypeOf(ca[0].PublicKey), err)
	}
	for _, s := range []*corev1.Secret{before, after} {
		if !strings.Contains(bundle.Data[BundleKey], string(s.Data["tls.crt"])) {
			t.Error("a CA is not in the bundle")
		}
	}
	for _, kind := range []mcscert.KeyType{mcscert.ECDSAP384, ""} {
		r.r.SignerKey = kind
		if why := r.pass(); why != [3]string{} {
			t.Errorf("with %q: %q", kind, why)
		}
	}
}

// A CA of another type stays while the serving certificate ends soon. It signs the next one, which machines trust.
func TestCA_OfAnotherTypeFirstRenewsTheServingCertificate(t *testing.T) {
	r := newRig(t)
	r.r.SignerKey = ""
	r.pass()
	have, serving, _ := r.objects()
	ca, err := parseCA(have.Data["tls.crt"], have.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	ends := start.Add(mcscert.Refresh/10 + mcscert.LastMonth - time.Hour)
	pair, err := ca.pair.Serve([]string{host}, ends.Add(-mcscert.Validity))
	if err != nil {
		t.Fatal(err)
	}
	serving.Data["tls.crt"], serving.Data["tls.key"] = pair.Certificate, pair.Key.Expose()
	r.update(serving)
	r.r.SignerKey = mcscert.ECDSAP384
	if why := r.pass(); why[0] != "" || !strings.HasPrefix(why[2], "it is past its renewal") {
		t.Errorf("while it ends soon: %q", why)
	}
	want := [3]string{"its key is RSA-2048, and certificates.signerKey is ECDSA-P384", "its CAs have changed", ""}
	if why := r.pass(); why != want {
		t.Errorf("after the renewal: %q", why)
	}
}

func TestCA_ReplacesWhatIsDueAndRejectsWhatCannotSign(t *testing.T) {
	const asked = "an administrator requested it"
	annotation := func(key, value string) func(*rig, *corev1.Secret) {
		return func(_ *rig, s *corev1.Secret) { s.Annotations[key] = value }
	}
	other := func(t *testing.T) pki.Pair {
		pair, err := pki.NewCA("other", start)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	for name, c := range map[string]struct {
		change    func(*rig, *corev1.Secret)
		why, fail string
	}{
		"nothing changed": {func(*rig, *corev1.Secret) {}, "", ""},
		"another type":    {func(_ *rig, s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, "", ""},
		"past its renewal": {func(r *rig, _ *corev1.Secret) { r.now = start.Add(mcscert.Refresh) },
			"it is past its renewal on 2033-12-30", ""},
		"no not-after": {func(_ *rig, s *corev1.Secret) { delete(s.Annotations, NotAfterAnnotation) },
			asked, ""},
		"no not-before": {func(_ *rig, s *corev1.Secret) { delete(s.Annotations, NotBeforeAnnotation) },
			asked, ""},
		"no annotations":              {func(_ *rig, s *corev1.Secret) { s.Annotations = nil }, asked, ""},
		"a not-after that is no time": {annotation(NotAfterAnnotation, "never"), asked, ""},
		"a not-after in the past": {annotation(NotAfterAnnotation, "2025-01-01T00:00:00Z"),
			asked, ""},
		"annotations that promise more than the certificate": {func(r *rig, s *corev1.Secret) {
			s.Annotations[NotBeforeAnnotation] = "2033-01-01T00:00:00Z"
			s.Annotations[NotAfterAnnotation] = "2099-01-01T00:00:00Z"
			r.now = start.Add(mcscert.Validity)
		}, "it is past its renewal on 2033-12-30", ""},
		"the annotations of an older certificate": {annotation(NotBeforeAnnotation, "2010-01-01T00:00:00Z"), "", ""},
		"another CA and its key, by hand": {func(r *rig, s *corev1.Secret) {
			pair := other(r.T)
			s.Data["tls.crt"], s.Data["tls.key"] = pair.Certificate, pair.Key.Expose()
		}, "", ""},
		"another CA's key": {func(r *rig, s *corev1.Secret) { s.Data["tls.key"] = other(r.T).Key.Expose() },
			"", "private key does not match"},
		"no key":         {func(_ *rig, s *corev1.Secret) { delete(s.Data, "tls.key") }, "", "key input"},
		"no certificate": {func(_ *rig, s *corev1.Secret) { s.Data = nil }, "", "no certificate"},
		"bytes that are no certificate": {func(_ *rig, s *corev1.Secret) {
			s.Data["tls.crt"] = []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
		}, "", "certificate 0"},
		"a certificate that is no CA": {func(r *rig, s *corev1.Secret) {
			leaf, err := other(r.T).Serve([]string{host}, start)
			if err != nil {
				r.Fatal(err)
			}
			s.Data["tls.crt"], s.Data["tls.key"] = leaf.Certificate, leaf.Key.Expose()
		}, "", "may not sign"},
		"an invalid CA that is requested again": {func(_ *rig, s *corev1.Secret) {
			s.Data = nil
			delete(s.Annotations, NotAfterAnnotation)
		}, asked, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.pass()
			have, _, _ := r.objects()
			c.change(r, have)
			have.Labels["team"] = "a"
			r.update(have)
			before := have.DeepCopy()

			ca, why, err := r.r.CA(t.Context(), caName, have, nil)
			if c.fail != "" {
				if err == nil || !strings.Contains(err.Error(), c.fail) || !strings.Contains(err.Error(), NotAfterAnnotation) {
					t.Errorf("%v, want an error with %q and a hint", err, c.fail)
				}
			} else if err != nil || why != c.why {
				t.Fatalf("%q, %v; want %q", why, err, c.why)
			}
			after, _, _ := r.objects()
			if replaced := string(after.Data["tls.crt"]) != string(before.Data["tls.crt"]); replaced != (c.why != "") {
				t.Errorf("replaced: %t", replaced)
			}
			if after.Labels["team"] != "a" {
				t.Error("a label of another owner was lost")
			}
			if c.fail != "" {
				return
			}
			if have, err := mcscert.Parse(after.Data["tls.crt"]); err != nil || !have[0].Equal(ca.Certificate) {
				t.Errorf("the result is not the CA of the Secret: %v", err)
			}
			if printed := fmt.Sprintf("%v %+v", ca, ca); strings.Contains(printed, "PRIVATE") {
				t.Error("the key prints")
			}
			if _, why, err := r.r.CA(t.Context(), caName, after, nil); err != nil || why != "" {
				t.Errorf("the second pass: %q, %v", why, err)
			}
		})
	}
}

func TestBundle_KeepsEachCAUntilItExpires(t *testing.T) {
	r := newRig(t)
	r.pass()
	_, _, bundle := r.objects()
	bundle.Data["other"] = "stays"
	bundle.Labels["team"] = "a"
	r.update(bundle)

	r.now = start.Add(mcscert.Refresh)
	if why := r.pass(); why[1] != "its CAs have changed" || why[2] != "" {
		t.Errorf("reasons %q: want a new CA, and the same serving certificate", why)
	}
	_, _, bundle = r.objects()
	two, err := mcscert.Parse([]byte(bundle.Data[BundleKey]))
	if err != nil || len(two) != 2 || bundle.Data["other"] != "stays" || bundle.Labels["team"] != "a" {
		t.Fatalf("%d CAs, %v, labels %v", len(two), err, bundle.Labels)
	}
	// Neither the order nor repetitions in the object matter.
	bundle.Data[BundleKey] = "# by hand\n" + string(mcscert.Encode(two[1], two[0], two[1]))
	r.update(bundle)
	r.pass()
	_, _, bundle = r.objects()
	if bundle.Data[BundleKey] != string(mcscert.Encode(two...)) {
		t.Error("the bundle is not in its canonical form")
	}
	older := slices.IndexFunc(two, func(c *x509.Certificate) bool { return c.NotBefore.Equal(start) })
	r.now = two[older].NotAfter
	r.pass()
	_, _, bundle = r.objects()
	if one, err := mcscert.Parse([]byte(bundle.Data[BundleKey])); err != nil || len(one) != 1 || one[0].Equal(two[older]) {
		t.Errorf("after the first one expired: %d CAs, %v", len(one), err)
	}
}

func TestBundle_DoesNotOverwriteWhatItCannotParse(t *testing.T) {
	for _, text := range []string{"nothing", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		r := newRig(t)
		r.pass()
		secret, _, bundle := r.objects()
		bundle.Data[BundleKey] = text
		r.update(bundle)
		ca, _, err := r.r.CA(t.Context(), caName, secret, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := r.r.Bundle(t.Context(), caName, bundle, ca.Certificate); err == nil {
			t.Error("no error")
		}
		if _, _, after := r.objects(); after.Data[BundleKey] != text {
			t.Errorf("it is %q", after.Data[BundleKey])
		}
	}
}

func TestServing_ReplacesACertificateWithoutItsKey(t *testing.T) {
	for name, key := range map[string][]byte{"none": nil, "not a key": []byte("nothing")} {
		r := newRig(t)
		r.pass()
		_, serving, _ := r.objects()
		serving.Data["tls.key"] = key
		r.update(serving)
		if why := r.pass(); why[2] == "" {
			t.Errorf("%s: it stays", name)
		}
		_, serving, _ = r.objects()
		if _, err := tls.X509KeyPair(serving.Data["tls.crt"], serving.Data["tls.key"]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Replicas that have read the same state: one of them writes, and the others change nothing.
func TestRotator_ConcurrentReplicas(t *testing.T) {
	for name, prepare := range map[string]func(*rig){
		"create": func(*rig) {},
		"renew":  func(r *rig) { r.pass(); r.now = r.now.Add(mcscert.Refresh) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			prepare(r)
			have, _, _ := r.objects()
			var won atomic.Pointer[x509.Certificate]
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					ca, _, err := r.r.CA(context.WithoutCancel(t.Context()), caName, have.DeepCopy(), nil)
					switch {
					case err == nil:
						if !won.CompareAndSwap(nil, ca.Certificate) {
							t.Error("two replicas wrote a CA")
						}
					case !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err):
						t.Error(err)
					case ca.Certificate != nil:
						t.Error("a CA that was not written")
					}
				})
			}
			wg.Wait()
			after, _, _ := r.objects()
			if stored, err := mcscert.Parse(after.Data["tls.crt"]); err != nil || !stored[0].Equal(won.Load()) {
				t.Errorf("the stored CA is not the one that was reported: %v", err)
			}
		})
	}
}
