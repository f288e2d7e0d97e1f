// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/machinerecord"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/noderoles"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/pointerconfig"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/policystatus"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/provisioningtoken"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/signingkeys"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/verifierstatus"
	kubeevents "github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	verifier "github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
)

const (
	ownNamespace     = "mcs-attest"
	machineNamespace = "openshift-machine-api"
	operatorNS       = "openshift-machine-config-operator"
	origin           = "https://api-int.example.com:22623"
)

var (
	policies   = v1alpha1.GroupVersion.WithResource("attestationpolicies")
	verifiers  = v1alpha1.GroupVersion.WithResource("attestationverifiers")
	secrets    = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	events     = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	leases     = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	nodes      = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
)

// whole is a cluster of its own, as one test sees it.
type whole struct {
	*site
	ca string // of the last serving certificate, PEM
	// keyRotation is how often the processes rotate keys. Default 30 days.
	keyRotation time.Duration
	// lease is how long a lease lasts that is not renewed. A holder must renew it within two thirds, and each request
	// may take one third.
	lease time.Duration
}

// shortLease is for tests that wait until a lease expires.
const shortLease = 4 * time.Second

// newWhole starts a cluster with OpenShift's kinds and ours, and what the
// verifier finds in an OpenShift cluster.
func newWhole(t testing.TB, o ...cluster.Option) *whole {
	t.Helper()
	c := cluster.Start(t, o...)
	c.InstallOpenShift(t)
	c.InstallOwn(t)
	return prepare(t, c)
}

// theWhole is the cluster that the tests of this process share, swept clean.
func theWhole(t testing.TB) *whole {
	t.Helper()
	s := newSite(t) // which prepares it
	for _, kind := range []struct {
		resource   schema.GroupVersionResource
		namespaces []string
	}{
		{policies, []string{""}}, {verifiers, []string{""}}, {nodes, []string{""}}, {claims, []string{""}},
		{machines, []string{machineNamespace}}, {attestations, []string{machineNamespace, ownNamespace}},
		{configMaps, []string{ownNamespace, operatorNS}},
		{secrets, []string{ownNamespace, operatorNS, machineNamespace, "openshift-config"}},
		{leases, []string{ownNamespace}},
	} {
		for _, ns := range kind.namespaces {
			if err := s.in(kind.resource, ns).DeleteCollection(context.Background(), metav1.DeleteOptions{},
				metav1.ListOptions{}); err != nil && !kerrors.IsNotFound(err) {
				t.Fatal(err)
			}
		}
	}
	return prepare(t, s.cluster)
}

func prepare(t testing.TB, c *cluster.Cluster) *whole {
	t.Helper()
	admin, err := dynamic.NewForConfig(c.Admin())
	if err != nil {
		t.Fatal(err)
	}
	w := &whole{site: &site{TB: t, cluster: c, admin: admin, namespace: machineNamespace, own: ownNamespace,
		now: time.Now}, lease: 15 * time.Second}
	for _, name := range []string{ownNamespace, machineNamespace, operatorNS, "openshift-config"} {
		_, _ = w.in(namespaces, "").Create(context.Background(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name},
		}}, metav1.CreateOptions{})
	}
	w.secret(operatorNS, "machine-config-server-tls", w.certificate(time.Now()))
	w.configMap(operatorNS, "machine-config-server-ca", nil, map[string]string{"ca-bundle.crt": w.ca})
	for _, pool := range []string{"master", "worker"} {
		w.secret(machineNamespace, pool+"-user-data", map[string]string{"userData": pointerConfig(pool)})
		w.secret(machineNamespace, pool+"-user-data-managed", map[string]string{"userData": pointerConfig(pool)})
	}
	return w
}

// certificate is the data of a serving Secret, made at that time by a CA of its own.
func (w *whole) certificate(at time.Time) map[string]string {
	w.Helper()
	ca, err := pki.NewCA("test", at)
	if err != nil {
		w.Fatal(err)
	}
	w.ca = string(ca.Certificate)
	leaf, err := ca.Serve([]string{"api-int.example.com"}, at)
	if err != nil {
		w.Fatal(err)
	}
	return map[string]string{"tls.crt": string(leaf.Certificate), "tls.key": string(leaf.Key.Expose())}
}

func pointerConfig(pool string) string {
	return fmt.Sprintf(`{"ignition":{"version":"3.4.0","config":{"merge":[{"source":"%s/config/%s"}]}}}`, origin, pool)
}

func (w *whole) secret(namespace, name string, data map[string]string) {
	w.Helper()
	w.put(secrets, namespace, map[string]any{"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{"name": name}, "data": encode(data)})
}

func encode(data map[string]string) map[string]any {
	encoded := map[string]any{}
	for k, v := range data {
		encoded[k] = base64.StdEncoding.EncodeToString([]byte(v))
	}
	return encoded
}

func (w *whole) configMap(namespace, name string, labels map[string]any, data map[string]string) {
	w.Helper()
	all := map[string]any{}
	for k, v := range data {
		all[k] = v
	}
	w.put(configMaps, namespace, map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": name, "labels": labels}, "data": all})
}

// put creates an object, or replaces it.
func (w *whole) put(resource schema.GroupVersionResource, namespace string, object map[string]any) {
	w.Helper()
	o := &unstructured.Unstructured{Object: object}
	if _, err := w.in(resource, namespace).Create(context.Background(), o, metav1.CreateOptions{}); err == nil {
		return
	}
	old := w.get(resource, namespace, o.GetName())
	o.SetResourceVersion(old.GetResourceVersion())
	if _, err := w.in(resource, namespace).Update(context.Background(), o, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *whole) policy(name string, spec map[string]any) {
	w.Helper()
	w.put(policies, "", map[string]any{"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindAttestationPolicy,
		"metadata": map[string]any{"name": name}, "spec": spec})
}

// worker makes a Machine.
func (w *whole) worker(name string, change ...func(o map[string]any)) *unstructured.Unstructured {
	w.Helper()
	o := map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
		"metadata": map[string]any{"name": name,
			"labels": map[string]any{"machine.openshift.io/cluster-api-machine-role": "worker"}},
		"spec": map[string]any{},
	}
	for _, f := range change {
		f(o)
	}
	return w.create(machines, machineNamespace, o)
}

// process is one replica's view of the cluster, running.
type process struct {
	*verifier.Inventory
	log  *buffer
	stop func()

	signing  *signingkeys.Reconciler
	token    *provisioningtoken.Reconciler
	pointers *pointerconfig.Reconciler
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start starts a replica whose intervals are short.
func (w *whole) start(identity string, change ...func(*config.Kubernetes, *verifier.Options)) *process {
	w.Helper()
	return w.startAs(w.cluster.Admin(), identity, change...)
}

func (w *whole) startAs(r *rest.Config, identity string,
	change ...func(*config.Kubernetes, *verifier.Options)) *process {
	w.Helper()
	return w.startWith(r, identity, nil, change...)
}

// startWith also changes the options of the records' controller.
func (w *whole) startWith(r *rest.Config, identity string,
	records func(*machinerecord.Options), change ...func(*config.Kubernetes, *verifier.Options)) *process {
	w.Helper()
	k := config.Kubernetes{
		Namespace: ownNamespace, MachineNamespaces: []string{machineNamespace, "openshift-cluster-api"},
		ServingSecret: operatorNS + "/machine-config-server-tls", CAConfigMap: operatorNS + "/machine-config-server-ca",
		UserDataSecrets: []string{machineNamespace + "/master-user-data", machineNamespace + "/worker-user-data"},
	}
	p := &process{log: &buffer{}}
	o := verifier.Options{
		Log: slog.New(slog.NewTextHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Version: "test",
		Identity: identity,
		ProvisioningToken: config.ProvisioningToken{Secret: "openshift-config/machineconfig-auth",
			Grace: config.Duration(time.Hour)},
		Discovery: time.Second, Probe: 2 * time.Second, Pass: time.Second,
	}
	for _, f := range change {
		f(&k, &o)
	}
	client, err := kubernetes.NewForConfig(w.cluster.Admin())
	if err != nil {
		w.Fatal(err)
	}
	events := kubeevents.NewRecorder(kubeevents.Options{Client: client.CoreV1(), Host: identity, Log: o.Log})
	o.Events = events
	o.RenewKeys = func(ctx context.Context) error { return p.signing.Renew(ctx) }
	c, err := verifier.New(r, k, o)
	if err != nil {
		w.Fatal(err)
	}
	p.Inventory = c
	recordControllers := p.recordControllers(o, records)
	secrets, err := kube.NewSecretClient(r)
	if err != nil {
		w.Fatal(err)
	}
	live, err := kube.NewClient(r)
	if err != nil {
		w.Fatal(err)
	}
	p.newSecretControllers(live, secrets, k.Namespace, o, w.keyRotation)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { events.Run(ctx) })
	wg.Go(func() { _ = c.Run(ctx) })
	wg.Go(func() {
		kube.RunManager(ctx, o.Log, func() (manager.Manager, error) {
			m, err := kube.NewManager(r, kube.Options{
				Log: o.Log, Lease: &kube.Lease{Namespace: k.Namespace, Identity: identity, Duration: w.lease},
			})
			if err == nil {
				err = errors.Join(m.Add(manager.RunnableFunc(c.Lead)), p.addControllers(m, o), recordControllers(m),
					p.addSecretControllers(m))
			}
			if err == nil {
				err = c.SetupWithManager(m)
			}
			return m, err
		})
	})
	p.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	w.Cleanup(func() {
		p.stop()
		if w.Failed() {
			w.Logf("log of %s:\n%s", identity, p.log)
		}
	})
	return p
}

// addControllers adds those that write conditions.
func (p *process) addControllers(m manager.Manager, o verifier.Options) error {
	roles := noderoles.New(noderoles.Options{
		Log: o.Log, Now: time.Now, Limit: p.Limit(), Events: o.Events, Inventory: p.Inventory, Records: p.Records(),
		Trigger: &p.Triggers.NodeRoles, Report: func(int) {},
	})
	return errors.Join(
		policystatus.New(policystatus.Options{
			Now: time.Now, Limit: p.Limit(), Events: o.Events, Inventory: p.Inventory, Trigger: &p.Triggers.PolicyStatus,
			Held: p.Guard().HoldsPolicies,
		}).SetupWithManager(m),
		roles.SetupWithManager(m),
		verifierstatus.New(verifierstatus.Options{
			Now: time.Now, Limit: p.Limit(), Holder: o.Identity, Version: o.Version, Resync: o.Pass,
			Unavailable: p.Unavailable, Progressing: p.Progressing, Acknowledge: p.Guard().Acknowledge,
			Findings:          []verifierstatus.Findings{p.Findings, roles.Findings, p.pointers.Findings},
			ControlPlaneNodes: roles.ControlPlaneNodes,
		}).SetupWithManager(m),
	)
}

// until waits for a condition. check returns why it is not true yet.
func until(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (p *process) synced() error {
	if ok, missing := p.Synced(); !ok {
		return fmt.Errorf("not synced: %s", strings.Join(missing, "\n"))
	}
	return nil
}

func errorIf(err bool, format string, a ...any) error {
	if err {
		return fmt.Errorf(format, a...)
	}
	return nil
}

// condition is a condition of an object as it is now.
func (w *whole) condition(resource schema.GroupVersionResource, namespace, name, kind string) metav1.Condition {
	o, err := w.in(resource, namespace).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return metav1.Condition{}
	}
	var s struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	raw, err := json.Marshal(o.Object)
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err != nil {
		w.Fatal(err)
	}
	for _, c := range s.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{}
}

func TestViewFromTheAPI(t *testing.T) {
	w := theWhole(t)
	w.policy("all", map[string]any{})
	w.worker("one", func(o map[string]any) {
		o["metadata"].(map[string]any)["annotations"] = map[string]any{v1alpha1.AnnotationEKSHA256: ek(1)}
	})
	var served atomic.Int32
	p := w.start("a", func(_ *config.Kubernetes, o *verifier.Options) {
		o.Certificate = func(*tls.Certificate) { served.Add(1) }
	})
	if ok, missing := p.Synced(); ok || len(missing) == 0 || p.View().Complete {
		t.Errorf("before anything was read: synced %v, missing %v", ok, missing)
	}
	until(t, "sync", p.synced)
	until(t, "keys", func() error { _, ok := p.Keys().Tokens.Current(time.Now()); return errorIf(!ok, "no key signs") })
	until(t, "the view", func() error {
		current := p.View()
		return errorIf(!current.Complete || len(current.Policies.Pools()) != 1, "complete %v, pools %v", current.Complete,
			current.Policies.Pools())
	})
	if p.Registry().Len() != 1 || len(p.Keys().Seals.Keys) != 1 {
		t.Errorf("%d Machines, %d sealing keys", p.Registry().Len(), len(p.Keys().Seals.Keys))
	}
	if p.ServingCertificate() == nil || served.Load() != 1 || p.UpstreamCAs() == nil {
		t.Error("no certificate, or no CA")
	}
	until(t, "available", func() error {
		c := w.condition(verifiers, "", "cluster", v1alpha1.ConditionAvailable)
		return errorIf(c.Status != metav1.ConditionTrue, "%+v", c)
	})

	t.Run("Machines of every namespace", func(t *testing.T) {
		q := w.start("b", func(k *config.Kubernetes, _ *verifier.Options) { k.MachineNamespaces = []string{"*"} })
		until(t, "sync", q.synced)
		if !q.Registry().Enrolled(hash(t, 1)) {
			t.Error("its Machine is not known")
		}
	})
	t.Run("a certificate that is rotated", func(t *testing.T) {
		before := p.UpstreamCAs()
		w.secret(operatorNS, "machine-config-server-tls", w.certificate(time.Now()))
		w.configMap(operatorNS, "machine-config-server-ca", nil, map[string]string{"ca-bundle.crt": w.ca})
		until(t, "it is served, and its CA trusted", func() error {
			return errorIf(served.Load() != 2 || p.UpstreamCAs().Equal(before), "served %d", served.Load())
		})
	})
	t.Run("C11: the CA of older clusters", func(t *testing.T) {
		before := p.UpstreamCAs()
		w.delete(configMaps, operatorNS, "machine-config-server-ca")
		q := w.start("c") // it has never read one
		until(t, "sync", q.synced)
		if q.UpstreamCAs() != nil {
			t.Error("it has a CA")
		}
		w.configMap("kube-system", "root-ca", nil, map[string]string{"ca.crt": w.ca})
		until(t, "root-ca", func() error { return errorIf(q.UpstreamCAs() == nil, "none") })
		if !p.UpstreamCAs().Equal(before) {
			t.Error("the deletion changed the CAs of a process that had read them")
		}
	})
}
