// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/pki"
	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
	"github.com/mcs-attest/mcs-attest/testvm/freeport"
)

// byAttestation are grants that are used only when a machine attests, or only in unusual
// situations, such as a deleted namespace. The tests of records and claims, and those of the
// replicas, run as these accounts.
var byAttestation = []string{
	"get machines.machine.openshift.io", "get machines.cluster.x-k8s.io",
	"create machineattestations.mcs-attest.dev in mcs-attest", "delete machineattestations.mcs-attest.dev in mcs-attest",
	"create events", "patch events",
	"get namespaces",
	"use securitycontextconstraints.security.openshift.io",
}

// byServing are those of the processes that serve.
var byServing = []string{
	"get identityclaims.mcs-attest.dev", "create identityclaims.mcs-attest.dev", "patch identityclaims.mcs-attest.dev",
	"delete identityclaims.mcs-attest.dev",
	// For replicas of the previous version, during an upgrade.
	"update identityclaims.mcs-attest.dev", "update machineattestations/status.mcs-attest.dev",
	"get machineattestations.mcs-attest.dev", "create machineattestations.mcs-attest.dev",
	"patch machineattestations/status.mcs-attest.dev",
	// After a restore of etcd.
	"get attestationverifiers.mcs-attest.dev cluster",
	// Before a denial of a provisioning token.
	"get secrets machineconfig-auth",
}

// byControlling are those of the controller.
var byControlling = []string{"delete identityclaims.mcs-attest.dev"}

// Both processes of the verifier run normally as the accounts of the overlay. No call is
// forbidden, and they use all their permissions.
func TestVerbs_AreExactlyThoseUsed(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Audit())
	c.InstallClusterAPI(t)
	c.InstallOpenShift(t)
	c.InstallMetal3(t)
	Apply(t, c, "openshift")
	c.Kubectl(t, "apply", "-f", "components/user-data/rbac.yaml")
	ca, pair := serving(t)
	holder := func(kind, field, namespace, name string, data map[string]string) string {
		out := fmt.Sprintf("---\napiVersion: v1\nkind: %s\nmetadata: {namespace: %s, name: %s}\n%s:\n", kind, namespace,
			name, field)
		for k, v := range data {
			out += "  " + k + ": |\n    " + strings.ReplaceAll(v, "\n", "\n    ") + "\n"
		}
		return out
	}
	secret := func(namespace, name string, data map[string]string) string {
		return holder("Secret", "stringData", namespace, name, data)
	}
	pointer := `{"ignition":{"version":"3.2.0","config":{"merge":[{"source":"https://api-int.cluster.example.com:22623/config/worker"}]}}}`
	c.KubectlApply(t, secret("openshift-machine-config-operator", "machine-config-server-tls",
		map[string]string{"tls.crt": string(pair.Certificate), "tls.key": string(pair.Key.Expose())})+
		holder("ConfigMap", "data", "openshift-machine-config-operator", "machine-config-server-ca",
			map[string]string{"ca-bundle.crt": ca}))
	masters := strings.Replace(pointer, "worker", "master", 1)
	c.KubectlApply(t, secret("openshift-machine-api", "worker-user-data", map[string]string{"userData": pointer})+
		secret("openshift-machine-api", "worker-user-data-managed", map[string]string{"userData": pointer})+
		secret("openshift-machine-api", "master-user-data", map[string]string{"userData": masters})+
		secret("openshift-machine-api", "master-user-data-managed", map[string]string{"userData": masters})+
		secret("openshift-config", "machineconfig-auth", map[string]string{"token": rand.Text() + rand.Text()}))

	// The provisioning token goes into the pointer configs of pools that accept it.
	c.KubectlApply(t, `
apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata: {name: shared}
spec:
  pools: [worker, master]
  mode: Audit
  evidence: [{all: [tpm2]}, {all: [provisioning-token]}]
  provisioningTokenAlone: true
`)

	dir := t.TempDir()
	program, err := binaries.Verifier()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("overlays/openshift/mcs-attest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	upstream := strings.Replace(string(text), "https://127.22.62.3:22644",
		"https://"+machineConfigServer(t, pair), 1)
	if upstream == string(text) {
		t.Fatal("the configuration has another upstream")
	}
	as := func(account string) string {
		path := filepath.Join(dir, account+".yaml")
		configured := strings.Replace(upstream, "kubernetes:\n",
			"kubernetes:\n  kubeconfig: "+c.Kubeconfig(accountPrefix+account)+"\n", 1) +
			"  rotateEvery: 2s\n  grace: 1s\nkeyRotation: 2s\nkeyPublishDelay: 1s\n"
		if err := os.WriteFile(path, []byte(configured), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var log buffer
	health, metrics, controller := free(t), free(t), free(t)
	stops := []func(){
		start(t, &log, program, "serve", "--config", as(ServiceAccount), "--listen", free(t), "--health-listen", health,
			"--metrics-listen", metrics),
		start(t, &log, program, "controller", "--config", as(Controller), "--health-listen", free(t),
			"--metrics-listen", controller),
	}
	stop := func() {
		for _, stop := range stops {
			stop()
		}
	}

	ready := "not asked"
	if !until(func() bool {
		res, err := http.Get("http://" + health + "/readyz")
		if err != nil {
			ready = err.Error()
			return false
		}
		defer res.Body.Close()
		var body bytes.Buffer
		_, _ = body.ReadFrom(res.Body)
		ready = body.String()
		return res.StatusCode == http.StatusOK
	}) {
		stop()
		t.Fatalf("not ready: %s\n%s", ready, log.String())
	}

	// Prometheus reads the metrics.
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(ca))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots,
		ServerName: "api-int.cluster.example.com"}}}
	token := c.ServiceAccount(t, "openshift-monitoring", "prometheus-k8s").BearerToken
	for _, address := range []string{metrics, controller} {
		scrape, err := http.NewRequest(http.MethodGet, "https://"+address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		scrape.Header.Set("Authorization", "Bearer "+token)
		if res, err := client.Do(scrape); err != nil {
			t.Error("metrics:", err)
		} else {
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Error("metrics:", res.Status)
			}
		}
	}
	client.CloseIdleConnections()

	// Work for the verifier: a Machine that is created and deleted, an invalid enrollment, an
	// invalid policy.
	machine := `
apiVersion: machine.openshift.io/v1beta1
kind: Machine
metadata:
  namespace: openshift-machine-api
  name: worker-0
  labels: {machine.openshift.io/cluster-api-machine-role: worker}
spec: {providerSpec: {value: {userDataSecret: {name: worker-user-data}}}}
`
	c.KubectlApply(t, machine)
	c.KubectlApply(t, `
apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata: {name: second-for-everyone}
spec: {pools: ["*"], mode: Audit}
---
apiVersion: mcs-attest.dev/v1alpha1
kind: MachineAttestation
metadata: {namespace: mcs-attest, name: stand-in}
spec: {pool: worker, ekSHA256: [`+strings.Repeat("cd", 32)+`], quarantined: true}
`)
	records := func() string {
		return c.Kubectl(t, "-n", "openshift-machine-api", "get", "machineattestations", "-o", "name")
	}
	if !until(func() bool { return strings.Contains(records(), "machineattestation") }) {
		t.Errorf("no record was made for the Machine")
	}
	c.Kubectl(t, "-n", "openshift-machine-api", "patch", "machines.machine.openshift.io", "worker-0",
		"--subresource=status", "--type=merge",
		"--patch", `{"status":{"nodeRef":{"kind":"Node","name":"worker-0"}}}`)
	if !until(func() bool {
		return strings.Contains(c.Kubectl(t, "-n", "openshift-machine-api", "get", "machineattestations", "-o",
			"jsonpath={.items[*].status.phase}"), "Joined")
	}) {
		t.Errorf("the Machine never became Joined")
	}
	c.Kubectl(t, "-n", "openshift-machine-api", "delete", "machines.machine.openshift.io", "worker-0")
	if !until(func() bool { return !strings.Contains(records(), "machineattestation") }) {
		t.Errorf("the record of a deleted Machine still exists")
	}

	// The expected use by account.
	expected, used := map[string][]Grant{}, map[string]bool{}
	for account, others := range map[string][]string{ServiceAccount: byServing, Controller: byControlling} {
		for _, g := range Grants(t, "openshift", account) {
			if !slices.ContainsFunc(slices.Concat(byAttestation, others), func(s string) bool {
				return strings.HasPrefix(g.String()+" in", s+" in") || strings.HasPrefix(g.String(), s+" ")
			}) {
				expected[accountPrefix+account] = append(expected[accountPrefix+account], g)
			}
		}
	}
	for _, pool := range []string{"worker", "master"} {
		expected[controllerAccount] = append(expected[controllerAccount], Grant{Verb: "update", Resource: "secrets",
			Namespace: "openshift-machine-api", Name: pool + "-user-data"})
	}
	missing := func() (left []string) {
		for account, grants := range expected {
			for _, g := range grants {
				if one := account + ": " + g.String(); !used[one] {
					left = append(left, one)
				}
			}
		}
		return left
	}
	// The leading controller reconciles everything once a minute.
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		for _, r := range c.Requests(t) {
			grants, ours := expected[r.User]
			if !ours {
				continue
			}
			// The first attempt shows the verifier that it may not count there.
			if counted := r.Verb == "patch" && r.Resource == "events"; r.Code == http.StatusForbidden && !counted {
				t.Errorf("forbidden: %+v", r)
			}
			for _, g := range grants {
				if g.Verb == r.Verb && g.Group == r.Group && g.Resource == r.Resource && g.Subresource == r.Subresource &&
					(g.Namespace == r.Namespace || g.Namespace == "") && (g.Name == r.Name || g.Name == "") {
					used[r.User+": "+g.String()] = true
				}
			}
		}
		if t.Failed() || len(missing()) == 0 {
			break
		}
	}
	stop()
	if left := missing(); len(left) > 0 {
		t.Errorf("granted, and not used:\n%s\n%s", strings.Join(left, "\n"), log.String())
	}
}

func free(t *testing.T) string {
	t.Helper()
	port, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// machineConfigServer answers every request with 200, like /healthz.
func machineConfigServer(t *testing.T, serving pki.Pair) string {
	t.Helper()
	certificate, err := tls.X509KeyPair(serving.Certificate, serving.Key.Expose())
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// serving creates a CA, in PEM, and a serving certificate of the Machine Config Server under it.
func serving(t *testing.T) (ca string, pair pki.Pair) {
	t.Helper()
	now := time.Now()
	authority, err := pki.NewCA("machine-config-server", now)
	if err == nil {
		pair, err = authority.Serve([]string{"api-int.cluster.example.com"}, now)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(authority.Certificate), pair
}
