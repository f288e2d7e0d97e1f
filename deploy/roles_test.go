// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

const (
	masterRole  = "node-role.kubernetes.io/master"
	controlRole = "node-role.kubernetes.io/control-plane"
)

// asNode acts as a node with its own client certificate.
func asNode(t *testing.T, c *cluster.Cluster, name string) kubernetes.Interface {
	t.Helper()
	api := rest.CopyConfig(c.Admin())
	api.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + name,
		Groups: []string{"system:nodes", "system:authenticated"}}
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func nodeWith(name string, roles ...string) *core.Node {
	labels := map[string]string{"kubernetes.io/hostname": name}
	for _, role := range roles {
		labels[role] = ""
	}
	return &core.Node{ObjectMeta: meta.ObjectMeta{Name: name, Labels: labels}}
}

// runVerifier runs both processes of the verifier with the installed configuration, as the
// accounts of the overlay. It returns a function that reads the controller's metrics.
func runVerifier(t *testing.T, c *cluster.Cluster) (scrape func() string) {
	t.Helper()
	ca, pair := serving(t)
	for _, o := range []map[string]any{
		{
			"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"namespace": "openshift-machine-config-operator",
				"name": "machine-config-server-tls"},
			"stringData": map[string]any{"tls.crt": string(pair.Certificate), "tls.key": string(pair.Key.Expose())},
		},
		{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "openshift-machine-config-operator",
				"name": "machine-config-server-ca"},
			"data": map[string]any{"ca-bundle.crt": ca},
		},
	} {
		raw, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		c.KubectlApply(t, string(raw))
	}
	dir := t.TempDir()
	program, err := binaries.Verifier()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("overlays/openshift/mcs-attest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	configured := func(account string) string {
		path := filepath.Join(dir, account+".yaml")
		content := strings.Replace(string(text), "kubernetes:\n",
			"kubernetes:\n  kubeconfig: "+c.Kubeconfig(accountPrefix+account)+"\n", 1)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	metrics := free(t)
	var log buffer
	start(t, &log, program, "serve", "--config", configured(ServiceAccount), "--listen", free(t),
		"--health-listen", free(t), "--metrics-listen", free(t))
	start(t, &log, program, "controller", "--config", configured(Controller), "--health-listen", free(t),
		"--metrics-listen", metrics)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("verifier:\n%s", log.String())
		}
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(ca))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots,
		ServerName: "api-int.cluster.example.com"}, DisableKeepAlives: true}}
	token := c.ServiceAccount(t, "openshift-monitoring", "prometheus-k8s").BearerToken
	return func() string {
		r, err := http.NewRequest(http.MethodGet, "https://"+metrics+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(r)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return err.Error()
		}
		return string(body)
	}
}

// OpenShift's API server lets a kubelet choose the roles of its own Node. With a
// control-plane role, the owner of a worker would get the control plane's pods, including the
// verifier's, and their accounts.
func TestAttack_T66_ANodeDoesNotGiveItselfAControlPlaneRole(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	c.InstallOpenShift(t)
	Apply(t, c, "openshift")
	ctx := t.Context()
	admin, err := kubernetes.NewForConfig(c.Admin())
	if err != nil {
		t.Fatal(err)
	}
	const machines = "openshift-machine-api"
	c.KubectlApply(t, `
apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: master}
spec: {}
`)
	denied := func(err error) bool {
		return kerrors.IsInvalid(err) || kerrors.IsForbidden(err) && strings.Contains(err.Error(), "mcs-attest-node-role")
	}
	// refused tries until the API server applies the policy, and fails if the node is admitted.
	refused := func(name string, roles ...string) {
		t.Helper()
		if err := create(ctx, asNode(t, c, name), nodeWith(name, roles...)); !denied(err) {
			t.Errorf("Node %s with %q: %v", name, roles, err)
		}
	}
	if !until(func() bool {
		_, err := asNode(t, c, "early").CoreV1().Nodes().Create(ctx, nodeWith("early", masterRole),
			meta.CreateOptions{DryRun: []string{meta.DryRunAll}})
		return denied(err)
	}) {
		t.Fatal("without the verifier's list a node gets the role of the control plane")
	}

	// Everything else works without the list.
	for _, user := range []kubernetes.Interface{asNode(t, c, "early"), admin} {
		if err := create(ctx, user, nodeWith("early", "node-role.kubernetes.io/worker")); err != nil {
			t.Errorf("a worker, without the verifier: %v", err)
			continue
		}
		for _, sub := range [][]string{nil, {"status"}} {
			if _, err := user.CoreV1().Nodes().Patch(ctx, "early", types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"a":"b"}}}`), meta.PatchOptions{}, sub...); err != nil {
				t.Errorf("a change of nodes/%s, without the verifier: %v", sub, err)
			}
		}
		if err := admin.CoreV1().Nodes().Delete(ctx, "early", meta.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}

	scrape := runVerifier(t, c)
	uid := map[string]string{}
	for name, pool := range map[string]string{"master-0": "master", "master-1": "master", "worker-0": "worker",
		"worker-1": "worker"} {
		c.KubectlApply(t, fmt.Sprintf(`
apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata: {namespace: %s, name: %s, labels: {machine.openshift.io/cluster-api-machine-role: %s}}
spec: {providerID: "test:///%s", providerSpec: {value: {userDataSecret: {name: %s-user-data}}}}
`, machines, name, pool, name, pool))
		c.Kubectl(t, "-n", machines, "patch", "machines.machine.openshift.io", name, "--subresource=status", "--type=merge",
			"-p", fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalDNS","address":"node-%s"}]}}`, name))
		uid[name] = c.Kubectl(t, "-n", machines, "get", "machines.machine.openshift.io", name,
			"-o", "jsonpath={.metadata.uid}")
	}
	// The records of the attestations of these machines. The Machine master-1 has a record of
	// another pool.
	for name, pool := range map[string]string{"master-0": "master", "master-1": "worker", "worker-0": "worker"} {
		if !until(func() bool {
			return c.Kubectl(t, "-n", machines, "get", "machineattestations", uid[name], "--ignore-not-found", "-o",
				"name") != ""
		}) {
			t.Fatalf("no record of %s", name)
		}
		c.Kubectl(t, "-n", machines, "patch", "machineattestations", uid[name], "--subresource=status", "--type=merge",
			"-p", fmt.Sprintf(`{"status":{"pool":%q,"phase":"Fetched","machineUID":%q}}`, pool, uid[name]))
	}

	// A genuine control-plane node is admitted.
	var last error
	if !until(func() bool {
		last = create(ctx, asNode(t, c, "node-master-0"), nodeWith("node-master-0", masterRole, controlRole))
		return last == nil
	}) {
		t.Fatalf("the node whose record has the pool master: %v", last)
	}
	own := asNode(t, c, "node-master-0")
	if _, err := own.CoreV1().Nodes().Patch(ctx, "node-master-0", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"a":"b"}}}`), meta.PatchOptions{}); err != nil {
		t.Errorf("it may no longer change its Node: %v", err)
	}

	// No other node is admitted, neither by creation nor by a change.
	refused("node-worker-0", masterRole)
	refused("node-worker-0", controlRole)
	refused("node-worker-0", controlRole, masterRole, "node-role.kubernetes.io/worker")
	refused("node-worker-1", masterRole) // its record names no pool
	if !until(func() bool {
		return !strings.Contains(c.Kubectl(t, "get", "attestationverifiers", "cluster",
			"-o", "jsonpath={.status.controlPlaneNodes}"), "node-master-1")
	}) {
		t.Error("a Machine whose record is of another pool is in the list")
	}
	refused("node-master-1", masterRole) // its record names another pool
	refused("node-unknown", masterRole)  // it has neither Machine nor record
	worker := asNode(t, c, "node-worker-0")
	if err := create(ctx, worker, nodeWith("node-worker-0", "node-role.kubernetes.io/worker")); err != nil {
		t.Fatalf("a worker as a worker: %v", err)
	}
	label := []byte(`{"metadata":{"labels":{"` + masterRole + `":""}}}`)
	for _, sub := range [][]string{nil, {"status"}} {
		if _, err := worker.CoreV1().Nodes().Patch(ctx, "node-worker-0", types.MergePatchType, label, meta.PatchOptions{},
			sub...); !denied(err) {
			t.Errorf("a change of its Node by nodes/%s: %v", sub, err)
		}
	}
	affinity := daemonSet(t,
		"openshift").Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	for _, term := range affinity.NodeSelectorTerms {
		key := term.MatchExpressions[0].Key
		if out := c.Kubectl(t, "get", "nodes", "-l", key, "-o", "name"); strings.TrimSpace(out) != "node/node-master-0" {
			t.Errorf("the verifier's pods would run on %q", out)
		}
	}

	// A role that was assigned in another way is reported until it is removed.
	c.Kubectl(t, "patch", "node", "node-worker-0", "--type=merge", "-p", `{"spec":{"providerID":"test:///worker-0"}}`)
	if _, err := admin.CoreV1().Nodes().Patch(ctx, "node-worker-0", types.MergePatchType, label,
		meta.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	condition := func() string {
		return c.Kubectl(t, "-n", machines, "get", "machineattestations", uid["worker-0"], "-o",
			`jsonpath={.status.conditions[?(@.type=="RoleMismatch")].status}`)
	}
	if !until(func() bool { return condition() == "True" }) {
		t.Errorf("RoleMismatch is %q", condition())
	}
	for about, namespace := range map[string]string{"Node": "default", "Machine": machines} {
		if !until(func() bool {
			return strings.Contains(c.Kubectl(t, "-n", namespace, "get", "events", "--field-selector",
				"reason=RoleMismatch,involvedObject.kind="+about, "-o", "jsonpath={.items[*].message}"), "node-worker-0")
		}) {
			t.Errorf("no Event on the %s", about)
		}
	}
	verifier := func(path string) string {
		return c.Kubectl(t, "get", "attestationverifiers", "cluster", "-o", "jsonpath={.status."+path+"}")
	}
	if !until(func() bool {
		return strings.Contains(verifier(`conditions[?(@.type=="Degraded")].message`),
			"Nodes have a control-plane role that their pool does not have: node-worker-0")
	}) {
		t.Errorf("Degraded: %s", verifier(`conditions[?(@.type=="Degraded")].message`))
	}
	if !until(func() bool { return strings.Contains(scrape(), "\nmcs_attest_node_role_mismatches 1\n") }) {
		t.Errorf("no metric: %.300s", scrape())
	}
	if got := verifier("controlPlaneNodes"); strings.Contains(got, "worker") || !strings.Contains(got, "node-master-0") {
		t.Errorf("controlPlaneNodes: %s", got)
	}
	c.Kubectl(t, "label", "node", "node-worker-0", masterRole+"-")
	if !until(func() bool { return condition() == "False" }) {
		t.Errorf("RoleMismatch is %q after the role was removed", condition())
	}
}

func create(ctx context.Context, client kubernetes.Interface, node *core.Node) error {
	_, err := client.CoreV1().Nodes().Create(ctx, node, meta.CreateOptions{})
	return err
}

// An account that may write a pointer config decides which CAs new machines trust. An
// installation that does not need it does not have the permission, and reports that.
func TestAttack_T66_PointerConfigsAreWrittenOnlyWithTheComponent(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	c.InstallOpenShift(t)
	Apply(t, c, "openshift")
	const machines = "openshift-machine-api"
	pointer := `{"ignition":{"version":"3.2.0","config":{"merge":[{"source":"https://api-int.cluster.example.com:22623/config/worker"}]}}}`
	for _, o := range []string{
		`{"apiVersion":"v1","kind":"Secret","metadata":{"namespace":"openshift-machine-api","name":"worker-user-data"},"stringData":{"userData":` + fmt.Sprintf("%q", pointer) + `}}`,
		`{"apiVersion":"v1","kind":"Secret","metadata":{"namespace":"openshift-config","name":"machineconfig-auth"},"stringData":{"token":"` + strings.Repeat("secret-token-", 4) + `"}}`,
		`{"apiVersion":"mcs-attest.dev/v1alpha1","kind":"AttestationPolicy","metadata":{"name":"shared"},"spec":{"pools":["worker"],"mode":"Audit","evidence":[{"all":["tpm2"]},{"all":["provisioning-token"]}],"provisioningTokenAlone":true}}`,
	} {
		c.KubectlApply(t, o)
	}
	runVerifier(t, c)
	written := func() bool {
		return c.Kubectl(t, "-n", machines, "get", "secret", "worker-user-data", "-o",
			`jsonpath={.metadata.annotations}`) != "" &&
			strings.Contains(c.Kubectl(t, "-n", machines, "get", "secret", "worker-user-data", "-o",
				`jsonpath={.metadata.annotations}`), "mcs-attest.dev/provisioning-token")
	}
	degraded := func() string {
		return c.Kubectl(t, "get", "attestationverifiers", "--ignore-not-found", "-o",
			`jsonpath={.items[*].status.conditions[?(@.type=="Degraded")].message}`)
	}
	const hint = "deploy/components/user-data"
	if !until(func() bool { return strings.Contains(degraded(), hint) }) {
		t.Errorf("Degraded: %s", degraded())
	}
	if written() {
		t.Error("the verifier wrote a pointer config without the component")
	}
	c.Kubectl(t, "apply", "-f", "components/user-data/rbac.yaml")
	// It tries again after a change, and once a minute.
	c.Kubectl(t, "-n", machines, "annotate", "secret", "worker-user-data", "a=b")
	for end := time.Now().Add(2 * time.Minute); (!written() || strings.Contains(degraded(), hint)) &&
		time.Now().Before(end); {
		time.Sleep(time.Second)
	}
	if !written() || strings.Contains(degraded(), hint) {
		t.Errorf("with the component: written %t, Degraded: %s", written(), degraded())
	}
}
