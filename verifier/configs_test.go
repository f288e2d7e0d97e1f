// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester/swtpmtest"
)

// The secrets of a cluster, each in its own MachineConfig or file.
var planted = map[string]string{
	"the pull secret":            "cHVsbC1zZWNyZXQ6c2VjcmV0",
	"a customer's password":      "customers-password",
	"the bootstrap token":        "bootstrap-token-secret",
	"a customer's ordinary file": "customers-own-file",
}

const ownedByOperator = `  annotations: {machineconfiguration.openshift.io/generated-by-controller-version: "1"}
  ownerReferences:
  - {apiVersion: machineconfiguration.openshift.io/v1, kind: ControllerConfig, name: machine-config-controller, uid: u}
`

// renderedFrom makes a folder serve configs that are rendered from MachineConfigs as a
// cluster has them; more are further files.
func renderedFrom(policy string, more map[string]string) func(dir string) {
	return func(dir string) {
		mc := func(name, metadata, path, text string) string {
			return fmt.Sprintf(`apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: %s
  labels: {machineconfiguration.openshift.io/role: worker}
%sspec:
  config:
    ignition: {version: 3.2.0}
    systemd:
      units:
      - {name: %s.service, enabled: true, contents: "[Unit]\nDescription=%s\n[Install]\nWantedBy=multi-user.target\n"}
    storage: {files: [{path: %s, mode: 384, contents: {source: "data:;base64,%s"}}]}
`, name, metadata, name, name, path, base64.StdEncoding.EncodeToString([]byte(text)))
		}
		files := map[string]string{
			"machineconfigs/pool.yaml": `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfigPool
metadata: {name: worker}
spec: {machineConfigSelector: {matchLabels: {machineconfiguration.openshift.io/role: worker}}}
`,
			"machineconfigs/01-worker-kubelet.yaml": mc("01-worker-kubelet", ownedByOperator, "/etc/kubernetes/kubelet.conf",
				"kind: KubeletConfiguration\n"),
			"machineconfigs/00-worker.yaml": mc("00-worker", ownedByOperator, "/var/lib/kubelet/config.json",
				`{"auths":{"quay.test":{"auth":"`+planted["the pull secret"]+`"}}}`),
			"machineconfigs/99-site.yaml": mc("99-site", "", "/etc/site/password", planted["a customer's password"]),
			"machineconfigs/99-ordinary.yaml": mc("99-ordinary", "", "/etc/site/ordinary",
				planted["a customer's ordinary file"]),
			"machineconfigs/kubeconfig": "apiVersion: v1\nkind: Config\nclusters: [{name: local, cluster: {server: " +
				"'https://api-int.test:6443'}}]\ncontexts: [{name: kubelet, context: {cluster: local, user: kubelet}}]\n" +
				"current-context: kubelet\nusers: [{name: kubelet, user: {token: " + planted["the bootstrap token"] + "}}]\n",
			"policies/default.yaml": "apiVersion: mcs-attest.dev/v1alpha1\nkind: AttestationPolicy\n" +
				"metadata: {name: default}\nspec:\n" + policy,
		}
		for name, text := range more {
			files[name] = text
		}
		_ = os.Mkdir(filepath.Join(dir, "machineconfigs"), 0o755)
		_ = os.Remove(filepath.Join(dir, "configs", "worker.ign"))
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				panic(err)
			}
		}
	}
}

// unpacked is a config's text with every data URL in it decoded, as deep as they are nested.
func unpacked(config string) string {
	var all strings.Builder
	var walk func(v any, depth int)
	walk = func(v any, depth int) {
		switch v := v.(type) {
		case map[string]any:
			for _, e := range v {
				walk(e, depth)
			}
		case []any:
			for _, e := range v {
				walk(e, depth)
			}
		case string:
			all.WriteString(v + "\n")
			_, data, ok := strings.Cut(v, ",")
			if !ok || !strings.HasPrefix(v, "data:") || depth > 8 {
				return
			}
			text := []byte(data)
			if strings.Contains(strings.SplitN(v, ",", 2)[0], "base64") {
				text, _ = base64.StdEncoding.DecodeString(data)
			} else if plain, err := url.PathUnescape(data); err == nil {
				text = []byte(plain)
			}
			all.Write(text)
			var inner any
			if json.Unmarshal(text, &inner) == nil {
				walk(inner, depth+1)
			}
		}
	}
	var v any
	if json.Unmarshal([]byte(config), &v) != nil {
		return config
	}
	walk(v, 0)
	return all.String()
}

// B5, B6: without a token there is the part that anyone may have, from the same
// MachineConfigs as the full config, which an attested machine receives immediately (B13).
func TestAnonymousFetch_ReceivesOnlyThePreApprovedPart(t *testing.T) {
	v := newVerifier(t, renderedFrom("  unattested: PreApproved\n", nil))
	code, _, body := v.fetch(http.MethodGet, "/config/worker", "")
	pre := unpacked(body)
	if code != http.StatusOK || !strings.Contains(pre, "01-worker-kubelet.service") ||
		!strings.Contains(pre, "/etc/kubernetes/kubelet.conf") {
		t.Fatalf("anonymous: %d\n%s", code, body)
	}
	for what, secret := range planted {
		if strings.Contains(pre, secret) {
			t.Errorf("anyone receives %s", what)
		}
	}
	if strings.Contains(pre, "/etc/kubernetes/kubeconfig") {
		t.Error("a kubeconfig for anyone")
	}
	if code, _, body := v.fetch(http.MethodGet, "/config/worker", "broken"); code != http.StatusUnauthorized ||
		strings.Contains(body, "ignition") {
		t.Errorf("an invalid token falls back to anonymous: %d", code)
	}

	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	res, err := n.attest()
	if err != nil {
		t.Fatal(err)
	}
	code, _, body = v.fetch(http.MethodGet, "/config/worker", res.GetToken())
	full := unpacked(body)
	if code != http.StatusOK {
		t.Fatalf("attested: %d %s", code, body)
	}
	for what, secret := range planted {
		if !strings.Contains(full, secret) {
			t.Errorf("the attested machine does not receive %s", what)
		}
	}
}

// B12: what a pod on the cluster's network asks gets it the pre-approved part at most,
// however it asks, so that nothing is lost if the port is not blocked for pods.
func TestAttack_T55_APodWithoutTheBlockedPortReceivesOnlyThePreApprovedPart(t *testing.T) {
	v := newVerifier(t, renderedFrom("  unattested: PreApproved\n", nil))
	tr := v.transport()
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	served := 0
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
		for _, path := range []string{"/config/worker", "/config/worker/", "/config/x/worker", "//config/worker",
			"/config/./worker", "/config/master/worker", "/config/worker.pre-approved", "/config/worker?token=x"} {
			for _, accept := range []string{"", "*/*", "application/json", "application/vnd.coreos.ignition+json;version=2.2.0",
				"application/vnd.coreos.ignition+json;version=3.1.0",
				"application/vnd.coreos.ignition+json;version=3.6.0, */*;q=0.1"} {
				for header, value := range map[string]string{"X-Nothing": "", "X-Forwarded-For": "127.0.0.1", "Range": "bytes=0-10",
					"User-Agent": "Ignition/2.20.0", "X-Original-Url": "/config/worker"} {
					r, err := http.NewRequestWithContext(t.Context(), method, testOrigin+path, nil)
					if err != nil {
						t.Fatal(err)
					}
					r.Header.Set("Accept", accept)
					r.Header.Set(header, value)
					res, err := client.Do(r)
					if err != nil {
						t.Fatal(err)
					}
					body, err := io.ReadAll(res.Body)
					_ = res.Body.Close()
					if err != nil {
						t.Fatal(err)
					}
					if res.StatusCode == http.StatusOK && len(body) > 0 {
						served++
					}
					text := unpacked(string(body))
					for what, secret := range planted {
						if strings.Contains(text, secret) {
							t.Fatalf("%s %s, Accept %q, %s: %q holds %s", method, path, accept, header, value, what)
						}
					}
				}
			}
		}
	}
	if served == 0 {
		t.Error("no client was served")
	}
}

// B6: a MachineConfig that its owner mistakenly says anyone may have, secret and all,
// leaves the pool without a pre-approved config, and the attested with all of it.
func TestAttack_T55_ASecretInThePreApprovedPartIsNotServed(t *testing.T) {
	bad := `apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata:
  name: 98-registry
  labels: {machineconfiguration.openshift.io/role: worker}
  annotations: {mcs-attest.dev/needed-before-node-approved: "true"}
spec:
  config:
    ignition: {version: 3.2.0}
    storage: {files: [{path: /root/.docker/config.json, contents: {source: "data:;base64,` +
		base64.StdEncoding.EncodeToString([]byte(`{"auths":{"quay.test":{"auth":"`+planted["the pull secret"]+`"}}}`)) + `"}}]}
`
	v := newVerifier(t, renderedFrom("  unattested: PreApproved\n",
		map[string]string{"machineconfigs/98-registry.yaml": bad}))
	if code, _, body := v.fetch(http.MethodGet, "/config/worker", ""); code != http.StatusServiceUnavailable ||
		strings.Contains(body, "auths") {
		t.Errorf("anonymous: %d %s", code, body)
	}
	v.wantReason("ConfigUnavailable")
	s, err := v.standalone().State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	said := strings.Join(s.Problems, "\n")
	if !strings.Contains(said, "98-registry") || !strings.Contains(said, "/root/.docker/config.json") ||
		strings.Contains(said, planted["the pull secret"]) {
		t.Errorf("status reports: %s", said)
	}
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	res, err := n.attest()
	if err != nil {
		t.Fatal(err)
	}
	v.wantFetch("attested", "/config/worker", res.GetToken(), http.StatusOK)
}

// If a file of configs exists but cannot be used, the rendered config is not served instead.
func TestConfigFile_RenderedConfigDoesNotReplaceABrokenOne(t *testing.T) {
	v := newVerifier(t, renderedFrom("  unattested: PreApproved\n",
		map[string]string{"configs/worker.ign": "{", "configs/worker.pre-approved.ign": "{"}))
	if code, _, body := v.fetch(http.MethodGet, "/config/worker", ""); code != http.StatusServiceUnavailable {
		t.Errorf("the part for anyone: %d %s", code, body)
	}
	v.wantReason("ConfigUnavailable")
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	res, err := n.attest()
	if err != nil {
		t.Fatal(err)
	}
	v.wantFetch("attested", "/config/worker", res.GetToken(), http.StatusServiceUnavailable)
}

// A file of configs goes before what is rendered, and that is said.
func TestConfigFile_ThatShadowsARenderedConfigIsReported(t *testing.T) {
	v := newVerifier(t, renderedFrom("  unattested: PreApproved\n", map[string]string{"configs/worker.ign": fullConfig}))
	s, err := v.standalone().State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if said := strings.Join(s.Problems, "\n"); !strings.Contains(said, "configs/worker.ign") ||
		!strings.Contains(said, "ConfigShadowed") {
		t.Errorf("status reports: %s", said)
	}
}

// B10: with the policy off again everything is as it was before there was a gate: the
// same config for everyone, of unchanged MachineConfigs.
func TestModeOff_ServesUnchangedMachineConfigs(t *testing.T) {
	v := newVerifier(t, renderedFrom("  unattested: PreApproved\n", nil))
	before := treeHash(t, filepath.Join(v.dir, "machineconfigs"))
	n := newNode(t, v, swtpmtest.Start(t, "sha256"))
	v.enroll("m1", "worker", n.id.EKSPKI)
	res, err := n.attest()
	if err != nil {
		t.Fatal(err)
	}
	_, _, full := v.fetch(http.MethodGet, "/config/worker", res.GetToken())
	v.policy("  mode: \"Off\"\n")
	code, _, body := v.fetch(http.MethodGet, "/config/worker", "")
	if code != http.StatusOK || body != full {
		t.Errorf("after the downgrade: %d, the same bytes: %t", code, body == full)
	}
	v.policy("  unattested: PreApproved\n")
	if _, _, body := v.fetch(http.MethodGet, "/config/worker", ""); body == full {
		t.Error("after the upgrade anyone still receives everything")
	}
	if after := treeHash(t, filepath.Join(v.dir, "machineconfigs")); after != before {
		t.Error("the MachineConfigs were changed")
	}
}

func treeHash(t *testing.T, dir string) string {
	t.Helper()
	h := sha256.New()
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(filepath.Join(dir, path))
		fmt.Fprintf(h, "%s %d\n%s", path, len(raw), raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(h.Sum(nil))
}
