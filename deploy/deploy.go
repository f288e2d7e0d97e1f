// Package deploy gives tests what an administrator applies: the manifests of an
// overlay, as kustomize renders them.
package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// Overlays are those that can be applied as they are.
var Overlays = []string{"openshift", "kubernetes"}

// Dir is the folder deploy of this tree.
func Dir() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}

// Rendered is an overlay, rendered by the kustomize in kubectl.
func Rendered(t cluster.TB, overlay string) []byte {
	t.Helper()
	bin, err := cluster.Binaries(t.Logf)
	if err != nil {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "kubectl"), "kustomize", filepath.Join(Dir(), "overlays", overlay))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl kustomize %s: %v\n%s", overlay, err, &stderr)
	}
	return out
}

// Objects are the objects of a rendered overlay, in its order.
func Objects(t cluster.TB, overlay string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := parse(Rendered(t, overlay))
	if err != nil {
		t.Fatalf("overlay %s: %v", overlay, err)
	}
	return objects
}

func parse(manifests []byte) (objects []*unstructured.Unstructured, err error) {
	for in := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096); ; {
		var o unstructured.Unstructured
		if err := in.Decode(&o.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		if o.Object != nil {
			objects = append(objects, &o)
		}
	}
}

// Prerequisites are what an overlay expects of its cluster and a test's cluster
// does not have by itself: the namespaces that its objects are in.
func Prerequisites(objects []*unstructured.Unstructured) string {
	seen := map[string]bool{"": true, "default": true, "kube-system": true}
	var out strings.Builder
	for _, o := range objects {
		if ns := o.GetNamespace(); !seen[ns] {
			seen[ns] = true
			fmt.Fprintf(&out, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", ns)
		}
	}
	return out.String()
}

// Apply applies an overlay as the administrator, with what it expects. Objects of
// kinds that the cluster does not have (the Prometheus operator's, perhaps) fail
// the test.
func Apply(t cluster.TB, c *cluster.Cluster, overlay string) {
	t.Helper()
	rendered := Rendered(t, overlay)
	objects, err := parse(rendered)
	if err != nil {
		t.Fatalf("overlay %s: %v", overlay, err)
	}
	c.KubectlApply(t, Prerequisites(objects))
	c.InstallOwn(t)
	c.KubectlApply(t, string(rendered))
}
