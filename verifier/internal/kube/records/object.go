// SPDX-License-Identifier: Apache-2.0

package records

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// The names of resources for [Options.Called].
const (
	attestations      = "machineattestations"
	attestationStatus = "machineattestations/status"
	claims            = "identityclaims"
)

// errConflict means that another writer was first.
var errConflict = errors.New("the object has changed")

// place is where a record is stored.
type place struct {
	uid, namespace, name string
	machine              *machine.Machine // the object to which it belongs; nil for a break-glass token
	about                *machine.Machine // the object that is in force
}

func (p place) key() client.ObjectKey { return client.ObjectKey{Namespace: p.namespace, Name: p.name} }
func (p place) String() string        { return p.namespace + "/" + p.name }

func (r *Records) find(uid string) (place, error) {
	if record.IsBreakGlass(uid) {
		id := strings.TrimPrefix(uid, record.BreakGlassUID(""))
		at := place{uid: uid, namespace: r.o.Namespace, name: "break-glass-" + id}
		if len(validation.IsDNS1123Subdomain(at.name)) > 0 {
			return place{}, reason.Deny(reason.TokenInvalid, "the id of a break-glass token is %.80q", uid)
		}
		return at, nil
	}
	m, ok := r.o.Machine(uid)
	if !ok {
		return place{}, reason.Deny(reason.MachineNotFound, "no Machine with UID %s", uid)
	}
	return placeOf(m), nil
}

// placeOf returns the place beside the Machine. If the machine is an object of both the Machine API and
// Cluster API, that is beside the older object, whichever is in force. So a record from before a
// migration is found.
func placeOf(m *machine.Machine) place {
	at := place{uid: m.UID, namespace: m.Namespace, name: m.UID, machine: m, about: m}
	if m.StandIn {
		at.name = m.Name
	} else if o := m.Mirror; o != nil && (o.Created.Before(m.Created) || o.Created.Equal(m.Created) && o.UID < m.UID) {
		at.uid, at.namespace, at.name, at.machine = o.UID, o.Namespace, o.UID, o
	}
	return at
}

// UID returns the UID that names the record of a Machine. A machine that is an object of both Machine
// APIs has one record.
func UID(m *machine.Machine) string { return placeOf(m).uid }

// Namespace returns the namespace of a Machine's record.
func Namespace(m *machine.Machine) string { return placeOf(m).namespace }

// Key returns the namespace and name of a Machine's record.
func Key(m *machine.Machine) client.ObjectKey { return placeOf(m).key() }

// snapshot is a record at the version that was read.
type snapshot struct {
	at     place
	object *unstructured.Unstructured // as stored in the API; nil if the record does not exist
	status map[string]any             // as decoded by this version
	record *v1alpha1.MachineAttestation
}

// read reads the record live. It fails if the cache has a later version, because etcd was then restored. It also fails
// if only the cache has the record.
func (r *Records) read(ctx context.Context, at place) (snapshot, error) {
	cached, epoch := r.o.Cached(at.key())
	o, err := r.get(ctx, at.key())
	switch {
	case Missing(err) && cached != 0:
		return snapshot{}, unavailable(err, "read record %s, whose deletion no watch has reported", at)
	case Missing(err) && at.machine != nil && at.machine.StandIn:
		return snapshot{}, reason.Deny(reason.MachineNotFound, "%s was deleted", at)
	case Missing(err):
		return snapshot{at: at}, nil
	case err != nil:
		return snapshot{}, unavailable(err, "read record %s", at)
	}
	version, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err == nil && version < cached {
		r.o.Revisions.Restored(epoch, fmt.Sprintf("record %s is at revision %d, %d was seen before", at, version, cached))
		return snapshot{}, unavailable(store.ErrRestored, "read record %s", at)
	}
	return r.decodeRecord(at, o)
}

// get reads a MachineAttestation with the fields that only a newer version knows. A typed object would
// drop them.
func (r *Records) get(ctx context.Context, key client.ObjectKey) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindMachineAttestation))
	err := r.do(ctx, "get", attestations, func(ctx context.Context) error { return r.o.Client.Get(ctx, key, o) })
	return o, err
}

// list lists objects of one kind. It omits an object that cannot be decoded; with a typed list, one
// such object would fail the whole call.
func list[T any](
	ctx context.Context, r *Records, kind, resource string, options ...client.ListOption,
) (all []T, next string, err error) {
	var found unstructured.UnstructuredList
	found.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind + "List"))
	err = r.do(ctx, "list", resource, func(ctx context.Context) error { return r.o.Client.List(ctx, &found, options...) })
	if err != nil {
		return nil, "", err
	}
	for i := range found.Items {
		o := &found.Items[i]
		decoded, err := decodeAs[T](o)
		if err != nil {
			r.o.Log.Error("an object is invalid and is not changed",
				"kind", kind, "object", o.GetNamespace()+"/"+o.GetName(), "error", err)
			continue
		}
		all = append(all, *decoded)
	}
	return all, found.GetContinue(), nil
}

// decodeRecord decodes the object and verifies that it is the record of this place.
func (r *Records) decodeRecord(at place, o *unstructured.Unstructured) (snapshot, error) {
	k := snapshot{at: at, object: o}
	a, err := decode(o)
	if err == nil {
		err = at.mismatch(a)
	}
	if errors.Is(err, errReplaced) {
		return snapshot{}, reason.Deny(reason.MachineNotFound, "%s was deleted and recreated", at)
	}
	if err != nil {
		r.o.Log.Error("a record is invalid and is not changed",
			"record", at.String(), "machine_uid", at.uid, "error", err)
		return snapshot{}, unavailable(err, "record %s", at)
	}
	if k.status, err = content(a.Status); err != nil {
		return snapshot{}, unavailable(err, "record %s", at)
	}
	if at.machine == nil && a.Status.Token == nil {
		return k, nil // created, but its status was not written yet
	}
	a.Status.MachineUID = at.uid // not written yet in a record that was created in advance
	if r.o.Withheld != nil && r.o.Withheld(a) {
		a.Spec.Reattest = nil // only the status is written
	}
	k.record = a
	return k, nil
}

var errReplaced = errors.New("another object has that name")

// mismatch returns an error if the object is not the record of this place.
func (p place) mismatch(a *v1alpha1.MachineAttestation) error {
	switch uid := a.Status.MachineUID; {
	case p.machine != nil && p.machine.StandIn && string(a.UID) != p.uid:
		return errReplaced
	case uid != "" && uid != p.uid:
		return fmt.Errorf("status.machineUID is %q", uid)
	case a.DeletionTimestamp != nil:
		return errors.New("it is being deleted")
	case p.machine == nil || p.machine.StandIn:
		return nil
	}
	want := machineRef(p.machine)
	ref := a.Spec.MachineRef
	if ref == nil {
		return errors.New("spec.machineRef names no Machine")
	}
	namespace := ref.Namespace
	namespace = cmp.Or(namespace, a.Namespace)
	if ref.Name != want.Name || namespace != want.Namespace || ref.Kind != "" && ref.Kind != want.Kind ||
		ref.APIVersion != "" && group(ref.APIVersion) != group(want.APIVersion) {
		return fmt.Errorf("spec.machineRef is %s %s/%s", ref.APIVersion, namespace, ref.Name)
	}
	if !owns(p.uid, a) {
		return errors.New("the Machine does not own it")
	}
	return nil
}

// owns reports whether the Machine with this UID owns the object.
func owns(uid string, a *v1alpha1.MachineAttestation) bool {
	return slices.ContainsFunc(a.OwnerReferences, func(o metav1.OwnerReference) bool { return string(o.UID) == uid })
}

func group(apiVersion string) string {
	g, _, _ := strings.Cut(apiVersion, "/")
	return g
}

func machineRef(m *machine.Machine) v1alpha1.MachineReference {
	return v1alpha1.MachineReference{APIVersion: m.APIVersion, Kind: m.Kind, Namespace: m.Namespace, Name: m.Name}
}

// EnsureRecord creates the empty record of a Machine that has not joined, to save the attestation a
// write. If the record exists, it does nothing. It first asks the API for the Machine, as
// [Records.Delete] does. Without that, a replica that does not know of a deletion would create each
// record that another one deletes.
func (r *Records) EnsureRecord(ctx context.Context, m *machine.Machine) error {
	if m.StandIn {
		return nil
	}
	if gone, err := r.machineDeleted(ctx, machineRef(m), m.UID); err != nil || gone {
		return err
	}
	if _, err := r.create(ctx, placeOf(m)); err != nil && !errors.Is(err, errConflict) {
		return err
	}
	return nil
}

// create creates an empty record.
func (r *Records) create(ctx context.Context, at place) (*unstructured.Unstructured, error) {
	a := &v1alpha1.MachineAttestation{ObjectMeta: metav1.ObjectMeta{Namespace: at.namespace, Name: at.name}}
	if m := at.machine; m != nil {
		owner := metav1.OwnerReference{APIVersion: m.APIVersion, Kind: m.Kind, Name: m.Name, UID: types.UID(at.uid)}
		ref := machineRef(m)
		a.OwnerReferences, a.Spec.MachineRef = []metav1.OwnerReference{owner}, &ref
	}
	made, err := r.add(ctx, a)
	if kerrors.IsAlreadyExists(err) {
		return nil, errConflict
	}
	return made, unavailable(err, "create record %s", at)
}

// add creates the object, and returns the object to which its first status is written.
func (r *Records) add(ctx context.Context, a *v1alpha1.MachineAttestation) (*unstructured.Unstructured, error) {
	err := r.do(ctx, "create", attestations, func(ctx context.Context) error { return r.o.Client.Create(ctx, a) })
	if err != nil {
		return nil, err
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindMachineAttestation))
	o.SetNamespace(a.Namespace)
	o.SetName(a.Name)
	o.SetUID(a.UID)
	o.SetResourceVersion(a.ResourceVersion)
	return o, nil
}

// write writes the status of next, unless the record changed since it was read. It returns the object's
// UID.
func (r *Records) write(
	ctx context.Context, at place, k snapshot, next *v1alpha1.MachineAttestation, epoch uint32,
) (types.UID, error) {
	o := k.object
	if o == nil {
		var err error
		if o, err = r.create(ctx, at); err != nil {
			return "", err
		}
	}
	next.Status.MachineUID = at.uid
	if next.Status.Phase != v1alpha1.PhasePending {
		next.Status.Pending = nil // an administrator approved it as a stand-in, so it is no longer pending
	}
	return o.GetUID(), r.patchStatus(ctx, o, k.status, next.Status, epoch)
}

// patchStatus writes the change from before, the status as this version decodes it, to next. Fields
// that only another version knows stay.
func (r *Records) patchStatus(
	ctx context.Context, o *unstructured.Unstructured, before map[string]any, next v1alpha1.MachineAttestationStatus,
	epoch uint32,
) error {
	after, err := content(next)
	if err != nil {
		return unavailable(err, "write record %s/%s", o.GetNamespace(), o.GetName())
	}
	changed := o.DeepCopy()
	changed.Object["status"] = carry(o.Object["status"], before, after)
	patch := client.MergeFromWithOptions(o, client.MergeFromWithOptimisticLock{})
	check := r.o.Revisions.Expect(epoch)
	err = r.do(ctx, "patch", attestationStatus, func(ctx context.Context) error {
		return r.o.Client.Status().Patch(ctx, changed, patch)
	})
	if overtaken(err) {
		return errConflict
	}
	// A patch that changes nothing is no write, and returns the version that was read.
	if version := changed.GetResourceVersion(); err == nil && version != o.GetResourceVersion() {
		revision, _ := strconv.ParseUint(version, 10, 64) // 0 is unknown
		err = check(revision)
	}
	return unavailable(err, "write record %s/%s", o.GetNamespace(), o.GetName())
}
