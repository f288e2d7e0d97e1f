package records

import (
	"context"
	"errors"
	"fmt"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
)

// ErrMachineThere means that a record was not deleted because its Machine exists.
var ErrMachineThere = errors.New("the Machine still exists")

// Delete deletes the record of a Machine that was deleted, and releases its claims.
// It looks in these namespaces, or everywhere if there are none. The API is asked
// whether the Machine was deleted: if not, nothing happens and the error is
// [ErrMachineThere]. A stand-in's record is itself: only its claims are left.
//
// An enrollment is no record, whatever its status says: a record has its Machine as its owner.
func (r *Records) Delete(ctx context.Context, uid string, namespaces ...string) error {
	found, err := r.named(ctx, uid, namespaces)
	if err != nil {
		return err
	}
	for i := range found {
		a := &found[i]
		if a.Spec.MachineRef == nil || a.Status.MachineUID != "" && a.Status.MachineUID != uid || !owns(uid, a) {
			r.o.Log.Error("an object with the name of a record is not one, and stays", "object", a.Namespace+"/"+a.Name)
			continue
		}
		ref := *a.Spec.MachineRef
		if ref.Namespace == "" {
			ref.Namespace = a.Namespace
		}
		gone, err := r.gone(ctx, ref, uid)
		if err != nil {
			return err
		}
		if !gone {
			return fmt.Errorf("record %s/%s: %w", a.Namespace, a.Name, ErrMachineThere)
		}
		if r.o.Revoke != nil {
			// Before the record that names them is deleted.
			ctx, cancel := context.WithTimeout(ctx, 4*r.o.Timeout)
			err := r.o.Revoke(ctx, uid, a.Status.Credentials)
			cancel()
			if err != nil {
				return err
			}
		}
		err = r.do(ctx, "delete", attestations, func(ctx context.Context) error {
			return r.o.Client.Delete(ctx, a, client.Preconditions{UID: &a.UID})
		})
		if err != nil && !kerrors.IsNotFound(err) {
			return unavailable(err, "delete record %s/%s", a.Namespace, a.Name)
		}
	}
	return r.ReleaseClaims(ctx, uid)
}

// named returns the objects with a record's name. One that cannot be decoded is not
// returned: it stays.
func (r *Records) named(ctx context.Context, uid string, namespaces []string) ([]v1alpha1.MachineAttestation, error) {
	if len(namespaces) == 0 {
		found, _, err := list[v1alpha1.MachineAttestation](ctx, r, v1alpha1.KindMachineAttestation, attestations,
			client.MatchingFields{"metadata.name": uid})
		return found, unavailable(err, "look for the record of %s", uid)
	}
	var found []v1alpha1.MachineAttestation
	for _, namespace := range namespaces {
		o, err := r.get(ctx, client.ObjectKey{Namespace: namespace, Name: uid})
		if Missing(err) {
			continue
		}
		if err != nil {
			return nil, unavailable(err, "look for the record of %s", uid)
		}
		a, err := decode(o)
		if err != nil {
			r.o.Log.Error("an object with the name of a record is not one, and stays", "object", namespace+"/"+uid, "error", err)
			continue
		}
		found = append(found, *a)
	}
	return found, nil
}

// gone asks the API whether the Machine was deleted. An API version that was recorded
// may no longer be served, and with a namespace its RoleBinding is deleted, too.
func (r *Records) gone(ctx context.Context, ref v1alpha1.MachineReference, uid string) (bool, error) {
	if m, ok := r.o.Machine(uid); ok && m.UID == uid {
		ref = machineRef(m)
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || gv.Empty() || ref.Namespace == "" || ref.Name == "" {
		return false, unavailable(fmt.Errorf("%q does not name it", ref.APIVersion), "Machine %s/%s", ref.Namespace, ref.Name)
	}
	key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	var o *metav1.PartialObjectMetadata
	for _, version := range versionsOf(gv, ref.Kind) {
		o, err = r.metadata(ctx, gv.Group, version, ref.Kind, key)
		if unserved := meta.IsNoMatchError(err) || kerrors.IsNotFound(err) && !Missing(err); !unserved {
			break
		}
	}
	if kerrors.IsForbidden(err) && r.namespaceGone(ctx, ref.Namespace) || Missing(err) {
		return true, nil
	}
	if err != nil {
		return false, unavailable(err, "does Machine %s/%s exist", ref.Namespace, ref.Name)
	}
	return string(o.UID) != uid, nil
}

// versionsOf returns the API versions in which the objects of a kind may be found: the
// one asked for, and the others that Machines are known in. They are the same objects,
// so any version that is served has the answer.
func versionsOf(gv schema.GroupVersion, kind string) []string {
	all := []string{gv.Version}
	if kind != "Machine" {
		return all
	}
	for _, version := range machineVersions[gv.Group] {
		if version != gv.Version {
			all = append(all, version)
		}
	}
	return all
}

// namespaceGone reports whether the API answers that there is no such namespace. No
// answer is not that one.
func (r *Records) namespaceGone(ctx context.Context, name string) bool {
	_, err := r.metadata(ctx, "", "v1", "Namespace", client.ObjectKey{Name: name})
	return Missing(err)
}

// metadata reads an object of a kind that [NewClient] knows.
func (r *Records) metadata(
	ctx context.Context, group, version, kind string, key client.ObjectKey,
) (*metav1.PartialObjectMetadata, error) {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: kind})
	resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
	err := r.do(ctx, "get", resource.Resource, func(ctx context.Context) error { return r.o.Client.Get(ctx, key, o) })
	return o, err
}
