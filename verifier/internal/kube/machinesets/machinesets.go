// SPDX-License-Identifier: Apache-2.0

// Package machinesets lists the objects that create machines, with the Secret of each that has the pointer config
// of its machines. The controllers of pointer configs use it.
package machinesets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
)

// MachineSet is an object that creates machines.
type MachineSet struct {
	Kind string // with its group
	Name client.ObjectKey
	// UserData has no name if the object names no Secret.
	UserData client.ObjectKey
}

// MachineAPI is the kind of the MachineSets by which the machine-config-operator decides whether it creates a CA.
const MachineAPI = "MachineSet.machine.openshift.io"

// kinds lists the kinds. The first version that the cluster serves is used. providerSpec is the path of a
// providerSpec's value, and name the path of a Secret's name.
var kinds = []struct {
	group, kind        string
	versions           []string
	providerSpec, name []string
}{
	{"machine.openshift.io", "MachineSet", []string{"v1beta1"},
		[]string{"spec", "template", "spec", "providerSpec", "value"}, nil},
	{"machine.openshift.io", "ControlPlaneMachineSet", []string{"v1"},
		[]string{"spec", "template", "machines_v1beta1_machine_openshift_io", "spec", "providerSpec", "value"}, nil},
	{"cluster.x-k8s.io", "MachineSet", []string{"v1beta2", "v1beta1"},
		nil, []string{"spec", "template", "spec", "bootstrap", "dataSecretName"}},
}

// List lists the objects in namespaces; "*" means all. It skips namespaces that do not exist. With an error, it returns
// the objects of the namespaces that could be read. unserved has the kinds that the API server did not have. One such
// answer may come from an API server that is starting, so it does not prove that no object exists.
func List(ctx context.Context, c client.Reader, namespaces []string) (all []MachineSet, unserved []string, err error) {
	var failed []error
	for _, k := range kinds {
		for _, namespace := range namespaces {
			if namespace == "*" {
				namespace = ""
			}
			served := false
			for _, version := range k.versions {
				list := &unstructured.UnstructuredList{}
				list.SetGroupVersionKind(schema.GroupVersionKind{Group: k.group, Version: version, Kind: k.kind + "List"})
				err := c.List(ctx, list, client.InNamespace(namespace))
				if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
					continue
				}
				served = true
				if err != nil && !absent(ctx, c, namespace, err) {
					failed = append(failed, fmt.Errorf("list %s.%s in %s: %w", k.kind, k.group, namespace, err))
				}
				for _, o := range list.Items {
					one := MachineSet{Kind: k.kind + "." + k.group, Name: client.ObjectKeyFromObject(&o)}
					if k.name != nil {
						one.UserData.Name, _, _ = unstructured.NestedString(o.Object, k.name...)
					} else {
						value, _, _ := unstructured.NestedFieldNoCopy(o.Object, k.providerSpec...)
						providerSpec, _ := value.(map[string]any)
						one.UserData.Namespace, one.UserData.Name = machine.UserDataSecret(providerSpec)
					}
					one.UserData.Namespace = cmp.Or(one.UserData.Namespace, one.Name.Namespace)
					all = append(all, one)
				}
				break
			}
			if kind := k.kind + "." + k.group; !served && !slices.Contains(unserved, kind) {
				unserved = append(unserved, kind)
			}
		}
	}
	return all, unserved, errors.Join(failed...)
}

// absent reports whether an error means that a namespace does not exist. Such a namespace has no RoleBinding either,
// so the API server answers "forbidden".
func absent(ctx context.Context, c client.Reader, namespace string, err error) bool {
	return namespace != "" && apierrors.IsForbidden(err) &&
		apierrors.IsNotFound(c.Get(ctx, client.ObjectKey{Name: namespace}, new(corev1.Namespace)))
}
