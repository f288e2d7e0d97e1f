// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver/approvertest"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// joining is a cluster whose machines receive credentials of their own and whose
// kubelets' requests the verifier decides, as its service account with the roles of
// deploy/components.
type joining struct {
	*replicas
	shared string // the token that the Machine Config Server gives to all
}

const mcoNamespace = "openshift-machine-config-operator"

func newJoining(t *testing.T) *joining {
	t.Helper()
	c := cluster.Start(t, cluster.Controllers("certificatesigningrequest-signing-controller",
		"garbage-collector-controller"))
	return newReplicas(t, c, 0).joining()
}

// joining gives the cluster what kubelets need, and the verifier the roles for it.
func (rs *replicas) joining() *joining {
	t, c := rs.t, rs.cluster
	t.Helper()
	j := &joining{replicas: rs}
	ca, err := os.ReadFile(c.Admin().CAFile)
	if err != nil {
		t.Fatal(err)
	}
	c.KubectlApply(t, object("v1", "ServiceAccount", mcoNamespace, "node-bootstrapper", nil)+
		object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "", "node-bootstrapper", map[string]any{
			"roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
				"name": "system:node-bootstrapper"},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": "node-bootstrapper", "namespace": mcoNamespace}},
		})+
		object("v1", "Namespace", "", "openshift-config-managed", nil)+
		object("v1", "Namespace", "", "openshift-cluster-machine-approver", nil)+
		object("v1", "ConfigMap", "openshift-config-managed", "csr-controller-ca",
			map[string]any{"data": map[string]any{"ca-bundle.crt": string(ca)}}))
	j.install("credential", "approver")
	j.shared = strings.TrimSpace(c.Kubectl(t, "-n", mcoNamespace, "create", "token", "node-bootstrapper",
		"--duration=24h"))
	config := j.config(j.shared)
	j.served.Store(&config)
	return j
}

// install applies the overlay of OpenShift with components.
func (rs *replicas) install(components ...string) {
	rs.t.Helper()
	rs.overlay(components, "")
}

// overlay is install with more fields of the Kustomization.
func (rs *replicas) overlay(components []string, more string) {
	rs.t.Helper()
	repo, err := filepath.Abs(rs.source)
	if err != nil {
		rs.t.Fatal(err)
	}
	dir := rs.t.TempDir()
	back, err := filepath.Rel(dir, repo)
	if err != nil {
		rs.t.Fatal(err)
	}
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [" + back +
		"/deploy/overlays/openshift]\ncomponents:\n"
	for _, name := range components {
		text += "- " + back + "/deploy/components/" + name + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text+more), 0o600); err != nil {
		rs.t.Fatal(err)
	}
	rs.cluster.Kubectl(rs.t, "apply", "--server-side", "-k", dir)
}

// config is the Machine Config Server's, with a kubeconfig.
func (j *joining) config(token string) string {
	j.t.Helper()
	k := clientcmdapi.NewConfig()
	k.Clusters["local"] = &clientcmdapi.Cluster{Server: "https://api-int.example.com:6443"}
	k.AuthInfos["kubelet"] = &clientcmdapi.AuthInfo{Token: token}
	k.Contexts["kubelet"] = &clientcmdapi.Context{Cluster: "local", AuthInfo: "kubelet"}
	k.CurrentContext = "kubelet"
	text, err := clientcmd.Write(*k)
	if err != nil {
		j.t.Fatal(err)
	}
	return `{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/motd","contents":{"source":"data:,full-config-secret"}},` +
		`{"overwrite":true,"path":"/etc/kubernetes/kubeconfig","contents":{"source":"data:text/plain;charset=utf-8;base64,` +
		base64.StdEncoding.EncodeToString(text) + `"},"mode":420}]}}`
}

// tokenIn is the token of the kubeconfig in a config.
func (j *joining) tokenIn(config string) string {
	j.t.Helper()
	var c struct {
		Storage struct {
			Files []struct {
				Path     string
				Contents struct{ Source string }
			}
		}
	}
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		j.t.Fatalf("%v in %q", err, config)
	}
	for _, f := range c.Storage.Files {
		if f.Path != "/etc/kubernetes/kubeconfig" {
			continue
		}
		_, encoded, _ := strings.Cut(f.Contents.Source, "base64,")
		raw, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			j.t.Fatal(err)
		}
		k, err := clientcmd.Load(raw)
		if err != nil {
			j.t.Fatal(err)
		}
		return k.AuthInfos["kubelet"].Token
	}
	j.t.Fatalf("no kubeconfig in %s", config)
	return ""
}

// fetched is the credential of a machine that attested, whose name a Node will have.
func (j *joining) fetched(t *testing.T, p *inProcess, name string) (uid, credential string) {
	t.Helper()
	uid, _, credential = j.attestedAndFetched(t, p, name)
	return uid, credential
}

// attestedAndFetched is the same, and also the token that opened the config.
func (j *joining) attestedAndFetched(t *testing.T, p *inProcess, name string) (uid, token, credential string) {
	t.Helper()
	keys := soft(t)
	uid = string(j.machine(name, keys.spki).GetUID())
	j.patch(machinesResource, name, fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalDNS","address":%q},{"type":"InternalIP","address":"10.0.0.7"}]}}`, name), "status")
	token = p.attests(p.node(keys))
	return uid, token, j.tokenIn(p.config(token))
}

// config is what the gate serves for a token. As Ignition does, it asks again while the answer is 503:
// for example while no controller leads, or the controller has not published the credential.
func (p *inProcess) config(token string) string {
	p.rs.t.Helper()
	status, body := p.finally(token)
	if status != http.StatusOK {
		p.rs.t.Fatalf("the gate answers %d %s", status, body)
	}
	return body
}

// as acts with a bearer token, as a kubelet does.
func (j *joining) as(token string) kubernetes.Interface {
	j.t.Helper()
	admin := j.cluster.Admin()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: admin.Host, BearerToken: token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: admin.CAFile}})
	if err != nil {
		j.t.Fatal(err)
	}
	return client
}

// request asks for a client certificate for a Node of this name.
func (j *joining) request(client kubernetes.Interface, node string, key *ecdsa.PrivateKey) (string, error) {
	j.t.Helper()
	ask := approvertest.Client(j.t, node, key)
	ask.GenerateName = "csr-"
	csr, err := client.CertificatesV1().CertificateSigningRequests().Create(context.Background(), ask,
		metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return csr.Name, nil
}

func (j *joining) csr(name string) *certificatesv1.CertificateSigningRequest {
	j.t.Helper()
	admin, err := kubernetes.NewForConfig(j.cluster.Admin())
	if err != nil {
		j.t.Fatal(err)
	}
	csr, err := admin.CertificatesV1().CertificateSigningRequests().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		j.t.Fatal(err)
	}
	return csr
}

func decided(csr *certificatesv1.CertificateSigningRequest) string {
	for _, c := range csr.Status.Conditions {
		return string(c.Type)
	}
	return ""
}

// From the quote to the certificate: the credential of the served config, and no
// other, leads to the client certificate of the machine that attested, and to no
// other's; D14, T54.
func TestAttack_T54_OnlyTheMachineThatAttestedBecomesItsNode(t *testing.T) {
	t.Parallel()
	j := newJoining(t)
	p := j.serve(0, "credential: {}\napprover: {}\n")
	uid, own := j.fetched(t, p, "worker-0")
	victim, stolen := j.fetched(t, p, "worker-1")
	if own == j.shared || stolen == own {
		t.Fatal("a config has the credential of others")
	}
	rec := j.record(uid)
	if n := len(rec.Status.Credentials); n != 1 || !strings.HasPrefix(rec.Status.Credentials[0].ID, "JTI=") {
		t.Fatalf("on the record: %+v", rec.Status.Credentials)
	}

	refused := func(what, name, code string) {
		t.Helper()
		eventually(t, func() bool { return strings.Contains(p.log.everything(), `"reason":"`+code+`"`) }, func() string { return what + ": no " + code + " in the audit log" })
		if got := decided(j.csr(name)); got == "Approved" {
			t.Errorf("%s: %s", what, got)
		}
	}
	if name, err := j.request(j.as(j.shared), "worker-0", approvertest.NewKey(t)); err != nil {
		t.Fatal(err)
	} else {
		refused("the shared credential", name, "CSRCredential")
	}
	if name, err := j.request(j.as(own), "worker-1", approvertest.NewKey(t)); err != nil {
		t.Fatal(err)
	} else {
		refused("another machine's name", name, "CSROtherMachine")
	}

	key := approvertest.NewKey(t)
	name, err := j.request(j.as(own), "worker-0", key)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return len(j.csr(name).Status.Certificate) > 0 },
		func() string { return fmt.Sprintf("no certificate: %+v", j.csr(name).Status) })
	rec = j.record(uid)
	if c := rec.Status.Certificate; rec.Status.Phase != v1alpha1.PhaseJoined || c == nil || c.Node != "worker-0" ||
		c.CredentialID != rec.Status.Credentials[0].ID {
		t.Errorf("record %+v", rec.Status)
	}
	j.hasEvents(uid, "Attested", "Fetched", "Joined")
	if name, err := j.request(j.as(own), "worker-0", approvertest.NewKey(t)); err != nil {
		t.Fatal(err)
	} else {
		refused("a second key", name, "CSRKeyChanged")
	}

	// The Node shows that the certificate was used.
	admin, err := kubernetes.NewForConfig(j.cluster.Admin())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-0"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return j.record(uid).Status.Certificate.Used },
		func() string { return fmt.Sprintf("the record has %+v", j.record(uid).Status.Certificate) })

	// A quarantine: the credential is worth nothing within seconds.
	j.patch(recordsResource, victim, `{"spec":{"quarantined":true}}`)
	eventually(t, func() bool {
		_, err := j.request(j.as(stolen), "worker-1", approvertest.NewKey(t))
		return kerrors.IsUnauthorized(err)
	}, func() string { return "the credential of a quarantined machine still opens the API" })

	// The Machine goes, and with it what its credential was bound to.
	secrets := func() (names []string) {
		list, err := j.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(
			mcoNamespace).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list.Items {
			names = append(names, s.GetName())
		}
		return names
	}
	if !slices.Contains(secrets(), "mcs-attest-bootstrap-"+uid) {
		t.Errorf("Secrets: %v", secrets())
	}
	if err := j.client.Resource(machinesResource).Namespace(machineNamespace).Delete(t.Context(), "worker-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return !slices.Contains(secrets(), "mcs-attest-bootstrap-"+uid) },
		func() string { return fmt.Sprint("Secrets: ", secrets()) })

	for what, secret := range map[string]string{"own": own, "stolen": stolen, "shared": j.shared} {
		for where, text := range map[string]string{"the log": p.log.everything(), "the records": fmt.Sprint(j.records()),
			"the Events": fmt.Sprint(j.events(uid))} {
			if strings.Contains(text, secret) {
				t.Errorf("T46: %s holds the %s credential", where, what)
			}
		}
	}
	if time.Until(rec.Status.Credentials[0].Expiry.Time) > 5*time.Hour {
		t.Errorf("the credential ends at %v", rec.Status.Credentials[0].Expiry)
	}
}

// The verifier may not read one of its namespaces, as where its RoleBinding was forgotten.
// Machines of other namespaces attest, fetch their configs, and become nodes.
func TestOneForbiddenNamespaceAffectsNoOther(t *testing.T) {
	t.Parallel()
	j := newJoining(t)
	const elsewhere = "machines-elsewhere"
	j.cluster.KubectlApply(t, object("v1", "Namespace", "", elsewhere, nil))
	j.namespaces = []string{elsewhere}
	p := j.serve(0, "credential: {}\napprover: {}\n")
	_, credential := j.fetched(t, p, "worker-0")
	name, err := j.request(j.as(credential), "worker-0", approvertest.NewKey(t))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return decided(j.csr(name)) == "Approved" },
		func() string { return fmt.Sprintf("not approved: %+v", j.csr(name).Status) })
	eventually(t, func() bool { return j.degraded("Forbidden") },
		func() string { return "the forbidden namespace is not reported" })

	// A machine of that namespace waits until the verifier may read it.
	keys := soft(t)
	m := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
		"metadata": map[string]any{
			"namespace": elsewhere, "name": "worker-1",
			"annotations": map[string]any{v1alpha1.AnnotationEKSHA256: fmt.Sprintf("%x", keys.spki)},
			"labels":      map[string]any{"machine.openshift.io/cluster-api-machine-role": "worker"},
		},
		"spec": map[string]any{},
	}}
	if _, err := j.client.Resource(machinesResource).Namespace(elsewhere).Create(t.Context(), m,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if token, _, err := p.node(keys).attest(t.Context()); err == nil || token != "" {
		t.Error("a machine of a namespace that cannot be read attested")
	}
	for _, account := range []string{"mcs-attest-verifier", "mcs-attest-controller"} {
		j.cluster.KubectlApply(t, object("rbac.authorization.k8s.io/v1", "RoleBinding", elsewhere, account+"-machines",
			map[string]any{
				"roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
					"name": account + "-machines"},
				"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": account, "namespace": ownNamespace}},
			}))
	}
	if j.tokenIn(p.config(p.attests(p.node(keys)))) == credential {
		t.Error("two machines received the same credential")
	}
}
