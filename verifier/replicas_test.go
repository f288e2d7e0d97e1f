// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

const (
	machineNamespace = "openshift-machine-api"
	ownNamespace     = "mcs-attest"
)

var (
	machinesResource = schema.GroupVersionResource{Group: "machine.openshift.io", Version: "v1beta1", Resource: "machines"}
	recordsResource  = v1alpha1.GroupVersion.WithResource("machineattestations")
	claimsResource   = v1alpha1.GroupVersion.WithResource("identityclaims")
	verifierResource = v1alpha1.GroupVersion.WithResource("attestationverifiers")
)

// replicas are verifiers as a cluster has them: processes without a disk, behind a
// load balancer, on a real API server with OpenShift's Machines. Behind each of
// them is a stand-in for the Machine Config Server.
type replicas struct {
	served  atomic.Pointer[string] // what the Machine Config Server has; nil: fullConfig
	t       testing.TB
	cluster *cluster.Cluster
	client  dynamic.Interface
	roots   *x509.CertPool
	ca      []byte // PEM
	mcs     string // address
	balance *cluster.HAProxy
	all     []*replica

	kubeconfig, controllerKubeconfig string

	stands time.Time // if set, the constant time of the replicas that serve starts

	source string // of the manifests: the root of a source tree

	namespaces []string // of Machines, besides the Machine API's
}

// replica is a front and a controller, each a process.
type replica struct {
	t       testing.TB
	program string
	dir     string
	addr    string
	health  string
	metrics string

	// controller is the folder of the controller's configuration.
	controller string

	mu      sync.Mutex
	cmd     *exec.Cmd // the front
	control *exec.Cmd // the controller
	log     *lockedBuffer
}

// newReplicas makes a cluster as an installation leaves it, with an enforcing
// policy, and starts n verifiers. They act as the service account of deploy/.
func newReplicas(t testing.TB, c *cluster.Cluster, n int, config ...string) *replicas {
	t.Helper()
	rs := installed(t, c, "..")
	if n == 0 {
		return rs
	}
	program, err := binaries.Verifier()
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		rs.replica(program, config...).start()
	}
	for _, r := range rs.all {
		r.waitReady()
	}
	rs.balanced()
	return rs
}

// installed makes a cluster as the installation of a source tree leaves it.
func installed(t testing.TB, c *cluster.Cluster, source string) *replicas {
	t.Helper()
	rs := &replicas{t: t, cluster: c, roots: x509.NewCertPool(), source: source}
	var err error
	if rs.client, err = dynamic.NewForConfig(c.Admin()); err != nil {
		t.Fatal(err)
	}
	c.InstallOpenShift(t)
	rs.definitions()
	ca, err := pki.NewCA("root-ca", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	serving, err := ca.Serve([]string{"mcs.test"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	rs.ca = ca.Certificate
	rs.roots.AppendCertsFromPEM(ca.Certificate)
	c.KubectlApply(t, object("v1", "Namespace", "", ownNamespace, nil)+
		object("v1", "Secret", "openshift-machine-config-operator", "machine-config-server-tls", map[string]any{
			"type":       "kubernetes.io/tls",
			"stringData": map[string]any{"tls.crt": string(serving.Certificate), "tls.key": string(serving.Key.Expose())},
		})+
		object("v1", "ConfigMap", "openshift-machine-config-operator", "machine-config-server-ca",
			map[string]any{"data": map[string]any{"ca-bundle.crt": string(ca.Certificate)}})+
		object(v1alpha1.APIVersion, v1alpha1.KindAttestationPolicy, "", "audit-everything",
			map[string]any{"spec": map[string]any{"pools": []any{"*"}}}))
	rs.mcs = rs.machineConfigServer(serving)
	rs.accounts()
	return rs
}

// replica makes a replica, which does not run yet.
func (rs *replicas) replica(program string, config ...string) *replica {
	t := rs.t
	t.Helper()
	r := &replica{t: t, program: program, dir: t.TempDir(), controller: t.TempDir(), addr: freeAddress(t),
		health: freeAddress(t), metrics: freeAddress(t), log: &lockedBuffer{}}
	text := fmt.Sprintf("origins: [%q]\nlisten: %s\nhealthListen: %s\nmetricsListen: %s\nrequestsPerSecond: 10000\n"+
		"upstream: https://%s\nupstreamName: mcs.test\nkubernetes:\n  machineNamespaces: [openshift-machine-api]\n"+
		"  kubeconfig: %s\n",
		testOrigin, r.addr, r.health, r.metrics, rs.mcs, rs.kubeconfig) + strings.Join(config, "")
	r.configure(r.dir, text)
	r.configure(r.controller, strings.Replace(text, rs.kubeconfig, rs.controllerKubeconfig, 1))
	rs.all = append(rs.all, r)
	t.Cleanup(r.kill)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s ends with:\n%s", r.addr, tail(r.log.everything(), 40))
		}
	})
	return r
}

// balanced puts a load balancer before the replicas, which are ready.
func (rs *replicas) balanced() {
	rs.t.Helper()
	var backends []string
	for _, r := range rs.all {
		backends = append(backends, r.addr)
	}
	rs.balance = rs.cluster.NewHAProxy(rs.t, cluster.HAProxyOptions{Backends: backends, Health: "/healthz"})
	rs.balance.WaitUp(rs.t, len(backends))
}

// definitions installs the CRDs.
func (rs *replicas) definitions() {
	rs.t.Helper()
	files, err := filepath.Glob(filepath.Join(rs.source, "deploy", "base", "crds", "mcs-attest.dev_*.yaml"))
	if err != nil || len(files) == 0 {
		rs.t.Fatalf("no CRDs in %s: %v", rs.source, err)
	}
	args := []string{"apply", "--server-side", "-o", "name", "-f", strings.Join(files, ",")}
	names := strings.Fields(rs.cluster.Kubectl(rs.t, args...))
	rs.cluster.Kubectl(rs.t, append([]string{"wait", "--for=condition=Established", "--timeout=10m"}, names...)...)
}

// The accounts that deploy/overlays/openshift makes.
const (
	frontAccount      = "system:serviceaccount:" + ownNamespace + ":mcs-attest-verifier"
	controllerAccount = "system:serviceaccount:" + ownNamespace + ":mcs-attest-controller"
)

// accounts makes kubeconfigs of the service accounts that deploy/overlays/openshift makes,
// with only the roles that it gives.
func (rs *replicas) accounts() {
	rs.t.Helper()
	rs.cluster.Kubectl(rs.t, "apply", "--server-side", "-k", filepath.Join(rs.source, "deploy", "overlays", "openshift"))
	rs.kubeconfig, rs.controllerKubeconfig = rs.cluster.Kubeconfig(frontAccount), rs.cluster.Kubeconfig(controllerAccount)
}

func object(apiVersion, kind, namespace, name string, rest map[string]any) string {
	metadata := map[string]any{"name": name}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	o := map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata}
	for k, v := range rest {
		o[k] = v
	}
	raw, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return "---\n" + string(raw) + "\n"
}

// machineConfigServer stands in for the Machine Config Server: it gives each pool
// its config, to anyone.
func (rs *replicas) machineConfigServer(serving pki.Pair) string {
	t := rs.t
	t.Helper()
	cert, err := pki.ParseServing([][]byte{serving.Certificate, serving.Key.Expose()})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		config := fullConfig
		if p := rs.served.Load(); p != nil {
			config = *p
		}
		_, _ = io.WriteString(w, config)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func tail(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (r *replica) configure(dir, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "mcs-attest.yaml"), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *replica) start() {
	r.startFront()
	r.startController()
}

func (r *replica) startFront() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cmd = r.run("serve", "--config", filepath.Join(r.dir, "mcs-attest.yaml"))
}

func (r *replica) startController() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.control = r.run("controller", "--config", filepath.Join(r.controller, "mcs-attest.yaml"),
		"--health-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
}

func (r *replica) run(args ...string) *exec.Cmd {
	cmd := exec.Command(r.program, args...)
	cmd.Env = append(os.Environ(), "POD_NAME="+r.addr) // its identity in the Lease
	cmd.Stderr, cmd.Stdout = r.log, r.log
	if err := cmd.Start(); err != nil {
		r.t.Error(err)
	}
	return cmd
}

// stop ends a process of the replica as its pod's deletion does.
func (r *replica) stop(process **exec.Cmd) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cmd := *process; cmd != nil {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
	*process = nil
}

// kill is kill -9, of both.
func (r *replica) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, cmd := range []*exec.Cmd{r.cmd, r.control} {
		if cmd != nil && cmd.Process != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	r.cmd, r.control = nil, nil
}

// ready says why it could not serve, "" if it could.
func (r *replica) ready() string {
	res, err := (&http.Client{Timeout: time.Minute}).Get("http://" + r.health + "/readyz")
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode == http.StatusOK {
		return ""
	}
	return string(body)
}

func (r *replica) waitReady() {
	r.t.Helper()
	why := "it was not asked"
	within(r.t, 5*time.Minute, func() bool { why = r.ready(); return why == "" },
		func() string { return "not ready: " + why })
}

// eventually waits for something that takes a while on a slow machine.
func eventually(t testing.TB, is func() bool, otherwise func() string) {
	t.Helper()
	within(t, 2*time.Minute, is, otherwise)
}

func within(t testing.TB, limit time.Duration, is func() bool, otherwise func() string) {
	t.Helper()
	for deadline := time.Now().Add(limit); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(otherwise())
		}
	}
}

// machine makes a Machine as the machine-api-controller has it before its first
// boot, with this EK enrolled by annotation.
func (rs *replicas) machine(name string, ek [32]byte) *unstructured.Unstructured {
	rs.t.Helper()
	m := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
		"metadata": map[string]any{
			"namespace": machineNamespace, "name": name,
			"labels": map[string]any{"machine.openshift.io/cluster-api-machine-role": "worker",
				"machine.openshift.io/cluster-api-machine-type": "worker"},
			"annotations": map[string]any{v1alpha1.AnnotationEKSHA256: hex.EncodeToString(ek[:])},
		},
		"spec": map[string]any{"providerSpec": map[string]any{
			"value": map[string]any{"userDataSecret": map[string]any{"name": "worker-user-data"}}}},
	}}
	made, err := rs.client.Resource(machinesResource).Namespace(machineNamespace).Create(rs.t.Context(), m, metav1.CreateOptions{})
	if err != nil {
		rs.t.Fatal(err)
	}
	return made
}

// record is the record of a Machine; nil if there is none.
func (rs *replicas) record(uid string) *v1alpha1.MachineAttestation {
	rs.t.Helper()
	o, err := rs.client.Resource(recordsResource).Namespace(machineNamespace).Get(context.Background(), uid, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return rs.decode(o)
}

func (rs *replicas) decode(o *unstructured.Unstructured) *v1alpha1.MachineAttestation {
	rs.t.Helper()
	var rec v1alpha1.MachineAttestation
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &rec); err != nil {
		rs.t.Fatal(err)
	}
	return &rec
}

// records are all records, by the UID of their Machine.
func (rs *replicas) records() map[string]*v1alpha1.MachineAttestation {
	rs.t.Helper()
	list, err := rs.client.Resource(recordsResource).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		rs.t.Fatal(err)
	}
	all := map[string]*v1alpha1.MachineAttestation{}
	for i := range list.Items {
		rec := rs.decode(&list.Items[i])
		all[rec.Status.MachineUID] = rec
	}
	return all
}

// node is a machine with these keys that comes through the load balancer.
func (rs *replicas) node(keys nodeKeys) *loadNode {
	return &loadNode{addr: rs.balance.Addr, origin: testOrigin, roots: rs.roots, pool: "worker", keys: keys}
}

// fetch asks the gate through the load balancer, or at one replica's address.
func (rs *replicas) fetch(ctx context.Context, addr, path, bearer string) (int, string, error) {
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		},
		TLSClientConfig: &tls.Config{RootCAs: rs.roots, ServerName: "mcs.test"},
	}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, testOrigin+path, nil)
	if err != nil {
		return 0, "", err
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	res, err := (&http.Client{Transport: tr, Timeout: time.Minute}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}
