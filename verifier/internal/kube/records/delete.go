// SPDX-License-Identifier: Apache-2.0

package records

import (
	"cmp"
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

// Delete deletes the record of a deleted Machine, and releases its claims. It searches these
// namespaces, or all of them if none are given. It first asks the API for the Machine. If the Machine
// exists, Delete changes nothing and returns [ErrMachineThere]. The record of a stand-in is the
// stand-in itself, so only its claims remain to be deleted.
//
// An enrollment is not a record, whatever its status says: a record has its Machine as its owner.
func (r *Records) Delete(ctx context.Context, uid string, namespaces ...string) error {
	found, err := r.named(ctx, uid, namespaces)
	if err != nil {
		return err
	}
	revoked := false
	for i := range found {
		a := &found[i]
		if a.Spec.MachineRef == nil || a.Status.MachineUID != "" && a.Status.MachineUID != uid || !owns(uid, a) {
			r.o.Log.Error("an object has the name of a record but is not one; it is not deleted", "object",
				a.Namespace+"/"+a.Name)
			continue
		}
		ref := *a.Spec.MachineRef
		ref.Namespace = cmp.Or(ref.Namespace, a.Namespace)
		gone, err := r.machineDeleted(ctx, ref, uid)
		if err != nil {
			return err
		}
		if !gone {
			return fmt.Errorf("record %s/%s: %w", a.Namespace, a.Name, ErrMachineThere)
		}
		// The credentials are revoked before the record that names them is deleted.
		if err := r.revoke(ctx, uid, a.Status.Credentials); err != nil {
			return err
		}
		revoked = true
		err = r.do(ctx, "delete", attestations, func(ctx context.Context) error {
			return r.o.Client.Delete(ctx, a, client.Preconditions{UID: &a.UID})
		})
		if err != nil && !kerrors.IsNotFound(err) {
			return unavailable(err, "delete record %s/%s", a.Namespace, a.Name)
		}
	}
	return r.releaseClaims(ctx, uid, revoked)
}

// revoke revokes the credentials of a Machine that was deleted.
func (r *Records) revoke(ctx context.Context, uid string, all []v1alpha1.CredentialStatus) error {
	if r.o.Revoke == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 4*r.o.Timeout)
	defer cancel()
	return r.o.Revoke(ctx, uid, all)
}

// named returns the objects with a record's name. It omits an object that cannot be decoded, so that
// object is not deleted.
func (r *Records) named(ctx context.Context, uid string, namespaces []string) ([]v1alpha1.MachineAttestation, error) {
	if len(namespaces) == 0 {
		found, _, err := list[v1alpha1.MachineAttestation](ctx, r, v1alpha1.KindMachineAttestation, attestations,
			client.MatchingFields{"metadata.name": uid})
		return found, unavailable(err, "find the record of %s", uid)
	}
	var found []v1alpha1.MachineAttestation
	for _, namespace := range namespaces {
		o, err := r.get(ctx, client.ObjectKey{Namespace: namespace, Name: uid})
		if Missing(err) {
			continue
		}
		if err != nil {
			return nil, unavailable(err, "find the record of %s", uid)
		}
		a, err := decode(o)
		if err != nil {
			r.o.Log.Error("an object has the name of a record but is not one; it is not deleted", "object",
				namespace+"/"+uid, "error", err)
			continue
		}
		found = append(found, *a)
	}
	return found, nil
}

// machineDeleted asks the API whether the Machine was deleted. The API version on the record may no longer be
// served. If the namespace was deleted, so was its RoleBinding.
func (r *Records) machineDeleted(ctx context.Context, ref v1alpha1.MachineReference, uid string) (bool, error) {
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
		return false, unavailable(err, "check whether Machine %s/%s exists", ref.Namespace, ref.Name)
	}
	return string(o.UID) != uid, nil
}

// versionsOf returns the API versions in which an object of a kind may be found: the given one, and the
// others in which Machines exist. All have the same objects, so any version that is served gives the
// answer.
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

// namespaceGone reports whether the API answers that the namespace does not exist. If the API does not
// answer, it returns false.
func (r *Records) namespaceGone(ctx context.Context, name string) bool {
	_, err := r.metadata(ctx, "", "v1", "Namespace", client.ObjectKey{Name: name})
	return Missing(err)
}

// metadata reads the metadata of an object of a kind that is known to [NewClient].
func (r *Records) metadata(
	ctx context.Context, group, version, kind string, key client.ObjectKey,
) (*metav1.PartialObjectMetadata, error) {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: kind})
	resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
	err := r.do(ctx, "get", resource.Resource, func(ctx context.Context) error { return r.o.Client.Get(ctx, key, o) })
	return o, err
}
