package approver

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
)

var attestations = v1alpha1.GroupVersion.WithResource("machineattestations")

// MachinesByInternalDNS implements [approver.World].
func (w *World) MachinesByInternalDNS(ctx context.Context, name string) ([]approver.Machine, error) {
	return w.machines(ctx, name, w.o.Machines.ByInternalDNS(name))
}

// MachinesByNode implements [approver.World].
func (w *World) MachinesByNode(ctx context.Context, node string) ([]approver.Machine, error) {
	return w.machines(ctx, node, w.o.Machines.ByNode(node))
}

// machines reads those anew that the directory names, which may not be what was
// looked for any more, and looks for stand-ins of the name.
func (w *World) machines(ctx context.Context, name string, refs []machine.Ref) (found []approver.Machine, err error) {
	for _, ref := range refs {
		gv, err := schema.ParseGroupVersion(ref.APIVersion)
		if err != nil {
			return nil, fmt.Errorf("understand Machine %s: %w", ref, err)
		}
		o, err := w.get(ctx, gv.WithResource("machines"), ref.Namespace, ref.Name)
		if err != nil {
			return nil, fmt.Errorf("read Machine %s: %w", ref, err)
		}
		// One that was made anew under its old name may be in the index twice.
		if o == nil || ref.UID != "" && ref.UID != string(o.GetUID()) {
			continue
		}
		m, err := approver.MachineFromObject(o.Object)
		if err != nil {
			return nil, fmt.Errorf("understand Machine %s: %w", ref, err)
		}
		if !slices.ContainsFunc(found, func(f approver.Machine) bool { return f.UID == m.UID }) {
			found = append(found, *m)
		}
	}
	standIns, err := w.standIns(ctx, name)
	return append(found, standIns...), err
}

// ofEitherAPI are the versions of Machines that are looked for where a record does not
// say, or names one that is not served any more.
var ofEitherAPI = []schema.GroupVersion{
	{Group: "machine.openshift.io", Version: "v1beta1"}, {Group: "cluster.x-k8s.io", Version: "v1beta2"}, {Group: "cluster.x-k8s.io", Version: "v1beta1"},
}

// MachineOf implements [approver.World].
func (w *World) MachineOf(ctx context.Context, rec *v1alpha1.MachineAttestation) (*approver.Machine, error) {
	namespace, name, resources := rec.Namespace, rec.Name, []schema.GroupVersionResource{attestations}
	if ref := rec.Spec.MachineRef; ref != nil {
		namespace, name, resources = cmp.Or(ref.Namespace, namespace), ref.Name, nil
		named, err := schema.ParseGroupVersion(ref.APIVersion)
		if err != nil {
			return nil, fmt.Errorf("understand the Machine of %s/%s: %w", rec.Namespace, rec.Name, err)
		}
		for _, gv := range ofEitherAPI {
			if named.Empty() || gv.Group == named.Group {
				resources = append(resources, gv.WithResource("machines"))
			}
		}
	}
	for _, resource := range resources {
		o, err := w.get(ctx, resource, namespace, name)
		if err != nil {
			return nil, fmt.Errorf("read Machine %s/%s: %w", namespace, name, err)
		}
		if o == nil || string(o.GetUID()) != rec.Status.MachineUID {
			continue
		}
		m, err := approver.MachineFromObject(o.Object)
		if err != nil {
			return nil, fmt.Errorf("understand Machine %s/%s: %w", namespace, name, err)
		}
		return m, nil
	}
	return nil, nil
}

// standIns are the MachineAttestations of this name that stand in for a Machine.
func (w *World) standIns(ctx context.Context, name string) (found []approver.Machine, err error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil, nil // no object is called so
	}
	var objects []unstructured.Unstructured
	if slices.Contains(w.o.Namespaces, "*") {
		call, cancel := context.WithTimeout(ctx, w.o.Timeout)
		defer cancel()
		list, err := w.o.Dynamic.Resource(attestations).List(call, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err != nil && !kerrors.IsNotFound(err) {
			return nil, fmt.Errorf("look for MachineAttestation %s: %w", name, err)
		}
		if err == nil {
			objects = list.Items
		}
	} else {
		for _, namespace := range w.o.Namespaces {
			o, err := w.get(ctx, attestations, namespace, name)
			if kerrors.IsForbidden(err) && namespace != w.o.Namespace {
				continue // a stand-in there cannot attest
			}
			if err != nil {
				return nil, fmt.Errorf("look for MachineAttestation %s/%s: %w", namespace, name, err)
			}
			if o != nil {
				objects = append(objects, *o)
			}
		}
	}
	for _, o := range objects {
		// A record is a MachineAttestation, too, and stands in for nobody.
		if m, err := approver.MachineFromObject(o.Object); err == nil && m.StandIn {
			found = append(found, *m)
		}
	}
	return found, nil
}

// get reads an object as it is now; nil if there is none, or no such kind.
func (w *World) get(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, w.o.Timeout)
	defer cancel()
	var o *unstructured.Unstructured
	var err error
	if namespace == "" {
		o, err = w.o.Dynamic.Resource(resource).Get(ctx, name, metav1.GetOptions{})
	} else {
		o, err = w.o.Dynamic.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	if w.absent(ctx, namespace, err) || kerrors.IsForbidden(err) && w.unserved(resource) {
		return nil, nil
	}
	return o, err
}

// unserved reports whether the API does not serve a resource. RBAC is asked first, and
// forbids a resource that none of its rules names, whether it is served or not.
func (w *World) unserved(resource schema.GroupVersionResource) bool {
	list, err := w.o.Client.Discovery().ServerResourcesForGroupVersion(resource.GroupVersion().String())
	if err != nil {
		return kerrors.IsNotFound(err)
	}
	return !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource.Resource })
}

// absent reports whether an error says that there is no such object. Where a
// namespace is not there, nor is the RoleBinding in it, and the answer is
// "forbidden".
func (w *World) absent(ctx context.Context, namespace string, err error) bool {
	if namespace == "" || !kerrors.IsForbidden(err) {
		return kerrors.IsNotFound(err)
	}
	_, err = w.o.Client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	return kerrors.IsNotFound(err)
}
