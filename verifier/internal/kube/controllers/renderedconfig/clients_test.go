// SPDX-License-Identifier: Apache-2.0

package renderedconfig

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/coreos/ignition/v2/config/v3_5"
	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/mcs-attest/mcs-attest/verifier/internal/poolconfig/poolconfigtest"
)

// A25: a client that is no node reads a rendered config through the API. It has only the
// ClusterRole of docs/clients.md.
func TestDocs_ClientReadsTheRenderedConfigThroughTheAPI(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "..", "docs", "clients.md"))
	if err != nil {
		t.Fatal(err)
	}
	role := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindSubmatch(page)
	if role == nil {
		t.Fatal("the page has no ClusterRole")
	}
	c, _ := newOpenShift(t)
	c.KubectlApply(t, string(role[1])+`---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: tool}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: rendered-config-reader}
subjects: [{kind: ServiceAccount, name: tool, namespace: default}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: tool, namespace: default}
---
`+poolconfigtest.Pool+"---\n"+poolconfigtest.MachineConfig("rendered-worker-1", "/etc/rendered", "text", ""))
	c.Kubectl(t, "patch", "machineconfigpool", "worker", "--type=merge", "-p", `{"spec":{"configuration":{"name":"rendered-worker-1"}}}`)
	tool, err := dynamic.NewForConfig(c.ServiceAccount(t, "default", "tool"))
	if err != nil {
		t.Fatal(err)
	}
	pools := mcfgv1.GroupVersion.WithResource("machineconfigpools")
	configs := mcfgv1.GroupVersion.WithResource("machineconfigs")
	ctx := t.Context()
	var pool *unstructured.Unstructured
	poolconfigtest.Eventually(t, "the role is in force", func() error {
		pool, err = tool.Resource(pools).Get(ctx, "worker", metav1.GetOptions{})
		return err
	})
	name, _, _ := unstructured.NestedString(pool.Object, "spec", "configuration", "name")
	rendered, err := tool.Resource(configs).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, _, _ := unstructured.NestedMap(rendered.Object, "spec", "config")
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	parsed, report, err := v3_5.ParseCompatibleVersion(raw)
	if err != nil || len(parsed.Storage.Files) != 1 || parsed.Storage.Files[0].Path != "/etc/rendered" {
		t.Errorf("%v %s\n%s", err, report, raw)
	}

	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	rendered.SetLabels(map[string]string{"mine": "now"})
	_, changed := tool.Resource(configs).Update(ctx, rendered, metav1.UpdateOptions{})
	_, listed := tool.Resource(secrets).Namespace("openshift-machine-config-operator").List(ctx, metav1.ListOptions{})
	_, read := tool.Resource(secrets).Namespace("openshift-machine-config-operator").Get(ctx, "node-bootstrapper-token",
		metav1.GetOptions{})
	for what, err := range map[string]error{"change a MachineConfig": changed, "list Secrets": listed,
		"read the bootstrap credential": read} {
		if !kerrors.IsForbidden(err) {
			t.Errorf("it may %s: %v", what, err)
		}
	}
}
