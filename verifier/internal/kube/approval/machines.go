// SPDX-License-Identifier: Apache-2.0

package approval

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/approver"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
)

// machineAPIs lists the two APIs of Machines with the versions of each, the preferred one first.
var machineAPIs = [][]schema.GroupVersion{
	{{Group: "machine.openshift.io", Version: "v1beta1"}},
	{{Group: "cluster.x-k8s.io", Version: "v1beta2"}, {Group: "cluster.x-k8s.io", Version: "v1beta1"}},
}

// MachinesByInternalDNS implements [approver.Cluster].
func (r *Reader) MachinesByInternalDNS(ctx context.Context, name string) ([]approver.Machine, error) {
	return r.machines(ctx, name, r.o.Machines.ByInternalDNS(name))
}

// MachinesByNode implements [approver.Cluster].
func (r *Reader) MachinesByNode(ctx context.Context, node string) ([]approver.Machine, error) {
	return r.machines(ctx, node, r.o.Machines.ByNode(node))
}

// machines reads the Machines in refs, and finds the stand-ins with the name.
func (r *Reader) machines(ctx context.Context, name string, refs []machine.Ref) (found []approver.Machine, err error) {
	for _, ref := range refs {
		gv, err := schema.ParseGroupVersion(ref.APIVersion)
		if err != nil {
			return nil, fmt.Errorf("parse the API version of Machine %s: %w", ref, err)
		}
		m, err := r.machine(ctx, gv, ref.Namespace, ref.Name)
		if err != nil {
			return nil, err
		}
		// After a Machine was deleted and created again, the directory may still have the deleted one.
		if m == nil || ref.UID != "" && ref.UID != m.UID {
			continue
		}
		if !slices.ContainsFunc(found, func(f approver.Machine) bool { return f.UID == m.UID }) {
			found = append(found, *m)
		}
	}
	standIns, err := r.standIns(ctx, name)
	return append(found, standIns...), err
}

// machine reads a Machine of a version that is chosen at run time. It returns nil if the Machine does not exist.
func (l live) machine(ctx context.Context, gv schema.GroupVersion, namespace, name string) (*approver.Machine, error) {
	o := new(unstructured.Unstructured)
	o.SetGroupVersionKind(gv.WithKind("Machine"))
	if ok, err := l.get(ctx, namespace, name, o); !ok {
		return nil, err
	}
	m, err := approver.MachineFromObject(o.Object)
	if err != nil {
		return nil, fmt.Errorf("parse Machine %s/%s: %w", namespace, name, err)
	}
	return m, nil
}

// MachineOf implements [approver.Cluster].
func (r *Reader) MachineOf(ctx context.Context, rec *v1alpha1.MachineAttestation) (*approver.Machine, error) {
	ref := rec.Spec.MachineRef
	if ref == nil {
		a := newAttestation()
		if ok, err := r.get(ctx, rec.Namespace, rec.Name, a); !ok || string(a.GetUID()) != rec.Status.MachineUID {
			return nil, err
		}
		return approver.MachineFromObject(a.Object)
	}
	named, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, fmt.Errorf("parse the API version of the Machine of %s/%s: %w", rec.Namespace, rec.Name, err)
	}
	for _, api := range machineAPIs {
		for _, gv := range api { // the record may name a version that is no longer served
			if !named.Empty() && gv.Group != named.Group {
				continue
			}
			m, err := r.machine(ctx, gv, cmp.Or(ref.Namespace, rec.Namespace), ref.Name)
			if err != nil || m != nil && m.UID == rec.Status.MachineUID {
				return m, err
			}
		}
	}
	return nil, nil
}

// newAttestation returns an empty MachineAttestation. Like [newAttestations], it is not decoded.
func newAttestation() *unstructured.Unstructured {
	a := new(unstructured.Unstructured)
	a.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindMachineAttestation))
	return a
}

// standIns returns the MachineAttestations with this name that stand in for a Machine.
func (r *Reader) standIns(ctx context.Context, name string) (found []approver.Machine, err error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil, nil // no object has such a name
	}
	all := newAttestations()
	for _, namespace := range r.o.Namespaces {
		if namespace == "" {
			err = r.List(ctx, all, client.MatchingFields{"metadata.name": name})
			if err != nil && !r.absent(ctx, "", err) {
				return nil, fmt.Errorf("list MachineAttestations called %s: %w", name, err)
			}
			break
		}
		a := newAttestation()
		ok, err := r.get(ctx, namespace, name, a)
		if kerrors.IsForbidden(err) && namespace != r.o.Namespace {
			continue // a stand-in there cannot attest
		}
		if err != nil {
			return nil, err
		}
		if ok {
			all.Items = append(all.Items, *a)
		}
	}
	for i := range all.Items {
		// A record is a MachineAttestation as well, but does not stand in for a Machine.
		if m, err := approver.MachineFromObject(all.Items[i].Object); err == nil && m.Name == name {
			found = append(found, *m)
		}
	}
	return found, nil
}
