// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// planted are secrets that are put into everything that a bundle is made of.
var planted = map[string]string{
	"a gate's token":         "eyJhbGciOiJFUzI1NiIsInR5cCI6ImVhdCtqd3QifQ.eyJpc3MiOiJodHRwczovL2FwaS1pbnQifQ.c2lnbmF0dXJlLXdpdGgtbWFueS1ieXRlcw",
	"the provisioning token": "UHJvdmlzaW9uaW5nVG9rZW5PZlRoaXNDbHVzdGVyMTIzNDU2Nzg5MA==",
	"the pull secret": `{"auths":{"quay.io":{"auth":"` +
		base64.StdEncoding.EncodeToString([]byte("bob:pull-secret-password")) + `"}}}`,
	"a registry's password": "pull-secret-password",
	"a private key":         "MHcCAQEEIJtheprivatekeyofthemachineconfigserverAoGCCqGSM49",
	"a signing key":         "870MB6gfuTJ4HtUnUvYMyJpr5eUZNP4Bk43bVdj3eAE",
	"a machine's password":  "machine-provider-secret",
}

// everything is a text with each of them as programs write them.
func everything() string {
	return strings.Join([]string{
		"Authorization: Bearer " + planted["a gate's token"],
		"GET /config/worker?token=" + planted["the provisioning token"],
		"the provisioning token in base64: " +
			base64.StdEncoding.EncodeToString([]byte("x"+planted["the provisioning token"])),
		planted["the pull secret"],
		"contents " + base64.StdEncoding.EncodeToString([]byte(planted["the pull secret"])),
		"-----BEGIN EC PRIVATE KEY-----\\n" + planted["a private key"] + "\\n-----END EC PRIVATE KEY-----",
		base64.StdEncoding.EncodeToString([]byte("-----BEGIN EC PRIVATE KEY-----\n" + planted["a private key"] +
			"\n-----END EC PRIVATE KEY-----\n")),
		`{"kty":"EC","d":"` + planted["a signing key"] + `"}`,
		"password=" + planted["a machine's password"],
		"login bob " + planted["a registry's password"],
	}, " ; ")
}

// leaks looks for the planted secrets in a text, however they may be encoded.
func leaks(text string) []string {
	var found []string
	for name, s := range planted {
		forms := []string{s, url.QueryEscape(s), hex.EncodeToString([]byte(s)), strings.ReplaceAll(s, `"`, `\"`)}
		for shift := range 3 {
			for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
				e := enc.EncodeToString([]byte(strings.Repeat("x", shift) + s))
				forms = append(forms, e[4:len(e)-4]) // what does not depend on what is around it
			}
		}
		for _, f := range forms {
			if len(f) >= 12 && strings.Contains(text, f) {
				found = append(found, name+" as "+f)
			}
		}
	}
	return found
}

func TestSupportBundle_SearchFindsThePlantedSecrets(t *testing.T) {
	if got := leaks(everything()); len(got) < 8 {
		t.Fatalf("the search finds only %v", got)
	}
}

// inFront is an API server that has logs of pods although no kubelet
// runs; the rest goes to the real one.
func inFront(t *testing.T, c *cluster.Cluster, log string) string {
	t.Helper()
	transport, err := rest.TransportFor(c.Admin())
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(c.Admin().Host)
	if err != nil {
		t.Fatal(err)
	}
	real := httputil.NewSingleHostReverseProxy(target)
	real.Transport = transport
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/pods/verifier-0/log") && r.URL.Query().Get("previous") == "":
			fmt.Fprint(w, log)
		default:
			real.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, "+
		"user: u}}]\nclusters: [{name: c, cluster: {server: %q}}]\nusers: [{name: u, user: {}}]\n", s.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t *testing.T, env []string, name string, args ...string) (stdout, stderr string) {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, name), args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, errOut.String())
	}
	return out.String(), errOut.String()
}

func TestAttack_T46_ABundleOfAClusterHoldsNoSecret(t *testing.T) {
	c := cluster.Start(t)
	c.InstallOpenShift(t)
	c.InstallOwn(t)
	c.KubectlApply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: mcs-attest}\n")
	d := client(t, c)
	available(t, d)
	f := fixture{d: d, namespace: "openshift-machine-api", own: "mcs-attest"}
	secrets := func(namespace, name string, data map[string]string) {
		t.Helper()
		text := fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\nstringData:\n",
			name, namespace)
		for k, v := range data {
			text += fmt.Sprintf("  %s: %q\n", k, v)
		}
		c.KubectlApply(t, text)
	}
	secrets("mcs-attest", "mcs-attest-keys", map[string]string{"token.json": `{"keys":[{"kid":"public-key-id","d":"` +
		planted["a signing key"] + `"}]}`, "seal.json": "{}"})
	secrets("openshift-config", "machineconfig-auth", map[string]string{"token": planted["the provisioning token"]})
	secrets("openshift-config", "pull-secret", map[string]string{".dockerconfigjson": planted["the pull secret"]})
	const password, user, key = "correct-horse-battery", "user-data-of-a-site", "key-of-the-server"
	const azure = "Azure~client~secret~1"
	secrets("mcs-attest", "mcs-attest-cloud-credentials", map[string]string{"password": password,
		"azure_region": "westeurope", "azure_client_secret": azure})
	secrets("openshift-machine-api", "site-user-data", map[string]string{"userData": user, "format": "ignition"})
	secrets("mcs-attest", "serving", map[string]string{"tls.key": key})
	secrets("mcs-attest", "something-else", map[string]string{"password": planted["a machine's password"]})
	uid, err := f.machine("worker-0", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.machine("c-worker-westeurope1-x", ""); err != nil {
		t.Fatal(err)
	}
	put := func(r schema.GroupVersionResource, text string) {
		t.Helper()
		if _, err := f.put(r, text); err != nil {
			t.Fatal(err)
		}
	}
	all := everything()
	put(attestations, fmt.Sprintf(`
apiVersion: mcs-attest.dev/v1alpha1
kind: MachineAttestation
metadata: {name: %s, namespace: openshift-machine-api,
  annotations: {note: %q, kubectl.kubernetes.io/last-applied-configuration: %[2]q}}
spec: {machineRef: {name: worker-0}}
status: {phase: Fetched, machineUID: %[1]s, identity: {ekSHA256: %[3]s},
  report: {time: "2026-03-01T12:00:00Z", unit: ignition-files.service, message: %[2]q}}
`, uid, all, ek))
	put(attestations, fmt.Sprintf(`
apiVersion: mcs-attest.dev/v1alpha1
kind: MachineAttestation
metadata: {name: pending-2c87d5a92a9a6ed6, namespace: mcs-attest}
status: {phase: Pending, pending: {ekSHA256: %s, firstSeen: "2026-03-01T12:00:00Z", lastSeen: "2026-03-01T12:00:00Z",
  claims: %q}}
`, ek, all))
	put(events, fmt.Sprintf(`
apiVersion: v1
kind: Event
metadata: {name: worker-0.denied, namespace: openshift-machine-api}
involvedObject: {apiVersion: machine.openshift.io/v1beta1, kind: Machine,
  namespace: openshift-machine-api, name: worker-0, uid: %s}
type: Warning
reason: FirstBootFailed
message: %q
`, uid, all))
	put(schema.GroupVersionResource{Group: "mcs-attest.dev", Version: "v1alpha1", Resource: "attestationpolicies"},
		fmt.Sprintf(`
apiVersion: mcs-attest.dev/v1alpha1
kind: AttestationPolicy
metadata: {name: default, annotations: {note: %q}}
spec: {pools: ["*"]}
`, all))
	put(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: mcs-attest-config, namespace: mcs-attest}
data:
  mcs-attest.yaml: "origins: [\"https://api-int.test:22623\"]\nkubernetes: {servingSecret: mcs-attest/serving, \
    userDataSecrets: [openshift-machine-api/site-user-data]}\n"
  note: %q
`, strings.Join([]string{all, "vCenter rejects", password, user, key, azure}, " ")))
	c.KubectlApply(t, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default, namespace: mcs-attest}\n")
	put(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: verifier-0, namespace: mcs-attest, annotations: {note: %q}}
spec:
  containers:
  - name: verifier
    image: registry.test/mcs-attest
    args: [serve, %[1]q]
    env: [{name: PASSWORD, value: plain-environment-value}, {name: ALL, value: %[1]q}]
`, all))

	kubeconfig := inFront(t, c, "2026-03-01T12:00:00Z ready\n"+everything()+"\n")
	archive := filepath.Join(t.TempDir(), "support.tar.gz")
	_, stderr := run(t, []string{"KUBECONFIG=" + kubeconfig}, "kubectl-attest", "support-bundle", "--output", archive)
	files := unpack(t, archive)
	if info, err := os.Stat(archive); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others may read the bundle: %v, %v", info.Mode(), err)
	}
	var whole strings.Builder
	for name, content := range files {
		for _, leak := range leaks(content) {
			t.Errorf("%s holds %s", name, leak)
		}
		for _, value := range []string{password, user, key, azure} {
			if strings.Contains(content, value) {
				t.Errorf("%s holds %s", name, value)
			}
		}
		if strings.Contains(content, "plain-environment-value") {
			t.Errorf("%s holds a value of an environment", name)
		}
		whole.WriteString(name + "\n" + content + "\n")
	}
	for _, leak := range leaks(stderr) {
		t.Errorf("standard error holds %s", leak)
	}
	for _, want := range []string{
		"version.txt", "cluster/version.json", "state.json", "cluster/machineattestations.jsonl",
		"cluster/machines.machine.openshift.io.jsonl",
		"cluster/attestationpolicies.jsonl", "cluster/attestationverifiers.jsonl", "cluster/events.jsonl",
		"cluster/pods.jsonl", "cluster/configmaps.jsonl",
		"logs/verifier-0.verifier.log", "contents.txt",
		// and what one wants to know is there
		"12:00:00Z ready", "port-forward verifier-0 22681", "FirstBootFailed", "origins:", uid, ek, "worker-0", "PASSWORD",
		"c-worker-westeurope1-x", "ignition-files.service",
		"secret field removed", "known secret removed",
	} {
		if !strings.Contains(whole.String(), want) {
			t.Errorf("the bundle does not have %q", want)
		}
	}
	if strings.Contains(whole.String(), "something-else") {
		t.Error("a Secret is in the bundle")
	}

	// An administrator who may not read the Secrets receives a bundle that says so.
	c.KubectlApply(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: support}
rules:
- {apiGroups: [mcs-attest.dev, machine.openshift.io], resources: ["*"], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: support}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: support}
subjects: [{kind: ServiceAccount, name: support, namespace: mcs-attest}]
`)
	dir := filepath.Join(t.TempDir(), "support") + "/"
	_, stderr = run(t, []string{"KUBECONFIG=" + c.Kubeconfig("system:serviceaccount:mcs-attest:support")},
		"kubectl-attest", "support-bundle", "-n", "openshift-machine-api", "--output", dir)
	for _, want := range []string{"the search for a known secret is incomplete: you may not get secrets",
		"cluster/events: you may not list events", "pods: you may not list pods"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("not reported: %s\n%s", want, stderr)
		}
	}
	raw, err := os.ReadFile(filepath.Join(dir, "cluster", "machineattestations.jsonl"))
	if err != nil || !strings.Contains(string(raw), uid) {
		t.Errorf("records: %v %s", err, raw)
	}
	for _, secret := range []string{"a gate's token", "the pull secret", "a private key", "a signing key",
		"a machine's password", "the provisioning token"} {
		if strings.Contains(string(raw), planted[secret]) {
			t.Errorf("%s was not removed by its shape: %s", secret, raw)
		}
	}
}

// gather runs the script of 'oc adm must-gather', with plug-ins of the folder bin, and returns what it collects in.
func gather(t *testing.T, bin string, env ...string) (dir, stdout string) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.Command("../../../deploy/must-gather/gather")
	cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"),
		"BASE_COLLECTION_PATH="+dir)
	cmd.Env = append(cmd.Env, env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("gather: %v\n%s", err, errOut.String())
	}
	return dir, out.String()
}

func TestMustGather_CollectsTheBundle(t *testing.T) {
	c := installed(t)
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	dir, _ := gather(t, bin, "KUBECONFIG="+c.Kubeconfig("admin"), "MUST_GATHER_SINCE=2h0m0s")
	version, _ := run(t, nil, "kubectl-attest", "--version")
	_, version, _ = strings.Cut(version, "version ")
	for name, want := range map[string]string{
		"version":                         "mcs-attest\n" + version,
		"mcs-attest/contents.txt":         "A support bundle",
		"mcs-attest/state.json":           "{",
		"mcs-attest/cluster/version.json": "gitVersion",
	} {
		if raw, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(raw), want) {
			t.Errorf("%s: %v %.200s", name, err, raw)
		}
	}
}

func TestMustGather_PassesTheTimesOfOcOn(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "kubectl-attest"), []byte("#!/bin/sh\necho \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	hourAgo := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	for _, test := range []struct{ env, want string }{
		{"MUST_GATHER_SINCE=", `^support-bundle --output \S+/mcs-attest/\n$`},
		{"MUST_GATHER_SINCE=1h30m0s", `/mcs-attest/ --since 1h30m0s\n$`},
		{"MUST_GATHER_SINCE_TIME=" + hourAgo, `/mcs-attest/ --since [34]\d{3}s\n$`},
	} {
		if _, got := gather(t, bin, test.env); !regexp.MustCompile(test.want).MatchString(got) {
			t.Errorf("%s: %s", test.env, got)
		}
	}
}

func TestAttack_T46_ABundleOfAFolderHoldsNoSecret(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	run(t, nil, "mcs-attest-verifier", "init", dir, "--origin", "https://mcs.test:22623")
	all := everything()
	for name, content := range map[string]string{
		"keys/machineconfig-auth": "token: " + planted["the provisioning token"] + "\n",
		"keys/other.json":         `{"auth":"x","password":"` + planted["a registry's password"] + `"}`,
		"configs/worker.ign":      `{"ignition":{"version":"3.2.0"},"secret":"` + planted["a machine's password"] + `"}`,
		"policies/note.yaml":      "# " + all + "\n",
		"attestations/worker-0.yaml": "# " + all + "\napiVersion: mcs-attest.dev/v1alpha1\nkind: " +
			"MachineAttestation\nmetadata: {name: m1}\nspec: {pool: worker, ekSHA256: [" + ek + "]}\n",
		"machines/m.yaml": "apiVersion: machine.openshift.io/v1beta1\nkind: Machine\nmetadata: {name: " +
			"worker-0, namespace: a}\nspec: {providerSpec: {value: {password: " + planted["a machine's password"] +
			", userDataSecret: {name: worker-user-data}}}}\n",
		"reference-values/note.yaml": "# " + all + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, "mcs-attest.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("# " + all + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "support.tar.gz")
	run(t, nil, "mcs-attest-verifier", "support-bundle", "--config", filepath.Join(dir, "mcs-attest.yaml"),
		"--output", archive)
	var whole strings.Builder
	for name, content := range unpack(t, archive) {
		for _, leak := range leaks(content) {
			t.Errorf("%s holds %s", name, leak)
		}
		whole.WriteString(name + "\n" + content + "\n")
	}
	for _, want := range []string{"config/mcs-attest.yaml", "state.json", "policies/default.yaml",
		"attestations/worker-0.yaml", "machines/m.yaml", "worker-user-data", "files.txt", "keys/token.json",
		"configs/worker.ign", ek} {
		if !strings.Contains(whole.String(), want) {
			t.Errorf("the bundle does not have %q", want)
		}
	}
	keys, err := os.ReadFile(filepath.Join(dir, "tls", "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(whole.String(), strings.Split(string(keys), "\n")[1]) {
		t.Error("the serving key is in it")
	}
}

// unpack reads a bundle's files, without the folder that all of them are in.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	raw, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	z, err := gzip.NewReader(raw)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		files[name] = string(content)
	}
}
