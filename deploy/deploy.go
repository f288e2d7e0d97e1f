// SPDX-License-Identifier: Apache-2.0

// Package deploy gives tests the objects that an administrator applies: the manifests of
// an overlay, rendered by kustomize.
package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// The accounts of the verifier: of the processes that serve, and of the controller.
const (
	Namespace      = "mcs-attest"
	ServiceAccount = "mcs-attest-verifier"
	Controller     = "mcs-attest-controller"
)

// Overlays are the overlays that can be applied unchanged.
var Overlays = []string{"openshift", "kubernetes"}

// Dir returns the folder deploy of this tree.
func Dir(t cluster.TB) string {
	t.Helper()
	root, err := binaries.Root()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return filepath.Join(root, "deploy")
}

// Rendered returns an overlay, rendered by the kustomize in kubectl.
func Rendered(t cluster.TB, overlay string) []byte {
	t.Helper()
	bin, err := binaries.Kubernetes(t.Logf)
	if err != nil {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "kubectl"), "kustomize", filepath.Join(Dir(t), "overlays", overlay))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl kustomize %s: %v\n%s", overlay, err, &stderr)
	}
	return out
}

// Objects returns the objects of a rendered overlay, in order.
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

// Prerequisites returns what an overlay requires and a test's cluster does not have: the
// namespaces of its objects.
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

// Apply applies an overlay as the administrator, with its prerequisites. The test fails if
// the cluster lacks the kind of an object, for example the Prometheus operator's.
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
