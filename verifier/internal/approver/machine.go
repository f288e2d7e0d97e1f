package approver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
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
	return w.machines(ctx, name, w.o.Machines.ByInternalDNS(name), func(m *approver.Machine) bool {
		return slices.ContainsFunc(m.Addresses, func(a corev1.NodeAddress) bool {
			return a.Type == corev1.NodeInternalDNS && normal(a.Address) == normal(name)
		})
	})
}

// MachinesByNode implements [approver.World].
func (w *World) MachinesByNode(ctx context.Context, node string) ([]approver.Machine, error) {
	return w.machines(ctx, node, w.o.Machines.ByNode(node), func(m *approver.Machine) bool { return m.NodeRef == node })
}

// normal is the form in which names of hosts are compared.
func normal(name string) string { return strings.TrimSuffix(strings.ToLower(name), ".") }

// machines reads those anew that the directory names, and drops which are not what
// was looked for any more; then it looks for stand-ins of the name.
func (w *World) machines(ctx context.Context, name string, refs []machine.Ref, is func(*approver.Machine) bool) (found []approver.Machine, err error) {
	for _, ref := range refs {
		gv, err := schema.ParseGroupVersion(ref.APIVersion)
		if err != nil {
			return nil, fmt.Errorf("understand Machine %s: %w", ref, err)
		}
		o, err := w.get(ctx, gv.WithResource("machines"), ref.Namespace, ref.Name)
		if err != nil {
			return nil, fmt.Errorf("read Machine %s: %w", ref, err)
		}
		if o == nil {
			continue
		}
		m, err := machineOf(o)
		if err != nil {
			return nil, fmt.Errorf("understand Machine %s: %w", ref, err)
		}
		if is(m) {
			found = append(found, *m)
		}
	}
	standIns, err := w.standIns(ctx, name)
	return append(found, standIns...), err
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
			if err != nil {
				return nil, fmt.Errorf("look for MachineAttestation %s/%s: %w", namespace, name, err)
			}
			if o != nil {
				objects = append(objects, *o)
			}
		}
	}
	for _, o := range objects {
		if m, ok := standIn(&o); ok {
			found = append(found, m)
		}
	}
	return found, nil
}

// standIn is the machine that a MachineAttestation stands in for, if it does. Where
// it is recorded that the machine has joined, that is its Node.
func standIn(o *unstructured.Unstructured) (approver.Machine, bool) {
	pool, _, _ := unstructured.NestedString(o.Object, "spec", "pool")
	ref, _, _ := unstructured.NestedMap(o.Object, "spec", "machineRef")
	if pool == "" || len(ref) > 0 {
		return approver.Machine{}, false
	}
	return approver.Machine{
		APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID()),
		Created: o.GetCreationTimestamp().Time, Deleting: o.GetDeletionTimestamp() != nil, StandIn: true,
	}, true
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
	if kerrors.IsNotFound(err) {
		return nil, nil
	}
	return o, err
}

// machineOf reads a Machine of either API.
func machineOf(o *unstructured.Unstructured) (*approver.Machine, error) {
	raw, err := o.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var in struct {
		Spec struct {
			ProviderID       *string `json:"providerID"`
			AuthoritativeAPI string  `json:"authoritativeAPI"`
		} `json:"spec"`
		Status struct {
			NodeRef *struct {
				Name string `json:"name"`
			} `json:"nodeRef"`
			Addresses        []corev1.NodeAddress `json:"addresses"`
			AuthoritativeAPI string               `json:"authoritativeAPI"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, err
	}
	m := &approver.Machine{
		APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID()),
		Created: o.GetCreationTimestamp().Time, Deleting: o.GetDeletionTimestamp() != nil, Addresses: in.Status.Addresses,
	}
	if in.Spec.ProviderID != nil {
		m.ProviderID = strings.TrimSpace(*in.Spec.ProviderID)
	}
	if in.Status.NodeRef != nil {
		m.NodeRef = in.Status.NodeRef.Name
	}
	if strings.HasPrefix(m.APIVersion, "machine.openshift.io/") {
		for _, a := range []string{"MachineAPI", in.Spec.AuthoritativeAPI, in.Status.AuthoritativeAPI} {
			if a != "" {
				m.Authority = a
			}
		}
	}
	return m, nil
}
