// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mcs-attest/mcs-attest/testvm/binaries"
	"github.com/mcs-attest/mcs-attest/testvm/cluster"
)

// charts makes the chart and the bundle of this tree.
func charts(t *testing.T, version string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := binaries.Charts(version, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// helm runs Helm with a home folder of its own, and with a cluster if there is one.
func helm(t *testing.T, c *cluster.Cluster, args ...string) (string, error) {
	t.Helper()
	program, err := binaries.Helm(t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "KUBECONFIG=/dev/null")
	if c != nil {
		cmd.Env = append(cmd.Env, "KUBECONFIG="+c.Kubeconfig("admin"))
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, &stderr)
	}
	return stdout.String(), nil
}

// kustomize renders an overlay with components and patches, as an administrator's overlay does.
func kustomize(t *testing.T, overlay string, components, patches []string) []*unstructured.Unstructured {
	t.Helper()
	bin, err := binaries.Kubernetes(t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	text := "resources: [../deploy/overlays/" + overlay + "]\n"
	for kind, paths := range map[string][]string{"components": components, "patches": patches} {
		for i, p := range paths {
			if i == 0 {
				text += kind + ":\n"
			}
			if kind == "patches" {
				text += "- path: ../deploy/components/" + p + "\n"
			} else {
				text += "- ../deploy/components/" + p + "\n"
			}
		}
	}
	mine := filepath.Join(dir, "my-cluster")
	if err := os.Mkdir(mine, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mine, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "kubectl"), "kustomize",
		"--load-restrictor=LoadRestrictionsNone", mine)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl kustomize: %v\n%s\n%s", err, text, &stderr)
	}
	return parsed(t, out)
}

func parsed(t *testing.T, manifests []byte) []*unstructured.Unstructured {
	t.Helper()
	objects, err := parse(manifests)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// same compares two sets of objects.
func same(t *testing.T, got, want []*unstructured.Unstructured) {
	t.Helper()
	index := func(objects []*unstructured.Unstructured) map[string]string {
		all := map[string]string{}
		for _, o := range objects {
			raw, err := json.MarshalIndent(o.Object, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			key := o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
			if all[key] != "" {
				t.Errorf("%s twice", key)
			}
			all[key] = string(raw)
		}
		return all
	}
	a, b := index(got), index(want)
	for key, text := range b {
		switch other := a[key]; {
		case other == "":
			t.Errorf("%s is missing", key)
		case other != text:
			t.Errorf("%s is\n%s\nnot\n%s", key, other, text)
		}
	}
	for key := range a {
		if b[key] == "" {
			t.Errorf("%s is in no overlay", key)
		}
	}
}

// selection is one way to set the values of the chart, and the same with kustomize.
type selection struct {
	overlay, cloud string
	values         []string // components.NAME=true
	components     []string // their folders
}

// selections returns: nothing, each component, each cloud, and each cloud with all components.
func selections() (all []selection) {
	folders := map[string]map[string]string{
		"openshift": {
			"approver": "approver", "cap": "cap", "certificates": "certificates", "credential": "credential",
			"nodeCertificate": "node-certificate", "render": "render", "userData": "user-data",
		},
		"kubernetes": {
			"approver": "approver-kubernetes", "credential": "credential-kubernetes", "monitoring": "monitoring",
			"nodeCertificate": "node-certificate",
		},
	}
	for _, overlay := range Overlays {
		every := selection{overlay: overlay}
		all = append(all, every)
		for value, folder := range folders[overlay] {
			every.values = append(every.values, value)
			every.components = append(every.components, folder)
			all = append(all, selection{overlay: overlay, values: []string{value}, components: []string{folder}})
		}
		for _, cloud := range []string{"aws", "azure", "gcp", "vsphere"} {
			every.cloud = cloud
			all = append(all, selection{overlay: overlay, cloud: cloud}, every)
		}
	}
	return all
}

// The chart has no object of its own. What it adds is in docs/deploying.md: the policy that keeps
// the CRDs, and the checksum of the configuration.
func TestChart_HasTheObjectsOfKustomize(t *testing.T) {
	chart := filepath.Join(charts(t, "v0.0.0"), "mcs-attest")
	for _, s := range selections() {
		name := strings.Join(append([]string{s.overlay, cmp.Or(s.cloud, "none")}, s.values...), ",")
		t.Run(name, func(t *testing.T) {
			args := []string{"mcs-attest", chart, "-n", "mcs-attest", "--set", "namespace.create=true,image.tag=latest",
				"--set", "platform=" + s.overlay + ",cloud=" + s.cloud,
				"--set-file", "config=overlays/" + s.overlay + "/mcs-attest.yaml"}
			for _, v := range s.values {
				args = append(args, "--set", "components."+v+"=true")
			}
			out, err := helm(t, nil, append([]string{"template"}, args...)...)
			if err != nil {
				t.Fatal(err)
			}
			got := parsed(t, []byte(out))
			for _, o := range got {
				switch o.GetKind() {
				case "CustomResourceDefinition":
					removeAnnotation(t, o, "helm.sh/resource-policy", "metadata", "annotations")
				case "DaemonSet", "Deployment":
					removeAnnotation(t, o, "checksum/config", "spec", "template", "metadata", "annotations")
				}
			}
			components, patches := s.components, []string(nil)
			switch {
			case s.cloud == "":
			case s.overlay == "openshift":
				components = append(slices.Clone(components), s.cloud)
			default:
				patches = []string{s.cloud + "/daemonset.yaml"}
			}
			same(t, got, kustomize(t, s.overlay, components, patches))
		})
	}
}

func removeAnnotation(t *testing.T, o *unstructured.Unstructured, name string, path ...string) {
	t.Helper()
	annotations, _, err := unstructured.NestedMap(o.Object, path...)
	if err != nil || annotations[name] == nil {
		t.Errorf("%s %s has no annotation %s (%v)", o.GetKind(), o.GetName(), name, err)
	}
	delete(annotations, name)
	if err := unstructured.SetNestedMap(o.Object, annotations, path...); err != nil {
		t.Fatal(err)
	}
}

func TestChart_PassesHelmsLinter(t *testing.T) {
	chart := filepath.Join(charts(t, "v0.3.0-rc.1"), "mcs-attest")
	for _, overlay := range Overlays {
		out, err := helm(t, nil, "lint", "--strict", chart, "--namespace", "mcs-attest", "--set", "platform="+overlay,
			"--set-file", "config=overlays/"+overlay+"/mcs-attest.yaml")
		if err != nil || !strings.Contains(out, "1 chart(s) linted, 0 chart(s) failed") {
			t.Errorf("%s: %v\n%s", overlay, err, out)
		}
	}
}

func TestChart_RejectsValuesThatCannotWork(t *testing.T) {
	chart := filepath.Join(charts(t, "v0.0.0"), "mcs-attest")
	config := []string{"--set-file", "config=overlays/openshift/mcs-attest.yaml"}
	for why, args := range map[string][]string{
		"config is required":                     {"-n", "mcs-attest"},
		"works only in the namespace mcs-attest": append([]string{"-n", "default"}, config...),
		"/platform":                              append([]string{"-n", "mcs-attest", "--set", "platform=aws"}, config...),
		"/components/render": append([]string{"-n", "mcs-attest",
			"--set", "platform=kubernetes,components.render=true"}, config...),
		"components.aprover": append([]string{"-n", "mcs-attest", "--set", "components.aprover=true"}, config...),
	} {
		_, err := helm(t, nil, append([]string{"template", "mcs-attest", chart}, args...)...)
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v", why, err)
		}
	}
}
