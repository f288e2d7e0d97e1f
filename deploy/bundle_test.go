// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// The objects of the bundle and of its two files are those of the overlay, except for what the
// ClusterServiceVersion expresses: the controller and the permissions that only its account has.
func TestBundle_HasTheObjectsOfKustomize(t *testing.T) {
	dir := charts(t, "v0.0.0")
	files, err := filepath.Glob(filepath.Join(dir, "bundle", "manifests", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var remainder []*unstructured.Unstructured
	for _, file := range []string{"olm-namespace.yaml", "olm-remainder.yaml"} {
		raw, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		remainder = append(remainder, parsed(t, raw)...)
	}
	for _, kind := range []string{"DaemonSet mcs-attest-verifier", "MachineConfig 99-master-mcs-attest-nftables",
		"ConfigMap mcs-attest-config", "Namespace mcs-attest", "ValidatingAdmissionPolicy mcs-attest-records"} {
		kind, name, _ := strings.Cut(kind, " ")
		find(t, remainder, kind, name)
	}
	var csv *unstructured.Unstructured
	got := remainder
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range parsed(t, raw) {
			switch kind := o.GetKind(); {
			case kind == "ClusterServiceVersion":
				csv = o
				continue
			case o.GetNamespace() != "":
				t.Errorf("%s %s has a namespace, which OLM sets", kind, o.GetName())
			case kind != "CustomResourceDefinition" && !strings.HasPrefix(kind, "Cluster"):
				o.SetNamespace(Namespace)
			}
			got = append(got, o)
		}
	}
	if csv == nil {
		t.Fatal("no ClusterServiceVersion")
	}
	got = append(got, controllerOf(t, csv))
	for _, o := range got {
		containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		for _, c := range containers {
			c := c.(map[string]any)
			repository, _, _ := strings.Cut(c["image"].(string), "@sha256:")
			c["image"] = repository + ":latest"
			if err := unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers"); err != nil {
				t.Fatal(err)
			}
		}
	}

	// The permissions of the account, with and without OLM.
	var want []*unstructured.Unstructured
	in, rules := map[string]bool{}, map[string][]string{}
	objects := Objects(t, "openshift")
	for _, o := range objects {
		var b rbac.RoleBinding
		kind := o.GetKind()
		if kind == "ServiceAccount" && o.GetName() == Controller {
			in[kind+o.GetName()] = true
		}
		if kind != "ClusterRoleBinding" && (kind != "RoleBinding" || o.GetNamespace() != Namespace) {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &b); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(b.Subjects, []rbac.Subject{{Kind: "ServiceAccount", Name: Controller, Namespace: Namespace}}) {
			continue
		}
		i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
			return o.GetKind() == b.RoleRef.Kind && o.GetName() == b.RoleRef.Name &&
				(o.GetKind() == "ClusterRole" || o.GetNamespace() == b.Namespace)
		})
		if i < 0 {
			t.Fatalf("no %s %s", b.RoleRef.Kind, b.RoleRef.Name)
		}
		role := objects[i]
		in[kind+o.GetName()], in[role.GetKind()+role.GetName()] = true, true
		list, _, _ := unstructured.NestedSlice(role.Object, "rules")
		rules[kind] = append(rules[kind], texts(t, list)...)
	}
	for _, o := range objects {
		if ns := o.GetNamespace(); !in[o.GetKind()+o.GetName()] || ns != "" && ns != Namespace {
			want = append(want, o)
		}
	}
	same(t, got, want)
	for field, kind := range map[string]string{"permissions": "RoleBinding", "clusterPermissions": "ClusterRoleBinding"} {
		list, _, err := unstructured.NestedSlice(csv.Object, "spec", "install", "spec", field)
		if err != nil || len(list) != 1 || list[0].(map[string]any)["serviceAccountName"] != Controller {
			t.Fatalf("%s: %v (%v)", field, list, err)
		}
		granted, _ := list[0].(map[string]any)["rules"].([]any)
		if a, b := texts(t, granted), rules[kind]; len(b) == 0 || !slices.Equal(a, b) {
			t.Errorf("%s:\n%v\nnot\n%v", field, a, b)
		}
	}
}

// texts returns each value as JSON.
func texts(t *testing.T, values []any) (all []string) {
	t.Helper()
	for _, v := range values {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(raw))
	}
	return all
}

// controllerOf returns the Deployment that OLM makes of a ClusterServiceVersion.
func controllerOf(t *testing.T, csv *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	list, _, err := unstructured.NestedSlice(csv.Object, "spec", "install", "spec", "deployments")
	if err != nil || len(list) != 1 {
		t.Fatalf("deployments: %v (%v)", list, err)
	}
	d := list[0].(map[string]any)
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "spec": d["spec"],
		"metadata": map[string]any{"name": d["name"], "namespace": Namespace, "labels": d["label"]},
	}}
}
