// SPDX-License-Identifier: Apache-2.0

package replicas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	authentication "k8s.io/api/authentication/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/testvm/rig"
)

// MCO is the machine-config-operator's namespace.
const MCO = "openshift-machine-config-operator"

// Controllers are those of kube-controller-manager that a Node needs to be created, and an
// installation needs to clean up.
func Controllers() cluster.Option {
	return cluster.Controllers("garbage-collector-controller", "certificatesigningrequest-signing-controller")
}

// bootstrap is OpenShift's content for new kubelets: the service account whose token all of them
// share, and its permissions.
const bootstrap = `apiVersion: v1
kind: ServiceAccount
metadata: {name: node-bootstrapper, namespace: openshift-machine-config-operator}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system-bootstrap-node-bootstrapper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:node-bootstrapper}
subjects:
- {kind: ServiceAccount, name: node-bootstrapper, namespace: openshift-machine-config-operator}
---
apiVersion: v1
kind: Namespace
metadata: {name: openshift-config-managed}
---
apiVersion: v1
kind: Namespace
metadata: {name: openshift-cluster-machine-approver}
---
apiVersion: v1
kind: Namespace
metadata: {name: openshift-cluster-api}
`

// nodes prepares the cluster for kubelets.
func (s *Set) nodes() {
	s.t.Helper()
	s.Cluster.KubectlApply(s.t, bootstrap)
	ca := string(s.authority())
	s.Apply("v1", "ConfigMap", "openshift-config-managed", "csr-controller-ca",
		map[string]any{"data": map[string]any{"ca-bundle.crt": ca}})
	s.Apply("v1", "ConfigMap", MCO, "kubeconfig-data",
		map[string]any{"data": map[string]any{"ca-bundle.crt": ca, "api-server-url": s.api()}})
}

// authority returns the CA of the API server, which also signs the certificates here.
func (s *Set) authority() []byte {
	s.t.Helper()
	b, err := os.ReadFile(s.Cluster.Admin().CAFile)
	if err != nil {
		s.t.Fatalf("the cluster's CA: %v", err)
	}
	return b
}

// api returns the address at which a guest reaches the API server.
func (s *Set) api() string {
	s.t.Helper()
	u, err := url.Parse(s.Cluster.Admin().Host)
	if err != nil {
		s.t.Fatalf("the API server's address: %v", err)
	}
	return "https://" + rig.Host + ":" + u.Port()
}

// SharedToken returns a token of the node-bootstrapper that belongs to no machine, like the one in
// every config of a Machine Config Server.
func (s *Set) SharedToken() string {
	s.t.Helper()
	return strings.TrimSpace(s.Cluster.Kubectl(s.t, "-n", MCO, "create", "token", "node-bootstrapper", "--duration=24h"))
}

// Kubeconfig returns the content of /etc/kubernetes/kubeconfig, as the Machine Config Server writes
// it.
func (s *Set) Kubeconfig(token string) string {
	s.t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["local"] = &clientcmdapi.Cluster{Server: s.api(), CertificateAuthorityData: s.authority()}
	c.AuthInfos["kubelet"] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts["kubelet"] = &clientcmdapi.Context{Cluster: "local", AuthInfo: "kubelet"}
	c.CurrentContext = "kubelet"
	b, err := clientcmd.Write(*c)
	if err != nil {
		s.t.Fatalf("kubeconfig: %v", err)
	}
	return string(b)
}

// NodeFiles returns the files of a config with which a kubelet starts, without the kubeconfig, and
// with more files.
func (s *Set) NodeFiles(more map[string]string) map[string]string {
	s.t.Helper()
	files := map[string]string{
		"/etc/provisioned":               "a node's config",
		"/etc/kubernetes/kubelet.conf":   rig.KubeletConfig(),
		"/etc/kubernetes/kubelet-ca.crt": string(s.authority()),
	}
	maps.Copy(files, more)
	return files
}

// NodeConfig returns a config like those of the Machine Config Server, with a shared token, and
// with more files.
func (s *Set) NodeConfig(token string, more map[string]string) string {
	s.t.Helper()
	files := s.NodeFiles(more)
	files["/etc/kubernetes/kubeconfig"] = s.Kubeconfig(token)
	return rig.ConfigWith(files)
}

// TokenOf returns the token of a kubeconfig.
func (s *Set) TokenOf(kubeconfig string) string {
	s.t.Helper()
	c, err := clientcmd.Load([]byte(kubeconfig))
	if err != nil || len(c.AuthInfos) != 1 {
		s.t.Fatalf("kubeconfig: %v\n%s", err, kubeconfig)
	}
	for _, user := range c.AuthInfos {
		return user.Token
	}
	return ""
}

// Kubelet returns the options for a machine with a kubelet, for a Node of that name.
func (s *Set) Kubelet(node string) *rig.Kubelet {
	s.t.Helper()
	programs, err := binaries.Kubernetes(s.t.Logf)
	if err != nil {
		s.t.Fatalf("kubelet: %v", err)
	}
	return &rig.Kubelet{Programs: programs, Node: node}
}

// image is the verifier's image, as an administrator names it for a version. A Node does not pull such an image if
// it has it.
const image = "registry.example.com/mcs-attest/mcs-attest-verifier:v0.3.0"

// PodKubelet is like [Set.Kubelet] for a Node that runs pods, of a cluster with [cluster.Kubelets]. It has the
// verifier's image, with the files that pods use. The DaemonSet and the Deployment name this image from now on.
func (s *Set) PodKubelet(r *rig.Rig, node string) *rig.Kubelet {
	s.t.Helper()
	k := s.Kubelet(node)
	var err error
	if k.Containers, err = binaries.Containers(s.t.Logf); err != nil {
		s.t.Fatalf("containerd: %v", err)
	}
	for workload, container := range map[string]string{
		"daemonset/mcs-attest-verifier": "verifier", "deployment/mcs-attest-controller": "controller",
	} {
		// An emulated machine may answer a probe only after many seconds.
		s.Cluster.Kubectl(s.t, "-n", Own, "patch", workload, "-p", fmt.Sprintf(`{"spec": {"template": {"spec": `+
			`{"containers": [{"name": %q, "image": %q, "imagePullPolicy": "IfNotPresent", `+
			`"startupProbe": {"timeoutSeconds": 60, "failureThreshold": 1000}, "readinessProbe": {"timeoutSeconds": 60}, `+
			`"livenessProbe": {"timeoutSeconds": 60, "failureThreshold": 1000}}]}}}}`, container, image))
	}
	k.Images = map[string]rig.Image{image: {
		Files: map[string]string{
			"usr/bin/mcs-attest-verifier":                                    r.VerifierBinary(),
			"usr/share/mcs-attest/agents/mcs-attest-agent-" + runtime.GOARCH: r.Agent(),
		},
		User: "65532:65532", Entrypoint: []string{"/usr/bin/mcs-attest-verifier"},
	}}
	k.API, k.PodAPI = strings.TrimPrefix(s.Cluster.Admin().Host, "https://"), cluster.PodAPI
	return k
}

// Usable reports whether the API server accepts a token. The server must answer.
func (s *Set) Usable(token string) bool {
	s.t.Helper()
	config := rest.AnonymousClientConfig(s.Cluster.Admin())
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		s.t.Fatalf("client: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authentication.SelfSubjectReview{},
		meta.CreateOptions{})
	if err != nil && !kerrors.IsUnauthorized(err) {
		s.t.Fatalf("asking the API server who one is: %v", err)
	}
	return err == nil
}

// Explain runs "kubectl attest csr explain", which must end with the given status.
func (s *Set) Explain(csr string, status int) string {
	s.t.Helper()
	out, err := s.Cluster.KubectlAs("admin", "", "attest", "csr", "explain", csr)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	}
	if got != status || (err != nil && exit == nil) {
		s.t.Fatalf("csr explain ended with %d instead of %d: %v\n%s", got, status, err, out)
	}
	return out
}

// Provisioned sets the Machine's status like the controllers of the cloud and the machine-api: the
// name and the address of its future Node.
func (s *Set) Provisioned(machine, node string) {
	s.t.Helper()
	s.status(machine, map[string]any{"phase": "Provisioned", "addresses": []any{
		map[string]any{"type": "InternalDNS", "address": node},
		map[string]any{"type": "Hostname", "address": node},
		map[string]any{"type": "InternalIP", "address": GuestAddress},
	}})
}

// GuestAddress is the address of every guest in its own network.
const GuestAddress = "10.0.2.15"

// Linked links a Machine to its existing Node, like the machine-api.
func (s *Set) Linked(machine, node string) {
	s.t.Helper()
	uid := s.Cluster.Kubectl(s.t, "get", "node", node, "-o", "jsonpath={.metadata.uid}")
	s.status(machine, map[string]any{"phase": "Running", "nodeRef": map[string]any{
		"kind": "Node", "name": node, "uid": uid,
	}})
}

func (s *Set) status(machine string, status map[string]any) {
	s.t.Helper()
	b, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		s.t.Fatalf("status: %v", err)
	}
	s.Cluster.Kubectl(s.t, "-n", Machines, "patch", "machines.machine.openshift.io", machine,
		"--subresource=status", "--type=merge", "-p", string(b))
}

// WaitNode waits until a Node is registered.
func (s *Set) WaitNode(name string) {
	s.t.Helper()
	for deadline := time.Now().Add(rig.BootTimeout); ; time.Sleep(poll) {
		if strings.TrimSpace(s.Cluster.Kubectl(s.t, "get", "node", name, "--ignore-not-found", "-o", "name")) != "" {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("no Node %s within %v; the requests are\n%s", name, rig.BootTimeout, s.Cluster.Kubectl(s.t, "get", "csr"))
		}
	}
}

// CSR is a certificate signing request, with the fields that the scenarios read.
type CSR struct {
	Metadata struct{ Name string }
	Spec     struct {
		SignerName, Username string
		Request              []byte
		Extra                map[string][]string
	}
	Status struct {
		Certificate []byte
		Conditions  []struct{ Type, Reason, Message string }
	}
}

// Is reports whether it has a condition.
func (c CSR) Is(condition string) bool {
	for _, one := range c.Status.Conditions {
		if one.Type == condition {
			return true
		}
	}
	return false
}

// Credential returns the id of the credential with which it was created.
func (c CSR) Credential() string {
	return strings.Join(c.Spec.Extra["authentication.kubernetes.io/credential-id"], " ")
}

// CSRs returns the requests for client certificates, or those for serving certificates.
func (s *Set) CSRs(signer string) []CSR {
	s.t.Helper()
	var list struct{ Items []CSR }
	out := s.Cluster.Kubectl(s.t, "get", "csr", "--field-selector", "spec.signerName="+signer, "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		s.t.Fatalf("requests: %v\n%s", err, out)
	}
	return list.Items
}

// The signers of a kubelet's certificates.
const (
	ClientSigner  = "kubernetes.io/kube-apiserver-client-kubelet"
	ServingSigner = "kubernetes.io/kubelet-serving"
)

// WaitCSR waits for a matching request.
func (s *Set) WaitCSR(signer, what string, fits func(CSR) bool) CSR {
	s.t.Helper()
	for deadline := time.Now().Add(rig.BootTimeout); ; time.Sleep(poll) {
		all := s.CSRs(signer)
		for _, one := range all {
			if fits(one) {
				return one
			}
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("no request %s within %v, among %s", what, rig.BootTimeout, fmt.Sprintf("%+v", all))
		}
	}
}

// installation returns what an administrator applies: the overlay, with components.
func (s *Set) installation(components []string) string {
	s.t.Helper()
	if len(components) == 0 {
		return filepath.Join(s.repo(), "deploy", "overlays", "openshift")
	}
	// In a copy, because kustomize reads no file outside of its working folder.
	dir, err := os.MkdirTemp("", "installation-")
	if err != nil {
		s.t.Fatalf("installation: %v", err)
	}
	s.t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			s.t.Logf("installation: %v", err)
		}
	})
	if err := os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(filepath.Join(s.repo(), "deploy"))); err != nil {
		s.t.Fatalf("installation: %v", err)
	}
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: " +
		"[../deploy/overlays/openshift]\ncomponents:\n"
	for _, name := range components {
		text += "- ../deploy/components/" + name + "\n"
	}
	own := filepath.Join(dir, "my-cluster")
	err = os.Mkdir(own, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(own, "kustomization.yaml"), []byte(text), 0o644)
	}
	if err != nil {
		s.t.Fatalf("installation: %v", err)
	}
	return own
}
