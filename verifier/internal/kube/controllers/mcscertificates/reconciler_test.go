// SPDX-License-Identifier: Apache-2.0

package mcscertificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openshift/api/annotations"
	"github.com/vincent-petithory/dataurl"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/mcs-attest/mcs-attest/pkg/mcscert"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/pkg/pointer"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
)

const (
	year     = 365 * 24 * time.Hour
	mco      = "openshift-machine-config-operator"
	machines = "openshift-machine-api"
	host     = "api-int.example.com"
)

// rig is a cluster in memory, by a clock that the test moves (testing/synctest).
type rig struct {
	t      *testing.T
	client client.Client // of an administrator
	// refuse, if set, may deny a call of the controller.
	refuse func(verb string, o runtime.Object, key client.ObjectKey) error
	o      Options
	k      *config.Kubernetes // of o
	c      *Reconciler
	events []events.Event
	expiry map[string]time.Time
}

func (r *rig) Emit(e events.Event) { r.events = append(r.events, e) }

func newRig(t *testing.T, objects ...client.Object) *rig {
	t.Helper()
	if !slices.ContainsFunc(objects, func(o client.Object) bool { _, ok := o.(*corev1.ConfigMap); return ok }) {
		objects = append(objects, rootCA(pair{pem: []byte(installed())}))
	}
	api := fake.NewClientBuilder().WithObjects(objects...).WithReturnManagedFields().Build()
	r := &rig{t: t, client: api, expiry: map[string]time.Time{}}
	check := func(verb string, o runtime.Object, key client.ObjectKey) error {
		if r.refuse == nil {
			return nil
		}
		return r.refuse(verb, o, key)
	}
	r.k = &config.Kubernetes{
		ServingSecret: mco + "/machine-config-server-tls", CAConfigMap: mco + "/machine-config-server-ca",
		UserDataSecrets:   []string{machines + "/worker-user-data", machines + "/master-user-data"},
		MachineNamespaces: []string{machines},
	}
	r.o = Options{
		Config: &config.Config{Kubernetes: r.k, Certificates: &config.Certificates{}}, Hostnames: []string{host, "192.0.2.5"},
		Events: r, Expiry: func(set string, at time.Time) { r.expiry[set] = at },
		Client: interceptor.NewClient(api, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
				opts ...client.GetOption) error {
				if err := check("get", o, key); err != nil {
					return err
				}
				return c.Get(ctx, key, o, opts...)
			},
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				var o client.ListOptions
				o.ApplyOptions(opts)
				if err := check("list", list, client.ObjectKey{Namespace: o.Namespace}); err != nil {
					return err
				}
				return c.List(ctx, list, opts...)
			},
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				if err := check("create", o, client.ObjectKeyFromObject(o)); err != nil {
					return err
				}
				return c.Create(ctx, o, opts...)
			},
			Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
				if err := check("update", o, client.ObjectKeyFromObject(o)); err != nil {
					return err
				}
				return c.Update(ctx, o, opts...)
			},
		}),
	}
	r.start()
	return r
}

// start is a new process.
func (r *rig) start() {
	r.t.Helper()
	var err error
	if r.c, err = New(r.o); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) reconcile() error {
	_, err := r.c.Reconcile(r.t.Context(), reconcile.Request{})
	return err
}

func (r *rig) sync() mcscert.Status {
	r.t.Helper()
	if err := r.reconcile(); err != nil {
		r.t.Fatal(err)
	}
	return r.c.Status()
}

func (r *rig) secret(namespace, name string) *corev1.Secret {
	r.t.Helper()
	s := &corev1.Secret{}
	if err := r.client.Get(r.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) update(o client.Object) {
	r.t.Helper()
	if err := r.client.Update(r.t.Context(), o); err != nil {
		r.t.Fatal(err)
	}
}

func isSecret(o runtime.Object) bool { _, ok := o.(*corev1.Secret); return ok }

func forbidden(name string) error {
	return kerrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, name, errors.New("no"))
}

// pointerRoots are the CAs that a machine with this pointer config trusts.
func (r *rig) pointerRoots(name string) *x509.CertPool {
	r.t.Helper()
	p, err := pointer.Parse(r.secret(machines, name).Data["userData"])
	if err != nil {
		r.t.Fatal(err)
	}
	all, err := p.CertificateAuthorities()
	if err != nil {
		r.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	for _, c := range all {
		roots.AddCert(c)
	}
	return roots
}

func verify(leaf *x509.Certificate, roots *x509.CertPool, at time.Time) error {
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: at})
	return err
}

type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// installed is the CA of a cluster whose pointer configs have it, and that has lost
// everything else of it.
var installed = sync.OnceValue(func() string {
	ca, err := pki.NewCA("root-ca", time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		panic(err)
	}
	return string(ca.Certificate)
})

// installerCA is a CA as openshift-install makes it.
func installerCA(t *testing.T, name string, notBefore time.Time) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name, OrganizationalUnit: []string{"openshift"}},
		NotBefore: notBefore, NotAfter: notBefore.Add(mcscert.Validity), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return pair{cert, key, mcscert.Encode(cert)}
}

func (ca pair) serving(t *testing.T, kind corev1.SecretType, hosts ...string) *corev1.Secret {
	t.Helper()
	leaf, key, err := mcscert.NewServing(ca.cert, ca.key, hosts, ca.cert.NotBefore.Add(mcscert.Backdate))
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: mco, Name: "machine-config-server-tls"}, Type: kind,
		Data: map[string][]byte{"tls.crt": mcscert.Encode(leaf),
			"tls.key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})},
	}
}

func userData(t *testing.T, name string, ca []byte) *corev1.Secret {
	t.Helper()
	source, err := json.Marshal(dataurl.New(ca, "text/plain", "charset", "utf-8").String())
	if err != nil {
		t.Fatal(err)
	}
	raw := fmt.Sprintf(`{"ignition":{"config":{"merge":[{"source":"https://%s:22623/config/worker"}]},"security":{"tls":{"certificateAuthorities":[{"source":%s}]}},"version":"3.2.0"}}`, host, source)
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: machines, Name: name},
		Data: map[string][]byte{"userData": []byte(raw), "disableTemplating": []byte("true")}}
}

func rootCA(ca pair) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "root-ca"},
		Data: map[string]string{"ca.crt": string(ca.pem)}}
}

func machineSetOf(userData string) *unstructured.Unstructured {
	return machineSetWith("userDataSecret", userData)
}

// machineSetWith returns a MachineSet. The field with the user data is userData on bare metal.
func machineSetWith(field, userData string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet",
		"metadata": map[string]any{"namespace": machines, "name": "workers"},
		"spec": map[string]any{"template": map[string]any{
			"spec": map[string]any{"providerSpec": map[string]any{
				"value": map[string]any{field: map[string]any{"name": userData}}}}}},
	}}
}

// Forty years of a cluster, one look in thirty days: what is served is known to
// every machine, whether its pointer config is of now or of the look before.
func TestTenYearsRenewedAtEight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := installerCA(t, "root-ca", time.Now())
		r := newRig(t, old.serving(t, corev1.SecretTypeTLS, host, "192.0.2.5"), rootCA(old),
			userData(t, "worker-user-data", old.pem))
		begin := time.Now()
		var cas, leaves []time.Duration // when there were new ones
		var before mcscert.Status
		roots := r.pointerRoots("worker-user-data")
		for time.Since(begin) < 40*year {
			s := r.sync()
			if s.Case != mcscert.CaseNoMachineSets && s.Case != mcscert.CaseOurs {
				t.Fatalf("after %v: %s", time.Since(begin), s.Case)
			}
			if before.CA == nil || !before.CA.Equal(s.CA) {
				cas = append(cas, time.Since(begin))
			}
			if before.Leaf != nil && !before.Leaf.Equal(s.Leaf) {
				leaves = append(leaves, time.Since(begin))
				if before.CA.Equal(s.CA) == false {
					t.Errorf("after %v: CA and serving certificate are both new", time.Since(begin))
				}
				if _, ok := s.Leaf.PublicKey.(*ecdsa.PublicKey); !ok {
					t.Errorf("the key is a %T", s.Leaf.PublicKey)
				}
			}
			if err := verify(s.Leaf, roots, time.Now()); err != nil {
				t.Fatalf("after %v, the pointer of the look before: %v", time.Since(begin), err)
			}
			roots = r.pointerRoots("worker-user-data")
			if err := verify(s.Leaf, roots, time.Now()); err != nil {
				t.Fatalf("after %v: %v", time.Since(begin), err)
			}
			for _, c := range s.Bundle {
				if time.Now().After(c.NotAfter) {
					t.Errorf("after %v: %s has expired and is in the bundle", time.Since(begin), c.Subject.CommonName)
				}
			}
			if !r.expiry[SetCA].Equal(s.CA.NotAfter) || !r.expiry[SetServing].Equal(s.Leaf.NotAfter) || len(r.c.Findings()) > 0 {
				t.Fatalf("after %v: expiry %v, findings %v", time.Since(begin), r.expiry, r.c.Findings())
			}
			before = s
			time.Sleep(30 * 24 * time.Hour)
		}
		for i, at := range cas[1:] {
			if age := at - cas[i]; age < mcscert.Refresh || age > mcscert.Refresh+60*24*time.Hour {
				t.Errorf("CA %d was renewed after %v days", i, age.Hours()/24)
			}
		}
		if len(cas) != 5 || len(leaves) < 4 {
			t.Errorf("%d CAs, %d serving certificates", len(cas), len(leaves))
		}
		// The installer's CA is of the same time as the verifier's first.
		if leaves[0] < mcscert.Refresh || leaves[0] > mcscert.Refresh+mcscert.Refresh/10+60*24*time.Hour {
			t.Errorf("the installer's certificate was replaced after %v days", leaves[0].Hours()/24)
		}
	})
}

// After years without a controller, the only CA of the bundle and of the pointer configs has expired.
func TestPointerConfigs_GetTheNewCAAfterTheirCAExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, userData(t, "worker-user-data", []byte(installed())))
		for _, after := range []time.Duration{0, 9 * year, 2 * year, 9 * year} {
			time.Sleep(after)
			s := r.sync()
			if err := verify(s.Leaf, r.pointerRoots("worker-user-data"), time.Now()); err != nil {
				t.Errorf("%v after the former pass: %v", after, err)
			}
		}
	})
}

// A pointer config that could not be written is still known as this server's in the next pass.
func TestPointerConfigs_GetTheNewCAAlsoIfAWriteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, userData(t, "worker-user-data", []byte(installed())))
		r.sync()
		time.Sleep(11 * year)
		r.refuse = func(verb string, _ runtime.Object, key client.ObjectKey) error {
			if verb == "update" && key.Name == "worker-user-data" {
				return errors.New("the API server does not answer")
			}
			return nil
		}
		for range 3 {
			_ = r.reconcile()
		}
		r.refuse = nil
		s := r.sync()
		if err := verify(s.Leaf, r.pointerRoots("worker-user-data"), time.Now()); err != nil {
			t.Error(err)
		}
	})
}

// The objects in testdata are what an earlier version wrote with OpenShift's library-go. They are accepted as
// they are, their CA signs, and their rotation continues.
func TestObjectsOfLibraryGoAreAccepted(t *testing.T) {
	raw, err := os.ReadFile("testdata/library-go.yaml")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // The clock is then that of the objects.
		var written unstructured.UnstructuredList
		if err := yaml.Unmarshal(raw, &written); err != nil {
			t.Fatal(err)
		}
		var objects []client.Object
		for _, o := range written.Items {
			objects = append(objects, &o)
		}
		r := newRig(t, objects...)
		before := r.objects()
		first := r.sync()
		if first.Case != mcscert.CaseOurs || first.CA == nil || first.Leaf == nil || len(first.PointerConfigs) != 1 {
			t.Fatalf("%s, CA %v", first.Case, first.CA)
		}
		time.Sleep(mcscert.Refresh - 2*mcscert.Backdate)
		r.start()
		if s := r.sync(); r.objects() != before || len(r.events) > 0 || len(r.c.Findings()) > 0 {
			t.Errorf("something was written: CA of %s, certificate of %s, events %v, findings %v",
				s.CA.NotBefore, s.Leaf.NotBefore, r.events, r.c.Findings())
		}
		// The same CA signs for another host, so no machine has to learn a new one.
		r.o.Hostnames = append(r.o.Hostnames, "192.0.2.9")
		r.start()
		if s := r.sync(); s.Leaf.Equal(first.Leaf) || s.Leaf.CheckSignatureFrom(first.CA) != nil {
			t.Error("its CA does not sign")
		}
		time.Sleep(3 * mcscert.Backdate)
		second := r.sync()
		if second.CA.Equal(first.CA) || len(second.Bundle) != 2 || !mcscert.Contains(second.Bundle, first.CA) ||
			second.Leaf.CheckSignatureFrom(first.CA) != nil {
			t.Errorf("after eight years: not a new CA beside the old one; %d CAs", len(second.Bundle))
		}
	})
}

// A new CA has to be known before it is used: the certificate that is due waits for
// a tenth of the period, and for each pointer config that can be written.
func TestServingCertificateWaitsForTheCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, userData(t, "worker-user-data", []byte(installed())))
		first := r.sync()
		time.Sleep(mcscert.Refresh + time.Hour)
		r.sync()
		second := r.sync()
		if first.CA.Equal(second.CA) || !first.Leaf.Equal(second.Leaf) || len(second.Bundle) != 2 {
			t.Fatal("after eight years: not a new CA beside the old one, with what is served as it was")
		}
		r.refuse = func(verb string, o runtime.Object, key client.ObjectKey) error {
			if verb == "update" && isSecret(o) && key.Namespace == machines {
				return forbidden(key.Name)
			}
			return nil
		}
		// The pointer is put back by hand, and cannot be written.
		r.update(userData(t, "worker-user-data", mcscert.Encode(first.Bundle...)))
		time.Sleep(mcscert.Refresh/10 + time.Hour)
		r.sync()
		s := r.sync()
		if !s.Leaf.Equal(first.Leaf) {
			t.Error("it is signed by a CA that a pointer config does not have")
		}
		if f := r.c.Findings(); len(f) != 1 || !strings.Contains(f[0].Text, "worker-user-data") ||
			!strings.Contains(f[0].Text, "cannot be written") {
			t.Errorf("findings %v", f)
		}
		r.refuse = nil
		r.sync()
		s = r.sync()
		if s.Leaf.Equal(first.Leaf) || s.Leaf.CheckSignatureFrom(second.CA) != nil || len(r.c.Findings()) > 0 {
			t.Errorf("when it can be written: findings %v, certificate of %v", r.c.Findings(), s.Leaf.NotBefore)
		}
	})
}

func TestInstallersCertificateStays(t *testing.T) {
	for _, c := range []struct {
		name   string
		legacy bool // the CA is in kube-system/root-ca, not in the chain
	}{{"its CA in kube-system", true}, {"its CA beside it", false}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				old := installerCA(t, "root-ca", time.Now().Add(-year))
				serving := old.serving(t, corev1.SecretTypeTLS, "192.0.2.5", host)
				objects := []client.Object{serving, userData(t, "worker-user-data", old.pem)}
				if c.legacy {
					objects = append(objects, rootCA(old))
				} else {
					serving.Data["tls.crt"] = append(serving.Data["tls.crt"], old.pem...)
				}
				r := newRig(t, objects...)
				leaf, err := mcscert.Parse(serving.Data["tls.crt"])
				if err != nil {
					t.Fatal(err)
				}
				s := r.sync()
				if !s.Leaf.Equal(leaf[0]) || len(s.Bundle) != 2 || !mcscert.Contains(s.Bundle, old.cert) ||
					!mcscert.Contains(s.Bundle, s.CA) {
					t.Errorf("what is served was replaced, or its CA is not in the bundle: %d", len(s.Bundle))
				}
				if err := verify(s.Leaf, r.pointerRoots("worker-user-data"), time.Now()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// An unverifiable certificate is not kept: a serving certificate that no machine trusts is
// replaced immediately, and so is an expired one.
func TestServingCertificateThatNoMachineCanVerify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := installerCA(t, "root-ca", time.Now().Add(-11*year))
		stranger := installerCA(t, "stranger", time.Now())
		broken := stranger.serving(t, corev1.SecretTypeTLS, host)
		broken.Data["tls.crt"] = []byte("nothing")
		for name, objects := range map[string][]client.Object{
			"expired":          {long.serving(t, corev1.SecretTypeTLS, host, "192.0.2.5"), rootCA(long)},
			"of an unknown CA": {stranger.serving(t, corev1.SecretTypeTLS, host, "192.0.2.5"), rootCA(long)},
			"not readable":     {broken, rootCA(long)},
			"none":             {rootCA(long)},
		} {
			r := newRig(t, append(objects, userData(t, "worker-user-data", long.pem))...)
			s := r.sync()
			if s.Leaf == nil || s.Leaf.CheckSignatureFrom(s.CA) != nil || len(s.Bundle) != 1 {
				t.Errorf("%s: it stays", name)
				continue
			}
			if err := verify(s.Leaf, r.pointerRoots("worker-user-data"), time.Now()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestOtherHostNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, userData(t, "worker-user-data", []byte(installed())))
		first := r.sync()
		r.o.Hostnames = []string{"2001:db8:0::5", "192.0.2.5", strings.ToUpper(host)}
		r.start()
		s := r.sync() // the same CA signs: nothing to wait for
		if s.Leaf.Equal(first.Leaf) || !slices.Equal(mcscert.Hosts(s.Leaf), []string{"192.0.2.5", "2001:db8::5", host}) {
			t.Errorf("it is for %v", mcscert.Hosts(s.Leaf))
		}
		if again := r.sync(); !again.Leaf.Equal(s.Leaf) {
			t.Error("the same names in another form are others")
		}
		// One that is for more than is asked for is good until its renewal.
		r.o.Hostnames = []string{host}
		r.start()
		if again := r.sync(); !again.Leaf.Equal(s.Leaf) || len(r.c.Findings()) > 0 {
			t.Errorf("a name fewer: it was replaced, or findings %v", r.c.Findings())
		}
		// With a new CA it waits until machines can know it, and says so.
		time.Sleep(7 * year)
		if _, _, err := r.c.Rotate(t.Context(), mcscert.Force{}); err != nil {
			t.Fatal(err)
		}
		before := r.sync()
		r.o.Hostnames = []string{host, "192.0.2.9"}
		r.start()
		for range 2 {
			if s := r.sync(); !s.Leaf.Equal(before.Leaf) {
				t.Error("a CA that machines may not know signed it")
			}
			if f := r.c.Findings(); len(f) != 1 || !strings.Contains(f[0].Text, "lacks the configured name 192.0.2.9") {
				t.Errorf("findings %v", f)
			}
			time.Sleep(mcscert.Refresh/10 - time.Hour)
		}
		if s := r.sync(); s.Leaf.CheckSignatureFrom(s.CA) != nil ||
			!slices.Equal(mcscert.Hosts(s.Leaf), []string{"192.0.2.9", host}) || len(r.c.Findings()) > 0 {
			t.Error("it still waits")
		}
	})
}

func singleton(apiVersion, kind string, object map[string]any) *unstructured.Unstructured {
	object["apiVersion"], object["kind"], object["metadata"] = apiVersion, kind, map[string]any{"name": "cluster"}
	return &unstructured.Unstructured{Object: object}
}

func infrastructure(internal, platform string, addresses ...any) *unstructured.Unstructured {
	return singleton("config.openshift.io/v1", "Infrastructure", map[string]any{"status": map[string]any{
		"apiServerInternalURI": internal,
		"platformStatus": map[string]any{"type": platform,
			strings.ToLower(platform): map[string]any{"apiServerInternalIPs": addresses, "ingressIPs": []any{"192.0.2.99"}}},
	}})
}

// Without hostnames in the configuration, the certificate has the hosts of origins, and the names and addresses of the
// cluster. A change of them issues it again (status row C8).
func TestHostNamesOfTheCluster(t *testing.T) {
	aro := func(address string) *unstructured.Unstructured {
		return singleton("aro.openshift.io/v1alpha1", "Cluster", map[string]any{"spec": map[string]any{"apiIntIP": address}})
	}
	for name, v := range map[string]struct {
		objects []client.Object
		listed  []string
		want    []string
	}{
		"not OpenShift": {nil, nil, []string{"192.0.2.1", "mcs.example.com"}},
		"a cloud": {[]client.Object{infrastructure("https://api-int.c.example.com:6443", "AWS")}, nil,
			[]string{"192.0.2.1", "api-int.c.example.com", "mcs.example.com"}},
		"virtual addresses of both families": {
			[]client.Object{
				infrastructure("https://api-int.c.example.com:6443", "BareMetal", "192.0.2.5", "2001:db8:0::5"),
			}, nil,
			[]string{"192.0.2.1", "192.0.2.5", "2001:db8::5", "api-int.c.example.com", "mcs.example.com"}},
		"Azure Red Hat OpenShift": {
			[]client.Object{infrastructure("https://api-int.c.example.com:6443", "Azure"), aro("192.0.2.6")}, nil,
			[]string{"192.0.2.1", "192.0.2.6", "api-int.c.example.com", "mcs.example.com"}},
		"not filled in": {[]client.Object{infrastructure("", "VSphere", "", "no address"), aro("")}, nil,
			[]string{"192.0.2.1", "mcs.example.com"}},
		"listed in the configuration": {
			[]client.Object{infrastructure("https://api-int.c.example.com:6443", "BareMetal", "192.0.2.5")},
			[]string{host}, []string{host}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, append(v.objects, userData(t, "worker-user-data", []byte(installed())))...)
				r.o.Hostnames = nil
				r.o.Config.Origins = []string{"https://mcs.example.com:22623", "https://192.0.2.1:22623"}
				r.o.Config.Certificates.Hostnames = v.listed
				r.start()
				s := r.sync()
				slices.Sort(v.want)
				if got := mcscert.Hosts(s.Leaf); !slices.Equal(got, v.want) || !slices.Equal(s.Hosts, v.want) {
					t.Errorf("the certificate is for %v, and should be for %v; want %v", got, s.Hosts, v.want)
				}
			})
		})
	}

	synctest.Test(t, func(t *testing.T) {
		o := infrastructure("https://api-int.c.example.com:6443", "OpenStack", "192.0.2.5")
		r := newRig(t, o, userData(t, "worker-user-data", []byte(installed())))
		r.o.Hostnames, r.o.Config.Origins = nil, []string{"https://mcs.example.com:22623"}
		r.start()
		first := r.sync()
		if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		if err := unstructured.SetNestedStringSlice(o.Object, []string{"192.0.2.7"},
			"status", "platformStatus", "openstack", "apiServerInternalIPs"); err != nil {
			t.Fatal(err)
		}
		r.update(o)
		if s := r.sync(); s.Leaf.Equal(first.Leaf) || !slices.Contains(mcscert.Hosts(s.Leaf), "192.0.2.7") {
			t.Errorf("after another virtual address it is for %v", mcscert.Hosts(s.Leaf))
		}
		// Without the permission nothing is renewed for fewer names, and the finding has the remedy.
		before := r.c.Status()
		r.refuse = func(_ string, o runtime.Object, _ client.ObjectKey) error {
			if o.GetObjectKind().GroupVersionKind().Kind == "Infrastructure" {
				return forbidden("cluster")
			}
			return nil
		}
		if err := r.reconcile(); err == nil {
			t.Error("a forbidden Infrastructure is no error")
		}
		if f := r.c.Findings(); len(f) != 1 || !strings.Contains(f[0].Text, "apply the component certificates") {
			t.Errorf("findings %v", f)
		}
		if !r.c.Status().Leaf.Equal(before.Leaf) {
			t.Error("the certificate was replaced")
		}
		// When it is due, it is renewed with its names, and the finding stays.
		time.Sleep(time.Until(mcscert.Renewal(before.Leaf)) + time.Hour)
		if err := r.reconcile(); err == nil {
			t.Error("a forbidden Infrastructure is no error")
		}
		renewed := r.c.Status().Leaf
		if renewed.Equal(before.Leaf) || !slices.Equal(mcscert.Hosts(renewed), mcscert.Hosts(before.Leaf)) {
			t.Errorf("at its renewal: until %v, for %v", renewed.NotAfter, mcscert.Hosts(renewed))
		}
		if f := r.c.Findings(); len(f) != 1 || !strings.Contains(f[0].Text, "apply the component certificates") {
			t.Errorf("findings %v", f)
		}
		// A certificate that no CA of the bundle issued gives no names. Nothing is issued without the names.
		serving := r.secret(mco, "machine-config-server-tls")
		serving.Data = installerCA(t, "another", time.Now()).serving(t, corev1.SecretTypeTLS, "other.example.com").Data
		r.update(serving)
		if err := r.reconcile(); err == nil || !strings.Contains(err.Error(), "apply the component certificates") {
			t.Errorf("after a certificate of another CA: %v", err)
		}
		if got := r.secret(mco, "machine-config-server-tls"); !reflect.DeepEqual(got.Data, serving.Data) {
			t.Error("a certificate of another CA was replaced without the names of the cluster")
		}
	})
}

// One answer that the kind Infrastructure does not exist would renew the certificate without the name by which all
// machines reach the Machine Config Server. A minute of such answers shows that the cluster does not have it.
func TestAbsentKind_DelaysTheServingCertificateForAMinute(t *testing.T) {
	const internal = "api-int.c.example.com"
	absent := notServed("config.openshift.io")
	down := func(_ string, o runtime.Object, _ client.ObjectKey) error {
		if o.GetObjectKind().GroupVersionKind().Group == "config.openshift.io" {
			return errors.New("the server is currently unable to handle the request")
		}
		return nil
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, infrastructure("https://"+internal+":6443", "AWS"),
			userData(t, "worker-user-data", []byte(installed())))
		r.o.Hostnames, r.o.Config.Origins = nil, []string{"https://mcs.example.com:22623"}
		r.start()
		first := r.sync()
		time.Sleep(time.Until(mcscert.Renewal(first.Leaf)) + time.Hour)
		for i, pass := range []struct {
			after   time.Duration
			refuse  func(string, runtime.Object, client.ObjectKey) error
			renewed bool
		}{
			{refuse: absent},
			{after: 40 * time.Second, refuse: down}, // so the next answer is the first one again
			{after: 40 * time.Second, refuse: absent},
			{after: 40 * time.Second, refuse: absent},
			{after: 20 * time.Second, refuse: absent, renewed: true},
		} {
			time.Sleep(pass.after)
			r.refuse = pass.refuse
			_ = r.reconcile() // the answer "unavailable" is an error
			leaf := r.c.Status().Leaf
			if leaf.Equal(first.Leaf) == pass.renewed {
				t.Errorf("pass %d: it is for %v", i, mcscert.Hosts(leaf))
			}
		}
		if hosts := mcscert.Hosts(r.c.Status().Leaf); slices.Contains(hosts, internal) {
			t.Errorf("of a cluster without the kind it is for %v", hosts)
		}
	})
}

// An absent kind delays a changed name, but leaves no earlier name in the certificate.
func TestAbsentKind_LeavesNoEarlierName(t *testing.T) {
	want := []string{"api-int.c.example.com", "new.example.com"}
	changed := func(t *testing.T) (*rig, mcscert.Status) {
		r := newRig(t, infrastructure("https://api-int.c.example.com:6443", "Azure"), // and not Azure Red Hat OpenShift
			userData(t, "worker-user-data", []byte(installed())))
		r.o.Hostnames, r.o.Config.Origins = nil, []string{"https://old.example.com:22623"}
		r.start()
		before := r.sync()
		r.o.Config.Origins = []string{"https://new.example.com:22623"}
		r.start()
		r.refuse = notServed("aro.openshift.io")
		return r, before
	}
	t.Run("controller", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, before := changed(t)
			if s := r.sync(); !s.Leaf.Equal(before.Leaf) {
				t.Errorf("at first it is for %v", mcscert.Hosts(s.Leaf))
			}
			time.Sleep(certain)
			if s := r.sync(); !slices.Equal(mcscert.Hosts(s.Leaf), want) {
				t.Errorf("after a minute it is for %v, want %v", mcscert.Hosts(s.Leaf), want)
			}
		})
	})
	t.Run("command", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, _ := changed(t)
			began := time.Now()
			_, s, err := r.c.Rotate(t.Context(), mcscert.Force{})
			if took := time.Since(began); s.Leaf == nil || !slices.Equal(mcscert.Hosts(s.Leaf), want) ||
				took < commandCertain || took > 2*commandCertain {
				t.Errorf("after %v: %v, want %v, %v", took, s.Hosts, want, err)
			}
		})
	})
}

// An installer's certificate for one address more than the configuration has stays
// after init, and when it lacks one it waits for pointer configs outside, too; an
// administrator need not.
func TestInitKeepsTheInstallersCertificateForMonths(t *testing.T) {
	for _, hosts := range [][]string{{host, "192.0.2.5", "192.0.2.6"}, {host}} {
		synctest.Test(t, func(t *testing.T) {
			old := installerCA(t, "root-ca", time.Now().Add(-year))
			r := newRig(t, old.serving(t, corev1.SecretTypeTLS, hosts...), rootCA(old), userData(t, "worker-user-data", old.pem))
			if _, err := r.c.Init(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			time.Sleep(mcscert.Refresh/10 - time.Hour)
			s := r.sync()
			if s.Leaf.CheckSignatureFrom(old.cert) != nil {
				t.Fatal("machines with the installer's pointer config fail")
			}
			if want := len(hosts) == 1; (len(r.c.Findings()) == 1) != want {
				t.Errorf("findings %v", r.c.Findings())
			}
			if step, s, err := r.c.Rotate(t.Context(), mcscert.Force{}); err != nil || step != mcscert.StepServing ||
				len(mcscert.Missing(s.Leaf, r.o.Hostnames)) > 0 {
				t.Errorf("%s, %v", step, err)
			}
		})
	}
}

func TestOwnerOfTheCertificates(t *testing.T) {
	ca := func(change func(*corev1.Secret)) *corev1.Secret {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: mco, Name: "machine-config-server-ca",
			Annotations: map[string]string{}}, Type: corev1.SecretTypeTLS}
		change(s)
		return s
	}
	for _, c := range []struct {
		name    string
		always  bool
		objects []client.Object
		want    mcscert.Case
		later   mcscert.Case
	}{
		{"no MachineSets", false, nil, mcscert.CaseNoMachineSets, mcscert.CaseOurs},
		{"MachineSets and no CA", false, []client.Object{machineSetOf("worker-user-data")}, mcscert.CaseOperatorToCome,
			mcscert.CaseOldOperator},
		{"a CA with the operator's annotation", false,
			[]client.Object{ca(func(s *corev1.Secret) {
				s.Annotations[annotations.OpenShiftComponent] = "Machine Config Operator"
			})}, mcscert.CaseOperator, mcscert.CaseOperator},
		{"a CA that the operator wrote", false, []client.Object{ca(func(s *corev1.Secret) {
			s.ManagedFields = []metav1.ManagedFieldsEntry{{
				Manager: "machine-config-controller", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
				FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:type":{}}`),
			}}
		})}, mcscert.CaseOperator, mcscert.CaseOperator},
		{"a CA without any mark", false, []client.Object{ca(func(*corev1.Secret) {})}, mcscert.CaseOther,
			mcscert.CaseOther},
		{"configured", true, []client.Object{machineSetOf("worker-user-data")}, mcscert.CaseConfigured,
			mcscert.CaseConfigured},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, append(c.objects, userData(t, "worker-user-data", []byte(installed())))...)
				if c.always {
					r.o.Config.Certificates.Rotate = config.RotateAlways
				}
				r.start()
				before := r.objects()
				_ = r.reconcile()
				got := r.c.Status().Case
				if got != c.want {
					t.Errorf("it is %s, want %s", got, c.want)
				}
				if !got.Ours() && r.objects() != before {
					t.Error("it is not ours, and something was written")
				}
				time.Sleep(mcscert.OperatorDelay + time.Second)
				_ = r.reconcile()
				if got := r.c.Status().Case; got != c.later {
					t.Errorf("later it is %s, want %s", got, c.later)
				}
				if finding := len(r.c.Findings()) > 0; finding != (c.want == mcscert.CaseOther ||
					c.want == mcscert.CaseOperator) {
					t.Errorf("findings %v", r.c.Findings()) // those two hold no certificate here
				}
			})
		})
	}
}

// objects is everything that there is, as text.
func (r *rig) objects() string {
	r.t.Helper()
	var s corev1.SecretList
	var m corev1.ConfigMapList
	if err := errors.Join(r.client.List(r.t.Context(), &s), r.client.List(r.t.Context(), &m)); err != nil {
		r.t.Fatal(err)
	}
	return fmt.Sprintf("%+v %+v", s.Items, m.Items)
}

// The machine-config-operator renews only while MachineSets exist.
func TestOperatorWithoutMachineSetsIsAFinding(t *testing.T) {
	for name, c := range map[string]struct {
		sets    []client.Object
		refuse  bool
		finding bool
	}{
		"MachineSets":     {sets: []client.Object{machineSetOf("worker-user-data")}},
		"no MachineSets":  {finding: true},
		"it is not known": {refuse: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, append(c.sets, userData(t, "worker-user-data", []byte(installed())),
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: machines}})...)
			r.o.Config.Certificates.Rotate = config.RotateAlways
			r.start()
			r.sync()
			ca := r.secret(mco, "machine-config-server-ca")
			ca.Annotations[annotations.OpenShiftComponent] = "Machine Config Operator"
			r.update(ca)
			r.o.Config.Certificates.Rotate = ""
			r.start()
			r.refuse = func(verb string, _ runtime.Object, _ client.ObjectKey) error {
				if c.refuse && verb == "list" {
					return forbidden("")
				}
				return nil
			}
			if s := r.sync(); s.Case != mcscert.CaseOperator {
				t.Fatal(s.Case)
			}
			f := r.c.Findings()
			if (len(f) > 0) != c.finding || c.finding && !strings.Contains(f[0].Text, "certificates.rotate: Always") {
				t.Errorf("findings %v", f)
			}
		})
	}
}

// When the machine-config-operator is upgraded and takes over, the verifier stops;
// where it is told to go on, it says that there are two.
func TestTheMachineConfigOperatorTakesOver(t *testing.T) {
	for _, always := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, userData(t, "worker-user-data", []byte(installed())))
			if always {
				r.o.Config.Certificates.Rotate = config.RotateAlways
			}
			r.start()
			r.sync()
			if err := r.client.Create(t.Context(), machineSetOf("worker-user-data")); err != nil {
				t.Fatal(err)
			}
			ca := r.secret(mco, "machine-config-server-ca")
			ca.Annotations[annotations.OpenShiftComponent] = "Machine Config Operator"
			r.update(ca)
			s := r.sync()
			if always != s.Rival || always != (len(r.c.Findings()) > 0) || !always && s.Case != mcscert.CaseOperator {
				t.Errorf("always %t: %s, rival %t, findings %v", always, s.Case, s.Rival, r.c.Findings())
			}
			if s.CA == nil || r.expiry[SetCA].IsZero() {
				t.Error("its expiry is not reported")
			}
		})
	}
}

func TestPointerConfigsFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		owned := userData(t, "argo-user-data", []byte(installed()))
		owned.Labels = map[string]string{"argocd.argoproj.io/instance": "a"}
		script := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: machines, Name: "windows-user-data"},
			Data: map[string][]byte{"userData": []byte("<powershell>")}}
		managed := userData(t, "worker-user-data-managed", []byte(installed()))
		capi := userData(t, "capi-user-data", []byte(installed()))
		capi.Data = map[string][]byte{"value": capi.Data["userData"], "format": []byte("ignition")}
		r := newRig(t, userData(t, "worker-user-data", []byte(installed())),
			userData(t, "infra-user-data", []byte(installed())), managed, capi, owned, script,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: machines, Name: "cloud-credentials"},
				Data: map[string][]byte{"userData": []byte("{}")}})
		r.o.ListUserData = true
		r.start()
		s := r.sync()
		left := map[string]string{}
		for _, u := range s.PointerConfigs {
			left[u.Name] = u.Left
		}
		for name, why := range map[string]string{
			"worker-user-data": "", "infra-user-data": "", "capi-user-data": "",
			"argo-user-data": "argocd", "windows-user-data": "not an Ignition config",
		} {
			if got, ok := left[machines+"/"+name]; !ok || why == "" && got != "" || !strings.Contains(got, why) {
				t.Errorf("%s: left %q, want %q", name, got, why)
			}
		}
		if len(left) != 5 {
			t.Errorf("looked at %v", left)
		}
		for _, name := range []string{"worker-user-data", "infra-user-data"} {
			if err := verify(s.Leaf, r.pointerRoots(name), time.Now()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := r.secret(machines, managed.Name); string(got.Data["userData"]) != string(managed.Data["userData"]) {
			t.Error("the operator's own was written")
		}
		if n := len(r.c.Findings()); n != 2 {
			t.Errorf("findings %v", r.c.Findings())
		}
		// Twice the same is told once, and written once.
		before, events := r.objects(), len(r.events)
		r.sync()
		if r.objects() != before || len(r.events) != events {
			t.Errorf("the second reconciliation wrote something, or reported it again: %v", r.events[events:])
		}
	})
}

// Without a list of Secrets the MachineSets say where pointer configs are; one that
// may not be read is named.
func TestPointerConfigsOfMachineSets(t *testing.T) {
	for _, field := range []string{"userDataSecret", "userData"} {
		t.Run(field, func(t *testing.T) { pointerConfigsOfMachineSets(t, field) })
	}
}

func pointerConfigsOfMachineSets(t *testing.T, field string) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, machineSetWith(field, "infra-user-data"), userData(t, "infra-user-data", []byte(installed())))
		r.o.Config.Certificates.Rotate = config.RotateAlways
		r.start()
		s := r.sync()
		if err := verify(s.Leaf, r.pointerRoots("infra-user-data"), time.Now()); err != nil {
			t.Error(err)
		}
		r.refuse = func(verb string, o runtime.Object, key client.ObjectKey) error {
			if verb == "get" && isSecret(o) && key.Namespace == machines {
				return forbidden(key.Name)
			}
			return nil
		}
		r.sync()
		if f := r.c.Findings(); len(f) != 2+1 || !strings.Contains(f[0].Text, "add it to the verifier's Role") {
			t.Errorf("findings %v", f)
		}
	})
}

// Before 4.19 the machine-config-operator makes NAME-managed from the installer's CA:
// what is served stays that CA's for as long as a MachineSet names one of them.
func TestManagedPointerConfigsDelayTheSwitch(t *testing.T) {
	const name = "worker-user-data-managed"
	synctest.Test(t, func(t *testing.T) {
		old := installerCA(t, "root-ca", time.Now().Add(-year))
		of := userData(t, name, old.pem)
		r := newRig(t, old.serving(t, corev1.SecretTypeTLS, "192.0.2.5", host), rootCA(old), of,
			userData(t, "worker-user-data", old.pem), machineSetWith("userData", name))
		r.sync()
		time.Sleep(mcscert.OperatorDelay + time.Minute)
		first := r.sync()
		if first.Case != mcscert.CaseOldOperator {
			t.Fatal(first.Case)
		}
		finding := func(want string) {
			t.Helper()
			if f := r.c.Findings(); len(f) != 1 || !strings.Contains(f[0].Text, name) || !strings.Contains(f[0].Text, want) {
				t.Errorf("findings %v", f)
			}
		}
		finding("before 4.19")
		time.Sleep(mcscert.Publish)
		var early *mcscert.TooEarly
		if _, _, err := r.c.Rotate(t.Context(), mcscert.Force{}); !errors.As(err, &early) ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("certs rotate: %v", err)
		}
		for range 12 * 7 {
			time.Sleep(31 * 24 * time.Hour)
			if s := r.sync(); verify(s.Leaf, r.pointerRoots(name), time.Now()) != nil {
				t.Fatal("a machine with the operator's pointer config fails")
			}
		}
		if got := r.secret(machines, name); string(got.Data["userData"]) != string(of.Data["userData"]) {
			t.Error("the operator's own was written")
		}
		// One that may not be read is no better.
		r.refuse = func(verb string, o runtime.Object, key client.ObjectKey) error {
			if verb == "get" && isSecret(o) && key.Name == name {
				return forbidden(key.Name)
			}
			return nil
		}
		if s := r.sync(); s.Leaf.CheckSignatureFrom(s.CA) == nil {
			t.Error("it does not wait for what it may not read")
		}
		finding("reading it is forbidden")
		r.refuse = nil
		// The operator is upgraded, and its pointer config has the bundle.
		r.update(userData(t, name, mcscert.Encode(r.c.Status().Bundle...)))
		if s := r.sync(); s.Leaf.CheckSignatureFrom(s.CA) != nil || len(r.c.Findings()) > 0 {
			t.Errorf("it still waits: %v", r.c.Findings())
		}
	})
}

// A third party's pointer config that does not have the new CA is waited
// for until the last month; one that knows nothing of what is served now is not.
func TestPointerConfigsOfOthersDelayTheSwitch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, stranger := installerCA(t, "root-ca", time.Now().Add(-year)), installerCA(t, "stranger", time.Now())
		gitops := userData(t, "infra-user-data", old.pem)
		gitops.Labels = map[string]string{"argocd.argoproj.io/instance": "x"}
		script := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: machines, Name: "windows-user-data"},
			Data: map[string][]byte{"userData": []byte("<powershell>")}}
		r := newRig(t, old.serving(t, corev1.SecretTypeTLS, "192.0.2.5", host), rootCA(old), gitops, script,
			userData(t, "http-user-data", stranger.pem))
		for _, name := range []string{"infra", "windows", "http"} {
			r.k.UserDataSecrets = append(r.k.UserDataSecrets, machines+"/"+name+"-user-data")
		}
		r.start()
		first := r.sync()
		time.Sleep(mcscert.Publish)
		var early *mcscert.TooEarly
		_, _, err := r.c.Rotate(t.Context(), mcscert.Force{})
		if !errors.As(err, &early) || !strings.HasSuffix(err.Error(), ": "+machines+"/infra-user-data") {
			t.Errorf("certs rotate: %v", err)
		}
		if len(r.c.Findings()) != 3 || verify(first.Leaf, r.pointerRoots("infra-user-data"), time.Now()) != nil {
			t.Errorf("findings %v", r.c.Findings())
		}
		for last := first.Leaf.NotAfter.Add(-mcscert.LastMonth - time.Hour); time.Now().Before(last); {
			time.Sleep(min(60*24*time.Hour, time.Until(last)))
			if s := r.sync(); !s.Leaf.Equal(first.Leaf) {
				t.Fatal("before the last month it does not wait")
			}
		}
		time.Sleep(2 * time.Hour)
		if s := r.sync(); s.Leaf.Equal(first.Leaf) {
			t.Error("it waits until nothing can be served")
		}
	})
}

// Who keeps a pointer config elsewhere puts the bundle into it there; in another form
// it is as good.
func TestPointerConfigsOfOthersThatHaveTheBundle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := installerCA(t, "root-ca", time.Now().Add(-year))
		gitops := userData(t, "infra-user-data", old.pem)
		gitops.Labels = map[string]string{"argocd.argoproj.io/instance": "x"}
		r := newRig(t, old.serving(t, corev1.SecretTypeTLS, "192.0.2.5", host), rootCA(old), gitops)
		r.k.UserDataSecrets = []string{machines + "/infra-user-data"}
		r.start()
		s := r.sync()
		next := userData(t, gitops.Name, append([]byte("# both\n"), mcscert.Encode(old.cert, s.CA)...))
		next.Labels = gitops.Labels
		r.update(next)
		time.Sleep(mcscert.Publish)
		if step, _, err := r.c.Rotate(t.Context(), mcscert.Force{}); err != nil || step != mcscert.StepServing ||
			len(r.c.Findings()) > 0 {
			t.Errorf("%s, %v, findings %v", step, err, r.c.Findings())
		}
	})
}

// Clusters with an older Cluster API have its MachineSets in an older version.
func TestMachineSetsOfAnOlderClusterAPI(t *testing.T) {
	for _, version := range []string{"v1beta2", "v1beta1"} {
		synctest.Test(t, func(t *testing.T) {
			set := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "cluster.x-k8s.io/" + version, "kind": "MachineSet",
				"metadata": map[string]any{"namespace": machines, "name": "workers"},
				"spec": map[string]any{
					"template": map[string]any{
						"spec": map[string]any{"bootstrap": map[string]any{"dataSecretName": "capi-user-data"}}}},
			}}
			r := newRig(t, set, userData(t, "capi-user-data", []byte(installed())))
			r.refuse = func(verb string, o runtime.Object, _ client.ObjectKey) error {
				if gvk := o.GetObjectKind().GroupVersionKind(); gvk.Group == "cluster.x-k8s.io" && gvk.Version != version {
					return &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
				}
				return nil
			}
			if s := r.sync(); len(s.PointerConfigs) != 1 || verify(s.Leaf, r.pointerRoots("capi-user-data"), time.Now()) != nil {
				t.Errorf("%s: %v", version, s.PointerConfigs)
			}
		})
	}
}

// Errors are a finding and one Event, and end when they do.
func TestErrorsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, userData(t, "worker-user-data", []byte(installed())))
		r.refuse = func(verb string, o runtime.Object, key client.ObjectKey) error {
			if verb == "create" && isSecret(o) {
				return forbidden(key.Name)
			}
			return nil
		}
		for range 3 {
			if err := r.reconcile(); err == nil {
				t.Fatal("no error")
			}
		}
		if f := r.c.Findings(); len(f) != 1 || f[0].Reason != "CertificateRotation" ||
			!strings.Contains(f[0].Text, "certs init") {
			t.Errorf("findings %v", f)
		}
		if len(r.events) != 1 || !r.events[0].Warning || r.events[0].About.Name != "machine-config-server-ca" {
			t.Errorf("events %v", r.events)
		}
		r.refuse = nil
		r.sync()
		if f := r.c.Findings(); len(f) != 0 {
			t.Errorf("findings %v", f)
		}
		for _, e := range r.events {
			if strings.Contains(e.Message, "PRIVATE KEY") {
				t.Error("a key is in an Event")
			}
		}
	})
}

// A namespace that the account may not read, or that does not exist, stops only what depends on it.
func TestNamespaceThatCannotBeListed(t *testing.T) {
	const elsewhere = "openshift-cluster-api"
	deny := func(verb string, _ runtime.Object, key client.ObjectKey) error {
		if verb == "list" && key.Namespace == elsewhere {
			return forbidden("")
		}
		return nil
	}
	for name, exists := range map[string]bool{"forbidden": true, "deleted": false} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{machineSetOf("infra-user-data")}
			for _, name := range []string{"worker-user-data", "infra-user-data"} {
				objects = append(objects, userData(t, name, []byte(installed())))
			}
			if exists {
				objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: elsewhere}})
			}
			r := newRig(t, objects...)
			r.k.MachineNamespaces, r.refuse = []string{elsewhere, machines}, deny
			r.o.Config.Certificates.Rotate = config.RotateAlways
			r.start()
			if err := r.reconcile(); (err != nil) != exists {
				t.Error(err)
			}
			f := r.c.Findings()
			if exists && (len(f) != 1 || !strings.Contains(f[0].Text, elsewhere)) || !exists && len(f) > 0 {
				t.Errorf("findings %v", f)
			}
			for _, name := range []string{"worker-user-data", "infra-user-data"} {
				if err := verify(r.c.Status().Leaf, r.pointerRoots(name), time.Now()); err != nil {
					t.Errorf("a machine with %s: %v", name, err)
				}
			}
		})
	}
	t.Run("no decision without a CA", func(t *testing.T) {
		r := newRig(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: elsewhere}})
		r.k.MachineNamespaces, r.refuse = []string{elsewhere, machines}, deny
		r.start()
		if err := r.reconcile(); err == nil || r.c.Status().Case != "" {
			t.Errorf("case %q, error %v", r.c.Status().Case, err)
		}
	})
}

// The installer's CA is read only where the certificates are ours to renew.
func TestTheInstallersCAIsReadOnlyWhereItIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, machineSetOf("worker-user-data"), userData(t, "worker-user-data", []byte(installed())))
		r.refuse = func(_ string, _ runtime.Object, key client.ObjectKey) error {
			if key == legacyCA {
				return forbidden(key.Name)
			}
			return nil
		}
		if s := r.sync(); s.Case != mcscert.CaseOperatorToCome || len(r.c.Findings()) > 0 {
			t.Errorf("%s, findings %v", s.Case, r.c.Findings())
		}
		time.Sleep(mcscert.OperatorDelay + time.Second)
		if err := r.reconcile(); err == nil || len(r.c.Findings()) != 1 || r.secrets() > 1 {
			t.Errorf("ours, without the installer's CA: %v, findings %v, %d Secrets", err, r.c.Findings(), r.secrets())
		}
	})
}

func (r *rig) secrets() int {
	var all corev1.SecretList
	if err := r.client.List(r.t.Context(), &all); err != nil {
		r.t.Fatal(err)
	}
	return len(all.Items)
}

// A replica that leads again has waited for nothing meanwhile, and has no findings before.
func TestFindingsEndWithTheManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, machineSetOf("worker-user-data"), userData(t, "worker-user-data", []byte(installed())))
		lead := func() {
			m, err := manager.New(&rest.Config{}, manager.Options{
				Metrics:    metricsserver.Options{BindAddress: "0"},
				Controller: ctrlconfig.Controller{SkipNameValidation: ptr.To(true)},
				MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
					return meta.NewDefaultRESTMapper(nil), nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := r.c.SetupWithManager(m); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- m.Start(ctx) }()
			time.Sleep(defaultEvery / 2)
			synctest.Wait()
			if got := r.c.Status().Case; got != mcscert.CaseOperatorToCome && r.refuse == nil {
				t.Errorf("it is %q, want %s", got, mcscert.CaseOperatorToCome)
			}
			if r.refuse != nil && len(r.c.Findings()) == 0 {
				t.Error("no finding")
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if len(r.c.Findings()) > 0 || r.c.Status().Case != "" {
				t.Errorf("afterward: findings %v, %s", r.c.Findings(), r.c.Status().Case)
			}
		}
		lead()
		time.Sleep(2 * mcscert.OperatorDelay)
		lead()
		r.refuse = func(_ string, _ runtime.Object, key client.ObjectKey) error { return forbidden(key.Name) }
		lead()
	})
}

// A replica that no longer holds the lease does not report expiry any more.
func TestExpiryEndsWithTheManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, userData(t, "worker-user-data", []byte(installed())))
		m, err := manager.New(&rest.Config{}, manager.Options{
			Metrics: metricsserver.Options{BindAddress: "0"},
			MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
				return meta.NewDefaultRESTMapper(nil), nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.c.SetupWithManager(m); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- m.Start(ctx) }()
		time.Sleep(defaultEvery * 3)
		synctest.Wait()
		if r.expiry[SetCA].IsZero() || r.expiry[SetServing].IsZero() {
			t.Errorf("expiry %v", r.expiry)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if !r.expiry[SetCA].IsZero() || !r.expiry[SetServing].IsZero() {
			t.Errorf("afterward: expiry %v", r.expiry)
		}
	})
}

func TestRotateStepByStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, userData(t, "worker-user-data", []byte(installed())))
		if _, _, err := r.c.Rotate(t.Context(), mcscert.Force{}); err == nil || !strings.Contains(err.Error(), "certs init") {
			t.Errorf("without a CA: %v", err)
		}
		first, err := r.c.Init(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		roots := r.pointerRoots("worker-user-data")
		r.start()
		step, s, err := r.c.Rotate(t.Context(), mcscert.Force{})
		if err != nil || step != mcscert.StepCA || s.CA.Equal(first.CA) || !s.Leaf.Equal(first.Leaf) || len(s.Bundle) != 2 {
			t.Fatalf("first step: %s, %v", step, err)
		}
		both := r.pointerRoots("worker-user-data")
		r.start()
		var early *mcscert.TooEarly
		if _, s, err = r.c.Rotate(t.Context(), mcscert.Force{}); !errors.As(err, &early) || !s.Leaf.Equal(first.Leaf) {
			t.Fatalf("immediate second step: %v", err)
		}
		time.Sleep(mcscert.Publish)
		if step, s, err = r.c.Rotate(t.Context(), mcscert.Force{}); err != nil || step != mcscert.StepServing ||
			s.Leaf.Equal(first.Leaf) {
			t.Fatalf("second step: %s, %v", step, err)
		}
		if err := verify(first.Leaf, roots, time.Now()); err != nil {
			t.Error(err)
		}
		if err := errors.Join(verify(first.Leaf, both, time.Now()), verify(s.Leaf, both, time.Now())); err != nil {
			t.Errorf("the pointer config of between the steps: %v", err)
		}
		r.start()
		if step, _, err := r.c.Rotate(t.Context(), mcscert.Force{Serving: true}); err != nil || step != mcscert.StepCA {
			t.Errorf("the next rotation: %s, %v", step, err)
		}
		if step, _, err := r.c.Rotate(t.Context(), mcscert.Force{Serving: true}); err != nil || step != mcscert.StepServing {
			t.Errorf("and immediately: %s, %v", step, err)
		}
	})
}

// The runbook of a stolen CA key (docs/certificates.md), while that CA has not signed yet.
func TestRotate_StolenKeyOfTheCAThatSignsNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := installerCA(t, "root-ca", time.Now().Add(-year))
		r := newRig(t, old.serving(t, corev1.SecretTypeTLS, host, "192.0.2.5"), rootCA(old),
			userData(t, "worker-user-data", old.pem))
		stolen, err := r.c.Init(t.Context(), false)
		if err != nil || stolen.Leaf.CheckSignatureFrom(stolen.CA) == nil {
			t.Fatalf("the installer's CA does not serve: %v", err)
		}
		step, s, err := r.c.Rotate(t.Context(), mcscert.Force{CA: true})
		if err != nil || step != mcscert.StepCA || s.CA.Equal(stolen.CA) || !s.Leaf.Equal(stolen.Leaf) {
			t.Fatalf("step 1: %s, %v", step, err)
		}
		if step, s, err = r.c.Rotate(t.Context(), mcscert.Force{Serving: true}); err != nil ||
			step != mcscert.StepServing || s.Leaf.CheckSignatureFrom(stolen.CA) == nil {
			t.Fatalf("step 2: %s, %v", step, err)
		}
		trusts := func() bool {
			_, err := stolen.CA.Verify(x509.VerifyOptions{Roots: r.pointerRoots("worker-user-data"), CurrentTime: time.Now()})
			return err == nil
		}
		if !trusts() {
			t.Error("the pointer config does not trust the CA before step 3")
		}
		bundle := &corev1.ConfigMap{}
		if err := r.client.Get(t.Context(), r.c.ca, bundle); err != nil {
			t.Fatal(err)
		}
		bundle.Data["ca-bundle.crt"] = string(mcscert.Encode(s.CA)) // step 3
		r.update(bundle)
		if s = r.sync(); len(s.Bundle) != 1 || !s.Bundle[0].Equal(s.CA) {
			t.Errorf("%d in the bundle", len(s.Bundle))
		}
		if err := verify(s.Leaf, r.pointerRoots("worker-user-data"), time.Now()); err != nil {
			t.Error(err)
		}
		if trusts() {
			t.Error("the pointer config trusts the stolen key")
		}
	})
}

// The CA follows certificates.signerKey at the next pass, the serving certificate by a rotation.
func TestSignerKeyIsConfigurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, userData(t, "worker-user-data", []byte(installed())))
		first, err := r.c.Init(t.Context(), false)
		if err != nil || mcscert.KeyTypeOf(first.CA.PublicKey) != mcscert.RSA2048 {
			t.Fatalf("%v, %v", mcscert.KeyTypeOf(first.CA.PublicKey), err)
		}
		roots := r.pointerRoots("worker-user-data")
		r.o.Config.Certificates.SignerKey = mcscert.ECDSAP384
		r.start()
		s := r.sync()
		if mcscert.KeyTypeOf(s.CA.PublicKey) != mcscert.ECDSAP384 || len(s.Bundle) != 2 || !s.Leaf.Equal(first.Leaf) {
			t.Fatalf("CA with %s, %d in the bundle", mcscert.KeyTypeOf(s.CA.PublicKey), len(s.Bundle))
		}
		if again := r.sync(); !again.CA.Equal(s.CA) {
			t.Error("the next pass replaced the CA again")
		}
		both := r.pointerRoots("worker-user-data")
		time.Sleep(mcscert.Publish)
		step, s, err := r.c.Rotate(t.Context(), mcscert.Force{})
		if err != nil || step != mcscert.StepServing || s.Leaf.CheckSignatureFrom(s.CA) != nil {
			t.Fatalf("%s, %v", step, err)
		}
		if err := errors.Join(verify(first.Leaf, roots, time.Now()), verify(first.Leaf, both, time.Now()),
			verify(s.Leaf, both, time.Now())); err != nil {
			t.Error(err)
		}
	})
}

func TestInitOfAnInstallersCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := installerCA(t, "root-ca", time.Now().Add(-year))
		opaque := old.serving(t, corev1.SecretTypeOpaque, host, "192.0.2.5")
		r := newRig(t, opaque, rootCA(old), userData(t, "worker-user-data", old.pem), machineSetOf("worker-user-data"))
		if _, err := r.c.Init(t.Context(), false); !errors.Is(err, mcscert.ErrNotOurs) {
			t.Errorf("with MachineSets: %v", err)
		}
		if err := r.reconcile(); err != nil {
			t.Error(err)
		}
		s, err := r.c.Init(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		if !mcscert.Contains(s.Bundle, old.cert) || verify(s.Leaf, r.pointerRoots("worker-user-data"), time.Now()) != nil ||
			s.Leaf.CheckSignatureFrom(old.cert) != nil {
			t.Error("what was served is not served any more")
		}
		got := r.secret(mco, "machine-config-server-tls")
		if got.Type != corev1.SecretTypeTLS || string(got.Data["tls.key"]) != string(opaque.Data["tls.key"]) {
			t.Errorf("type %s", got.Type)
		}
		r.start()
		if s := r.sync(); s.Case != mcscert.CaseOurs {
			t.Errorf("afterwards: %s", s.Case)
		}
	})
}

// A Secret of another type is not written over by a replica.
func TestOpaqueSecretIsAFinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := installerCA(t, "root-ca", time.Now())
		r := newRig(t, old.serving(t, corev1.SecretTypeOpaque, host), rootCA(old))
		if err := r.reconcile(); err == nil || !strings.Contains(err.Error(), "certs init") {
			t.Error(err)
		}
		if f := r.c.Findings(); len(f) != 1 || f[0].Reason != "CertificateRotation" ||
			!strings.Contains(f[0].Text, "certs init") {
			t.Errorf("findings %q", f)
		}
		if got := r.secret(mco, "machine-config-server-tls"); got.Type != corev1.SecretTypeOpaque {
			t.Errorf("type %s", got.Type)
		}
	})
}
