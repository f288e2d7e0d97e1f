package cluster

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// How one identity becomes one Machine's, with any number of replicas at work.
//
// A claim is an object named by the hash of an identity component. Creating it is
// atomic: one of all who try succeeds. An attestation reads the record, claims,
// and then writes the record by the resourceVersion that it read. So nobody
// writes an identity into a record without having seen its claims after reading
// that record.
//
// A claim is taken back by the attestation that created it, when that came to
// nothing. Another attestation of the same Machine may count on the claim by
// then, its record unwritten. So whoever finds a claim of its own Machine that
// its record does not bear out yet first writes to the claim, and a claim is only
// taken back as it was created: the delete names its resourceVersion. In the
// worst case a claim stays that no record bears out; it is the same Machine's
// still, and goes with it.
//
// A claim of a Machine that is gone is released, by the next who needs it or by
// the replica that holds the lease. Gone is what the API says of the Machine by
// name and UID at that moment.

const (
	labelMachineUID        = "mcs-attest.dev/machine-uid"
	annotationClaimedAgain = "mcs-attest.dev/claimed-again"
)

// claim is a claim as this process created it.
type claim struct{ object *unstructured.Unstructured }

func claimName(component string) string {
	sum := sha256.Sum256([]byte(component))
	return hex.EncodeToString(sum[:])
}

// Holder is the UID of the Machine that has an identity component, "" if none.
func (r *Records) Holder(ctx context.Context, component string) (uid string, err error) {
	o, err := r.get(ctx, claimsResource, "", claimName(component))
	if missing(err) {
		return "", nil
	}
	if err != nil {
		return "", unavailable(err, "read claim of %s", component)
	}
	spec, err := r.claimSpec(o, component)
	if err != nil {
		return "", err
	}
	if _, known := r.machine(spec.MachineUID); known {
		return spec.MachineUID, nil
	}
	gone, err := r.gone(ctx, spec.MachineRef, spec.MachineUID)
	if err != nil || gone {
		return "", err
	}
	return spec.MachineUID, nil
}

// claim claims the component for the Machine at this place. It returns the claim
// if it made it. Known says that the record bears the claim out already.
func (r *Records) claim(ctx context.Context, at place, component string, known bool) (*claim, error) {
	create := !known // it is there, most likely, if it is known
	for range maxTries {
		if create {
			made, err := r.createClaim(ctx, at, component)
			if err == nil {
				return &claim{made}, nil
			}
			if !kerrors.IsAlreadyExists(err) {
				return nil, unavailable(err, "claim %s for %s", component, at.uid)
			}
		}
		o, err := r.get(ctx, claimsResource, "", claimName(component))
		if missing(err) {
			create = true
			continue
		}
		if err != nil {
			return nil, unavailable(err, "read claim of %s", component)
		}
		create = false
		spec, err := r.claimSpec(o, component)
		if err != nil {
			return nil, err
		}
		if r.isOne(spec.MachineUID, at.uid) {
			if known {
				return nil, nil
			}
			if err := r.countOn(ctx, o); kerrors.IsConflict(err) || missing(err) {
				continue
			} else if err != nil {
				return nil, unavailable(err, "claim %s for %s", component, at.uid)
			}
			return nil, nil
		}
		gone, err := r.gone(ctx, spec.MachineRef, spec.MachineUID)
		if err != nil {
			return nil, err
		}
		if !gone {
			return nil, reason.Deny(reason.IdentityConflict, "identity component %s belongs to %s/%s, the Machine with UID %s",
				component, spec.MachineRef.Namespace, spec.MachineRef.Name, spec.MachineUID)
		}
		if err := r.deleteClaim(ctx, o); err != nil && !kerrors.IsConflict(err) && !missing(err) {
			return nil, unavailable(err, "release claim of %s", component)
		}
		r.log.Info("claim of a deleted Machine released", "component", component, "machine_uid", spec.MachineUID)
		create = true
	}
	return nil, reason.Deny(reason.StoreUnavailable, "claim of %s: others were faster each time", component)
}

// isOne reports whether two UIDs are one machine's: while it moves between the
// Machine API and Cluster API it is two objects.
func (r *Records) isOne(x, y string) bool {
	if x == y {
		return true
	}
	a, ok1 := r.machine(x)
	b, ok2 := r.machine(y)
	return ok1 && ok2 && a.UID == b.UID
}

func (r *Records) createClaim(ctx context.Context, at place, component string) (made *unstructured.Unstructured, err error) {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindIdentityClaim,
		"metadata": map[string]any{"name": claimName(component), "labels": map[string]any{labelMachineUID: at.uid}},
		"spec":     map[string]any{"component": component, "machineUID": at.uid, "machineRef": refContent(machineRef(at.machine))},
	}}
	err = r.do(ctx, "create", claimsResource, "", func(ctx context.Context) (err error) {
		made, err = r.client.Resource(claimsResource).Create(ctx, o, metav1.CreateOptions{})
		return err
	})
	return made, err
}

// countOn writes to a claim that another attestation of the same Machine made, so
// that that one does not take it back any more.
func (r *Records) countOn(ctx context.Context, o *unstructured.Unstructured) error {
	o = o.DeepCopy()
	all := o.GetAnnotations()
	if all == nil {
		all = map[string]string{}
	}
	all[annotationClaimedAgain] = rand.Text() // an update without a difference would not be one
	o.SetAnnotations(all)
	return r.do(ctx, "update", claimsResource, "", func(ctx context.Context) error {
		_, err := r.client.Resource(claimsResource).Update(ctx, o, metav1.UpdateOptions{})
		return err
	})
}

// takeBack releases what this process claimed a moment ago, unless somebody else
// counts on it. What cannot be released stays the Machine's, and goes with it.
//
// The denied client may have left by then, and its claims must not stay behind.
func (r *Records) takeBack(ctx context.Context, made []claim) {
	if len(made) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*r.timeout)
	defer cancel()
	for _, c := range made {
		if err := r.deleteClaim(ctx, c.object); err != nil && !kerrors.IsConflict(err) && !missing(err) {
			r.log.Warn("a claim that came to nothing stays", "claim", c.object.GetName(), "error", err)
		}
	}
}

// deleteClaim deletes the claim as it was read.
func (r *Records) deleteClaim(ctx context.Context, o *unstructured.Unstructured) error {
	return r.do(ctx, "delete", claimsResource, "", func(ctx context.Context) error {
		return r.client.Resource(claimsResource).Delete(ctx, o.GetName(), exactly(o, true))
	})
}

// ReleaseClaims deletes the claims of a Machine that is gone, as far as the API
// says so of where each claim has it.
func (r *Records) ReleaseClaims(ctx context.Context, uid string) error {
	var list *unstructured.UnstructuredList
	err := r.do(ctx, "list", claimsResource, "", func(ctx context.Context) (err error) {
		list, err = r.client.Resource(claimsResource).List(ctx, metav1.ListOptions{LabelSelector: labelMachineUID + "=" + uid})
		return err
	})
	if err != nil {
		return unavailable(err, "look for claims of %s", uid)
	}
	for _, o := range list.Items {
		spec, err := r.claimSpec(&o, "")
		if err != nil || spec.MachineUID != uid {
			continue
		}
		gone, err := r.gone(ctx, spec.MachineRef, uid)
		if err != nil {
			return err
		}
		if !gone {
			return fmt.Errorf("claim %s: %w", o.GetName(), ErrMachineThere)
		}
		if err := r.deleteClaim(ctx, &o); err != nil && !kerrors.IsConflict(err) && !missing(err) {
			return unavailable(err, "release claim %s", o.GetName())
		}
	}
	return nil
}

// claimSpec reads a claim; component, if set, is the one that it must be of.
func (r *Records) claimSpec(o *unstructured.Unstructured, component string) (v1alpha1.IdentityClaimSpec, error) {
	var spec v1alpha1.IdentityClaimSpec
	var err error
	m, _, _ := unstructured.NestedMap(o.Object, "spec")
	spec.Component, _, _ = unstructured.NestedString(m, "component")
	spec.MachineUID, _, _ = unstructured.NestedString(m, "machineUID")
	ref, _, _ := unstructured.NestedStringMap(m, "machineRef")
	spec.MachineRef = v1alpha1.MachineReference{APIVersion: ref["apiVersion"], Kind: ref["kind"], Namespace: ref["namespace"], Name: ref["name"]}
	switch {
	case component != "" && spec.Component != component || claimName(spec.Component) != o.GetName():
		err = fmt.Errorf("it is of %q", spec.Component)
	case spec.MachineUID == "" || spec.MachineRef.Name == "":
		err = fmt.Errorf("it names no Machine")
	}
	if err != nil {
		r.log.Error("a claim is not as the verifier makes it, and is left alone", "claim", o.GetName(), "error", err)
	}
	return spec, unavailable(err, "claim %s", o.GetName())
}

// gone asks the API whether the Machine is gone. An API version that was written
// down may have gone since, and with a namespace its RoleBinding goes, too.
func (r *Records) gone(ctx context.Context, ref v1alpha1.MachineReference, uid string) (bool, error) {
	if m, ok := r.machine(uid); ok && m.UID == uid {
		ref = machineRef(m)
	}
	resource, err := machineResource(ref)
	if err != nil {
		return false, unavailable(err, "Machine %s/%s", ref.Namespace, ref.Name)
	}
	var o *unstructured.Unstructured
	for _, version := range versionsOf(resource.GroupVersion()) {
		resource.Version = version
		if o, err = r.get(ctx, resource, ref.Namespace, ref.Name); !kerrors.IsNotFound(err) || missing(err) {
			break
		}
	}
	if kerrors.IsForbidden(err) && r.namespaceGone(ctx, ref.Namespace) {
		return true, nil
	}
	if missing(err) {
		return true, nil
	}
	if err != nil {
		return false, unavailable(err, "is Machine %s/%s there", ref.Namespace, ref.Name)
	}
	return string(o.GetUID()) != uid, nil
}

// versionsOf are the API versions in which the objects of a group may be found:
// the one asked for, and the others that Machines are known in. They are the same
// objects, so any version that is served has the answer.
func versionsOf(gv schema.GroupVersion) []string {
	all := []string{gv.Version}
	for _, k := range []kind{machineAPIKind, clusterAPIKind} {
		if k.group != gv.Group {
			continue
		}
		for _, version := range k.versions {
			if version != gv.Version {
				all = append(all, version)
			}
		}
	}
	return all
}

// namespaceGone reports whether the API says that there is no such namespace. No
// answer is not that one.
func (r *Records) namespaceGone(ctx context.Context, name string) bool {
	_, err := r.get(ctx, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", name)
	return missing(err)
}

func machineResource(ref v1alpha1.MachineReference) (schema.GroupVersionResource, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || gv.Empty() || ref.Namespace == "" || ref.Name == "" {
		return schema.GroupVersionResource{}, fmt.Errorf("%q does not say where it is", ref.APIVersion)
	}
	switch ref.Kind {
	case "Machine":
		return gv.WithResource("machines"), nil
	case v1alpha1.KindMachineAttestation:
		return gv.WithResource("machineattestations"), nil
	}
	return schema.GroupVersionResource{}, fmt.Errorf("kind %q", ref.Kind)
}

func refContent(ref v1alpha1.MachineReference) map[string]any {
	return map[string]any{"apiVersion": ref.APIVersion, "kind": ref.Kind, "namespace": ref.Namespace, "name": ref.Name}
}
