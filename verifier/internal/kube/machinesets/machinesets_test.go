// SPDX-License-Identifier: Apache-2.0

package machinesets

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func object(apiVersion, kind, namespace, name string, spec map[string]any) client.Object {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind,
		"metadata": map[string]any{"namespace": namespace, "name": name}, "spec": spec}}
}

func provider(value any) map[string]any {
	spec := map[string]any{"providerSpec": map[string]any{"value": value}}
	return map[string]any{"template": map[string]any{"spec": spec}}
}

func TestList(t *testing.T) {
	reference := func(name, namespace string) map[string]any {
		return map[string]any{"name": name, "namespace": namespace}
	}
	c := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithObjects(
		object("machine.openshift.io/v1beta1", "MachineSet", "a", "cloud",
			provider(map[string]any{"userDataSecret": map[string]any{"name": "worker-user-data"}})),
		object("machine.openshift.io/v1beta1", "MachineSet", "a", "metal",
			provider(map[string]any{"userData": reference("worker-user-data-managed", "")})),
		object("machine.openshift.io/v1beta1", "MachineSet", "a", "metal-elsewhere",
			provider(map[string]any{"userData": reference("worker-user-data-managed", "b")})),
		object("machine.openshift.io/v1beta1", "MachineSet", "a", "none", provider("text")),
		object("machine.openshift.io/v1beta1", "MachineSet", "b", "other", provider(nil)),
		object("machine.openshift.io/v1", "ControlPlaneMachineSet", "a", "cluster", map[string]any{"template": map[string]any{
			"machines_v1beta1_machine_openshift_io": provider(
				map[string]any{"userDataSecret": map[string]any{"name": "master-user-data"}})["template"]}}),
		object("cluster.x-k8s.io/v1beta2", "MachineSet", "a", "capi", map[string]any{"template": map[string]any{
			"spec": map[string]any{"bootstrap": map[string]any{"dataSecretName": "infra-user-data"}}}}),
	).Build()
	for _, namespaces := range [][]string{{"a"}, {"*"}} {
		sets, unserved, err := List(t.Context(), c, namespaces)
		if err != nil || len(unserved) > 0 {
			t.Fatal(unserved, err)
		}
		var got []string
		for _, s := range sets {
			got = append(got, s.Kind+" "+s.Name.String()+": "+s.UserData.String())
		}
		want := []string{
			MachineAPI + " a/cloud: a/worker-user-data",
			MachineAPI + " a/metal: a/worker-user-data-managed",
			MachineAPI + " a/metal-elsewhere: b/worker-user-data-managed",
			MachineAPI + " a/none: a/",
			"ControlPlaneMachineSet.machine.openshift.io a/cluster: a/master-user-data",
			"MachineSet.cluster.x-k8s.io a/capi: a/infra-user-data",
		}
		if namespaces[0] == "*" {
			want = slices.Insert(want, 4, MachineAPI+" b/other: b/")
		}
		if !slices.Equal(got, want) {
			t.Errorf("in %v: %q, want %q", namespaces, got, want)
		}
	}
}

func TestList_ReportsErrors(t *testing.T) {
	c := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("out of order")
		},
	}).Build()
	if _, _, err := List(t.Context(), c, []string{"a"}); err == nil {
		t.Error("no error")
	}
}

// A namespace that does not exist has no RoleBinding, and one that is forbidden hides no other.
func TestList_ContinuesAfterAForbiddenNamespace(t *testing.T) {
	set := object("machine.openshift.io/v1beta1", "MachineSet", "a", "one", provider(nil))
	for name, exists := range map[string]bool{"forbidden": true, "does not exist": false} {
		b := fake.NewClientBuilder().WithObjects(set)
		if exists {
			b = b.WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
		}
		c := b.WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch,
			list client.ObjectList, opts ...client.ListOption) error {
			var o client.ListOptions
			if o.ApplyOptions(opts); o.Namespace == "x" {
				return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no RoleBinding"))
			}
			return c.List(ctx, list, opts...)
		}}).Build()
		sets, _, err := List(t.Context(), c, []string{"x", "a"})
		if len(sets) != 1 || (err != nil) != exists {
			t.Errorf("%s: %v, %v", name, sets, err)
		}
	}
}

// A kind without any served version is reported once, and one with another served version is not.
func TestList_ReportsKindsThatAreNotServed(t *testing.T) {
	c := fake.NewClientBuilder().WithObjects(
		object("machine.openshift.io/v1beta1", "MachineSet", "a", "one", provider(nil)),
	).WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch,
		list client.ObjectList, opts ...client.ListOption) error {
		switch gvk := list.GetObjectKind().GroupVersionKind(); {
		case gvk.Version == "v1beta2":
			return &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
		case gvk.Kind == "ControlPlaneMachineSetList":
			return apierrors.NewNotFound(schema.GroupResource{Group: gvk.Group}, "")
		}
		return c.List(ctx, list, opts...)
	}}).Build()
	sets, unserved, err := List(t.Context(), c, []string{"a", "b"})
	if want := []string{"ControlPlaneMachineSet.machine.openshift.io"}; len(sets) != 1 || err != nil ||
		!slices.Equal(unserved, want) {
		t.Errorf("%v, %q, %v; want %q", sets, unserved, err, want)
	}
}
