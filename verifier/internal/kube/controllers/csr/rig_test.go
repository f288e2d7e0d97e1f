// SPDX-License-Identifier: Apache-2.0

package csr_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
	"github.com/mcs-attest/mcs-attest/verifier/internal/config"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/approval"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/controllers/csr"
	kubeevents "github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

var (
	machines     = schema.GroupVersionResource{Group: "machine.openshift.io", Version: "v1beta1", Resource: "machines"}
	capiMachines = schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machines"}
	attestations = v1alpha1.GroupVersion.WithResource("machineattestations")
)

// limit is how long a test waits for what must come.
const limit = 2 * time.Minute

// site is a cluster's part that belongs to one test: namespaces with Machines and
// with a service account that kubelets bootstrap with, and an approver of its own.
type site struct {
	testing.TB
	c         *cluster.Cluster
	admin     kubernetes.Interface
	dyn       dynamic.Interface
	reader    client.Reader
	namespace string
	known     *machine.Registry
	records   *records.Records
	api       *rest.Config // of the controllers
	options   csr.Options
	approver  *csr.Controllers
	metrics   *prometheus.Registry
	events    *events
	lines     *lines
	requests  int
	// credentials has the Machine's UID by the id of what was noted on its record.
	credentials *sync.Map

	stop func()
}

var prepared sync.Once

func newSite(t testing.TB) *site {
	t.Helper()
	c := cluster.StartShared(t, cluster.Controllers("certificatesigningrequest-signing-controller",
		"serviceaccount-token-controller"))
	prepared.Do(func() { c.InstallOpenShift(t); c.InstallClusterAPI(t); c.InstallOwn(t) })
	return siteIn(t, c)
}

func siteIn(t testing.TB, c *cluster.Cluster) *site {
	t.Helper()
	s := &site{
		TB: t, c: c, namespace: "t-" + strings.ToLower(rand.Text()[:10]), known: machine.NewRegistry(nil),
		events: new(events), lines: new(lines), credentials: new(sync.Map), metrics: prometheus.NewRegistry(),
		stop: func() {},
	}
	var err error
	s.admin, err = kubernetes.NewForConfig(c.Admin())
	s.ok(err)
	s.dyn, err = dynamic.NewForConfig(c.Admin())
	s.ok(err)
	scheme, err := kube.Scheme()
	s.ok(err)
	s.reader, err = client.New(c.Admin(), client.Options{Scheme: scheme})
	s.ok(err)
	ctx := s.context()
	_, err = s.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}},
		metav1.CreateOptions{})
	s.ok(err)
	_, err = s.admin.CoreV1().ServiceAccounts(s.namespace).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "node-bootstrapper"}}, metav1.CreateOptions{})
	s.ok(err)
	_, err = s.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.namespace},
		RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole",
			Name: "system:node-bootstrapper"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: s.namespace, Name: "node-bootstrapper"}},
	}, metav1.CreateOptions{})
	s.ok(err)
	s.configMap("kubelet-ca", "ca-bundle.crt", string(s.ca()))
	log := slog.New(slog.NewJSONHandler(s.lines, nil))
	live, err := records.NewClient(c.Admin())
	s.ok(err)
	s.records = records.New(records.Options{
		Client: live, Namespace: s.namespace, Machine: s.known.ByUID, Log: slog.New(slog.DiscardHandler), Timeout: limit,
		Events: s.events,
	})
	s.api = c.Admin()
	s.options = csr.Options{
		Namespaces: []string{s.namespace}, Machines: s, Records: s.records,
		Config: config.Approver{
			Attestation: config.AttestationRequired, ConfigMap: s.namespace + "/switch",
			StockConfigMap: s.namespace + "/stock-switch",
			KubeletCA:      s.namespace + "/kubelet-ca", MaxMachineAge: config.Duration(2 * time.Hour), PendingPerMachine: 10,
		},
		Credential: &config.Credential{Kind: config.ServiceAccountToken, ServiceAccount: s.namespace + "/node-bootstrapper"},
		Log:        log, Audit: audit.New(log), Timeout: limit, Scan: 100 * time.Millisecond, MinPause: 50 * time.Millisecond,
		Dial: new(net.Dialer).DialContext, // kubelets are on the loopback
	}
	t.Cleanup(func() {
		s.stop()
		ctx := context.Background()
		all, err := s.admin.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
		s.ok(err)
		for _, csr := range all.Items {
			if strings.HasPrefix(csr.Name, s.namespace) {
				s.ok(s.admin.CertificatesV1().CertificateSigningRequests().Delete(ctx, csr.Name, metav1.DeleteOptions{}))
			}
		}
		nodes, err := s.admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		s.ok(err)
		for _, n := range nodes.Items {
			if strings.HasPrefix(n.Name, s.namespace) {
				s.ok(s.admin.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{}))
			}
		}
		s.ok(s.admin.RbacV1().ClusterRoleBindings().Delete(ctx, s.namespace, metav1.DeleteOptions{}))
		s.ok(s.admin.CoreV1().Namespaces().Delete(ctx, s.namespace, metav1.DeleteOptions{}))
	})
	return s
}

// run starts the controllers; those that ran before have ended by then.
func (s *site) run() *site {
	s.Helper()
	s.stop()
	var err error
	s.approver, err = csr.New(s.options)
	s.ok(err)
	s.metrics = prometheus.NewRegistry()
	s.ok(s.approver.Register(s.metrics))
	api := rest.CopyConfig(s.api)
	api.QPS = -1
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	quiet := slog.New(slog.DiscardHandler)
	wg.Go(func() {
		kube.RunManager(ctx, quiet, func() (manager.Manager, error) {
			m, err := kube.NewManager(api, kube.Options{Log: quiet, Cache: csr.Cache(), WatchFailed: s.approver.WatchFailed})
			if err != nil {
				return nil, err
			}
			return m, s.approver.SetupWithManager(m)
		})
	})
	s.stop = func() { cancel(); wg.Wait() }
	return s
}

func (s *site) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *site) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit)
	s.Cleanup(cancel)
	return ctx
}

// eventually waits until f returns nil.
func (s *site) eventually(f func() error) {
	s.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("after %v: %v\nthe log:\n%s", limit, err, s.lines)
		}
	}
}

// ca is the cluster's, which signs certificates for kubelets.
func (s *site) ca() []byte {
	raw, err := os.ReadFile(s.c.Admin().CAFile)
	s.ok(err)
	return raw
}

func (s *site) configMap(name, key, value string) {
	s.Helper()
	maps := s.admin.CoreV1().ConfigMaps(s.namespace)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{key: value}}
	_, err := maps.Create(s.context(), cm, metav1.CreateOptions{})
	if kerrors.IsAlreadyExists(err) {
		_, err = maps.Update(s.context(), cm, metav1.UpdateOptions{})
	}
	s.ok(err)
}

// ByInternalDNS, ByNode, ByCredential and Counts are the directory: always current.
func (s *site) ByInternalDNS(name string) []machine.Ref { return s.list().ByInternalDNS(name) }
func (s *site) ByNode(node string) []machine.Ref        { return s.list().ByNode(node) }
func (s *site) Counts() (machines, nodes int)           { return s.known.Len(), 0 }
func (s *site) ByCredential(id string) (uid string, ok bool) {
	found, ok := s.credentials.Load(id)
	uid, _ = found.(string)
	return uid, ok
}
func (s *site) list() *approval.Snapshot {
	all, err := s.snapshot(s.namespace)
	if err != nil {
		panic(err)
	}
	return all
}

func (s *site) snapshot(namespaces ...string) (*approval.Snapshot, error) {
	return approval.TakeSnapshot(context.Background(), s.reader,
		approval.Rules(s.options.Config, s.options.Credential, s.options.Namespace),
		namespaces)
}

// node is the name that a machine of this test has as a node.
func (s *site) node(name string) string { return s.namespace + "-" + name }

// machine makes a Machine of the Machine API, with what its provider says of it.
func (s *site) machine(name string, addresses ...any) *machine.Machine {
	s.Helper()
	return s.machineOf(machines, map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
		"metadata": map[string]any{"name": name,
			"labels": map[string]any{"machine.openshift.io/cluster-api-machine-role": "worker"}},
		"spec": map[string]any{},
	}, append([]any{address("InternalDNS", s.node(name)), address("Hostname", s.node(name))}, addresses...))
}

// capiMachine makes a Machine of Cluster API.
func (s *site) capiMachine(name string) *machine.Machine {
	s.Helper()
	return s.machineOf(capiMachines, map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"clusterName": "c", "bootstrap": map[string]any{"dataSecretName": "worker-user-data"},
			"infrastructureRef": map[string]any{"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "MetalMachine",
				"name": name},
		},
	}, []any{address("InternalDNS", s.node(name))})
}

func address(kind, value string) any { return map[string]any{"type": kind, "address": value} }

func (s *site) machineOf(resource schema.GroupVersionResource, object map[string]any,
	addresses []any) *machine.Machine {
	s.Helper()
	client := s.dyn.Resource(resource).Namespace(s.namespace)
	o, err := client.Create(s.context(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
	s.ok(err)
	s.ok(unstructured.SetNestedSlice(o.Object, addresses, "status", "addresses"))
	o, err = client.UpdateStatus(s.context(), o, metav1.UpdateOptions{})
	s.ok(err)
	return s.watched(o)
}

// watched is what a watch does with an object.
func (s *site) watched(o *unstructured.Unstructured) *machine.Machine {
	s.Helper()
	in, problems := machine.FromObject(o.Object)
	if len(problems) > 0 {
		s.Fatal(problems)
	}
	for _, m := range in.Machines {
		s.known.PutMachine(m)
	}
	for _, e := range in.Enrollments {
		s.known.PutEnrollment(e)
	}
	m, ok := s.known.ByUID(string(o.GetUID()))
	if !ok {
		s.Fatalf("%s is not known", o.GetName())
	}
	return m
}

// joins gives the Machine its nodeRef, as the machine controller does.
func (s *site) joins(m *machine.Machine) {
	s.Helper()
	resource := machines
	if m.APIVersion == capiMachines.GroupVersion().String() {
		resource = capiMachines
	}
	client := s.dyn.Resource(resource).Namespace(s.namespace)
	o, err := client.Get(s.context(), m.Name, metav1.GetOptions{})
	s.ok(err)
	s.ok(unstructured.SetNestedField(o.Object, s.node(m.Name), "status", "nodeRef", "name"))
	if resource == machines {
		s.ok(unstructured.SetNestedField(o.Object, "Node", "status", "nodeRef", "kind"))
	}
	_, err = client.UpdateStatus(s.context(), o, metav1.UpdateOptions{})
	s.ok(err)
}

// record is as it is in the API.
func (s *site) record(m *machine.Machine) v1alpha1.MachineAttestationStatus {
	s.Helper()
	rec, err := s.records.Record(s.Context(), m.UID)
	s.ok(err)
	if rec == nil {
		s.Fatalf("%s has no record", m)
	}
	return rec.Status
}

// attested is what the gate does when a machine that attested fetches its config:
// it makes a credential for it, notes it on the record, and gives it away.
func (s *site) attested(m *machine.Machine) *kubelet {
	s.Helper()
	k, id := s.bootstrap()
	s.credential(m, id)
	k.node = s.node(m.Name)
	return k
}

// credential notes a credential on the record of a machine.
func (s *site) credential(m *machine.Machine, id string) {
	s.Helper()
	s.credentials.Store(id, m.UID)
	s.ok(s.records.Update(s.Context(), m.UID,
		func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) {
			if rec == nil {
				rec = new(v1alpha1.MachineAttestation)
			}
			next := rec.DeepCopy()
			next.Status.Phase = v1alpha1.PhaseFetched
			next.Status.Credentials = append(next.Status.Credentials, v1alpha1.CredentialStatus{
				ID: id, Issued: metav1.Now(), Expiry: metav1.NewTime(time.Now().Add(time.Hour)),
			})
			return next, nil
		}))
}

// bootstrap is a kubelet with a token of the service account that is on no record.
func (s *site) bootstrap() (k *kubelet, id string) {
	s.Helper()
	secret, err := s.admin.CoreV1().Secrets(s.namespace).Create(s.context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "bootstrap-"}}, metav1.CreateOptions{})
	s.ok(err)
	hour := int64(3600)
	answer, err := s.admin.CoreV1().ServiceAccounts(s.namespace).CreateToken(s.context(), "node-bootstrapper",
		&authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hour,
				BoundObjectRef: &authenticationv1.BoundObjectReference{
					APIVersion: "v1", Kind: "Secret", Name: secret.Name, UID: secret.UID,
				}},
		}, metav1.CreateOptions{})
	s.ok(err)
	var claims struct{ JTI string }
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(answer.Status.Token, ".")[1])
	s.ok(err)
	s.ok(json.Unmarshal(payload, &claims))
	return s.bearer(answer.Status.Token), "JTI=" + claims.JTI
}

func (s *site) kubelet(api *rest.Config) *kubelet {
	s.Helper()
	client, err := kubernetes.NewForConfig(api)
	s.ok(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.ok(err)
	return &kubelet{site: s, api: client, key: key}
}

// kubelet is one that asks for certificates.
type kubelet struct {
	*site
	api  kubernetes.Interface
	key  *ecdsa.PrivateKey
	node string
}

type certificateRequest = x509.CertificateRequest

// ask makes a request for a client certificate, as a kubelet does but for changes.
func (k *kubelet) ask(change ...func(*certificatesv1.CertificateSigningRequest, *certificateRequest)) string {
	k.Helper()
	return k.request(certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageClientAuth,
		&x509.CertificateRequest{}, change)
}

// askServing makes a request for a serving certificate.
func (k *kubelet) askServing(names []string, addresses []net.IP,
	change ...func(*certificatesv1.CertificateSigningRequest, *certificateRequest)) string {
	k.Helper()
	return k.request(certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth,
		&x509.CertificateRequest{DNSNames: names, IPAddresses: addresses}, change)
}

func (k *kubelet) request(signer string, usage certificatesv1.KeyUsage, template *x509.CertificateRequest,
	change []func(*certificatesv1.CertificateSigningRequest, *certificateRequest)) string {
	k.Helper()
	template.Subject = pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + k.node}
	k.requests++
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", k.namespace, k.requests)},
		Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage}},
	}
	for _, f := range change {
		f(csr, template)
	}
	if csr.Spec.Request == nil {
		der, err := x509.CreateCertificateRequest(rand.Reader, template, k.key)
		k.ok(err)
		csr.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	_, err := k.api.CertificatesV1().CertificateSigningRequests().Create(k.context(), csr, metav1.CreateOptions{})
	k.ok(err)
	return csr.Name
}

func (s *site) csr(name string) *certificatesv1.CertificateSigningRequest {
	s.Helper()
	csr, err := s.admin.CertificatesV1().CertificateSigningRequests().Get(s.context(), name, metav1.GetOptions{})
	s.ok(err)
	return csr
}

func conditions(csr *certificatesv1.CertificateSigningRequest) string {
	var all []string
	for _, c := range csr.Status.Conditions {
		all = append(all, string(c.Type)+" "+c.Reason)
	}
	return strings.Join(all, ", ")
}

// signed waits for the certificate.
func (s *site) signed(name string) *x509.Certificate {
	s.Helper()
	var cert *x509.Certificate
	s.eventually(func() error {
		csr := s.csr(name)
		block, _ := pem.Decode(csr.Status.Certificate)
		if block == nil {
			return fmt.Errorf("%s is not signed: %q", name, conditions(csr))
		}
		var err error
		cert, err = x509.ParseCertificate(block.Bytes)
		return err
	})
	if got := conditions(s.csr(name)); got != "Approved mcs-attest" {
		s.Fatalf("%s: the conditions are %q", name, got)
	}
	return cert
}

// left waits until the request was decided so, and makes sure that it has no condition.
func (s *site) left(name, outcome, code string) {
	s.Helper()
	s.waitAudited(name, outcome, code)
	if got := conditions(s.csr(name)); got != "" {
		s.Fatalf("%s: the conditions are %q", name, got)
	}
}

// denied waits until the request is denied for this reason.
func (s *site) denied(name, code string) {
	s.Helper()
	s.waitAudited(name, "deny", code)
	if got := conditions(s.csr(name)); got != "Denied mcs-attest" {
		s.Fatalf("%s: the conditions are %q", name, got)
	}
}

// waitAudited waits for the line of the audit log.
func (s *site) waitAudited(name, outcome, code string) {
	s.Helper()
	s.eventually(func() error {
		last := ""
		for _, l := range s.lines.all() {
			if l["request"] == name {
				if l["outcome"] == outcome && (code == "" || l["reason"] == code) {
					return nil
				}
				last += fmt.Sprintf(" %v/%v (%v)", l["outcome"], l["reason"], l["detail"])
			}
		}
		return fmt.Errorf("%s: decided was%s, not %s/%s", name, last, outcome, code)
	})
}

// join goes all the way to a certificate, and makes the Node.
func (k *kubelet) join() *kubelet {
	k.Helper()
	return k.withCertificate(k.signed(k.ask()))
}

// withCertificate is the kubelet as the node that it has become.
func (k *kubelet) withCertificate(cert *x509.Certificate) *kubelet {
	k.Helper()
	der, err := x509.MarshalECPrivateKey(k.key)
	k.ok(err)
	api := rest.AnonymousClientConfig(k.c.Admin())
	api.QPS = -1
	api.CertData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
	api.KeyData = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	now := k.kubelet(api)
	now.node = k.node
	_, err = now.api.CoreV1().Nodes().Create(k.context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.node}},
		metav1.CreateOptions{})
	k.ok(err)
	return now
}

// lines are the log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *lines) all() (all []map[string]any) {
	for _, line := range strings.Split(l.String(), "\n") {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) == nil {
			all = append(all, m)
		}
	}
	return all
}

// events are those that were emitted.
type events struct {
	mu  sync.Mutex
	all []kubeevents.Event
}

func (e *events) Emit(event kubeevents.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

// about are the reasons of the events about a Machine.
func (e *events) about(m *machine.Machine) (reasons []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.all {
		if event.About.UID == m.UID {
			reasons = append(reasons, strings.TrimSuffix(event.Reason+" "+event.Code, " "))
		}
	}
	return reasons
}

// count is a metric's value.
func (s *site) count(name string, labels ...string) float64 {
	s.Helper()
	families, err := s.metrics.Gather()
	s.ok(err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	metric:
		for _, m := range f.GetMetric() {
			for i := 0; i < len(labels); i += 2 {
				found := false
				for _, l := range m.GetLabel() {
					found = found || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
				}
				if !found {
					continue metric
				}
			}
			if m.GetCounter() != nil {
				return m.GetCounter().GetValue()
			}
			return m.GetGauge().GetValue()
		}
	}
	return 0
}

// selfSigned makes a certificate as a kubelet's, signed with its own key.
func selfSigned(t testing.TB, key *ecdsa.PrivateKey, node string) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + node},
		DNSNames:     []string{node, "api.example.com"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err == nil {
		template, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return template
}
