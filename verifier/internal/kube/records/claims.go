// SPDX-License-Identifier: Apache-2.0

package records

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// This is how one identity becomes the identity of one Machine, with any number of replicas.
//
// A claim is an object named by the hash of an identity component. Creating it is atomic: if several
// replicas try, one succeeds. An attestation reads the record, creates the claims, and then writes the
// record with the resourceVersion that it read. So no attestation writes an identity into a record
// unless it read the claims after that record.
//
// The attestation that created a claim releases it if the attestation fails. By then, another
// attestation of the same Machine may rely on the claim, before it has written its record. So an
// attestation that finds a claim of its own Machine, which its record does not confirm yet, first
// writes to the claim. A claim is released only in the version that was created, because the delete
// names its resourceVersion. In the worst case, a claim remains that no record confirms. It still
// belongs to the same Machine, and is deleted with it.
//
// The claim of a deleted Machine is released by the next attestation that needs it, or by the replica
// that holds the lease. Both first ask the API for the Machine by name and UID.

const (
	labelMachineUID        = "mcs-attest.dev/machine-uid"
	annotationClaimedAgain = "mcs-attest.dev/claimed-again"

	// claimsPage is the number of claims in a page of a list.
	claimsPage = 500
)

// ClaimName returns the name of the claim of an identity component.
func ClaimName(component string) string {
	sum := sha256.Sum256([]byte(component))
	return hex.EncodeToString(sum[:])
}

// Holder returns the UID of the Machine that has an identity component, or "" if there is none.
func (r *Records) Holder(ctx context.Context, component string) (uid string, err error) {
	c, err := r.readClaim(ctx, component)
	if err != nil || c == nil {
		return "", err
	}
	if _, known := r.o.Machine(c.Spec.MachineUID); known {
		return c.Spec.MachineUID, nil
	}
	gone, err := r.machineDeleted(ctx, c.Spec.MachineRef, c.Spec.MachineUID)
	if err != nil || gone {
		return "", err
	}
	return c.Spec.MachineUID, nil
}

// claim claims the component for the Machine of this place. It returns the claim if it created it.
// known means that the record already confirms the claim. made has the claims that this attestation
// created in an earlier try.
func (r *Records) claim(
	ctx context.Context, at place, component string, known bool, made []*v1alpha1.IdentityClaim,
) (*v1alpha1.IdentityClaim, error) {
	create := !known // a known one very likely exists
	for range maxTries {
		if create {
			made, err := r.createClaim(ctx, at, component)
			if err == nil {
				return made, nil
			}
			if !kerrors.IsAlreadyExists(err) {
				return nil, unavailable(err, "claim %s for %s", component, at.uid)
			}
		}
		c, err := r.readClaim(ctx, component)
		if err != nil {
			return nil, err
		}
		if create = c == nil; create {
			continue
		}
		if r.sameMachine(c.Spec.MachineUID, at.uid) {
			isMade := func(m *v1alpha1.IdentityClaim) bool { return m.UID == c.UID }
			if known || slices.ContainsFunc(made, isMade) {
				return nil, nil
			}
			if err := r.markRelied(ctx, c); overtaken(err) {
				continue
			} else if err != nil {
				return nil, unavailable(err, "claim %s for %s", component, at.uid)
			}
			return nil, nil
		}
		gone, err := r.machineDeleted(ctx, c.Spec.MachineRef, c.Spec.MachineUID)
		if err != nil {
			return nil, err
		}
		if !gone {
			return nil, reason.Deny(reason.IdentityConflict, "identity component %s belongs to %s/%s, the Machine with UID %s",
				component, c.Spec.MachineRef.Namespace, c.Spec.MachineRef.Name, c.Spec.MachineUID)
		}
		if err := r.deleteClaim(ctx, c); err != nil {
			return nil, err
		}
		r.o.Log.Info("claim of a deleted Machine released", "component", component, "machine_uid", c.Spec.MachineUID)
		create = true
	}
	return nil, reason.Deny(reason.StoreUnavailable, "claim of %s: another writer was first each time", component)
}

// sameMachine reports whether two UIDs belong to one machine. A machine that moves between the Machine API
// and Cluster API has two objects.
func (r *Records) sameMachine(x, y string) bool {
	if x == y {
		return true
	}
	a, ok1 := r.o.Machine(x)
	b, ok2 := r.o.Machine(y)
	return ok1 && ok2 && a.UID == b.UID
}

// readClaim reads the claim of a component. It returns nil if the claim does not exist.
func (r *Records) readClaim(ctx context.Context, component string) (*v1alpha1.IdentityClaim, error) {
	c := new(v1alpha1.IdentityClaim)
	key := client.ObjectKey{Name: ClaimName(component)}
	err := r.do(ctx, "get", claims, func(ctx context.Context) error { return r.o.Client.Get(ctx, key, c) })
	if Missing(err) {
		return nil, nil
	}
	if err == nil && c.Spec.Component != component {
		err = fmt.Errorf("the claim is for %q", c.Spec.Component)
	}
	if err != nil {
		return nil, unavailable(err, "read claim of %s", component)
	}
	return c, r.valid(c)
}

// valid returns an error if the claim does not have the form that the verifier writes.
func (r *Records) valid(c *v1alpha1.IdentityClaim) error {
	var err error
	switch {
	case ClaimName(c.Spec.Component) != c.Name:
		err = fmt.Errorf("the claim is for %q", c.Spec.Component)
	case c.Spec.MachineUID == "" || c.Spec.MachineRef.Name == "":
		err = fmt.Errorf("the claim names no Machine")
	}
	if err != nil {
		r.o.Log.Error("a claim is invalid and is not changed", "claim", c.Name, "error", err)
	}
	return unavailable(err, "claim %s", c.Name)
}

func (r *Records) createClaim(ctx context.Context, at place, component string) (*v1alpha1.IdentityClaim, error) {
	c := &v1alpha1.IdentityClaim{
		ObjectMeta: metav1.ObjectMeta{Name: ClaimName(component), Labels: map[string]string{labelMachineUID: at.uid}},
		Spec:       v1alpha1.IdentityClaimSpec{Component: component, MachineUID: at.uid, MachineRef: machineRef(at.machine)},
	}
	return c, r.do(ctx, "create", claims, func(ctx context.Context) error { return r.o.Client.Create(ctx, c) })
}

// markRelied writes to a claim that another attestation of the same Machine created, so that the other
// attestation cannot release it.
func (r *Records) markRelied(ctx context.Context, c *v1alpha1.IdentityClaim) error {
	next := c.DeepCopy()
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[annotationClaimedAgain] = rand.Text() // a patch without a difference would not change the version
	patch := client.MergeFromWithOptions(c, client.MergeFromWithOptimisticLock{})
	return r.do(ctx, "patch", claims, func(ctx context.Context) error { return r.o.Client.Patch(ctx, next, patch) })
}

// release releases the claims that a failed attestation created, unless another attestation relies on
// them. A claim that cannot be released still belongs to the Machine.
//
// It ignores the cancellation of ctx, because the claims must not remain if the denied client
// disconnects.
func (r *Records) release(ctx context.Context, made []*v1alpha1.IdentityClaim) {
	if len(made) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*r.o.Timeout)
	defer cancel()
	for _, c := range made {
		if err := r.deleteClaim(ctx, c); err != nil {
			r.o.Log.Warn("the claim of a failed attestation was not released", "claim", c.Name, "error", err)
		}
	}
}

// deleteClaim deletes the claim in the version that was read. It does not delete a claim that has
// changed.
func (r *Records) deleteClaim(ctx context.Context, c *v1alpha1.IdentityClaim) error {
	err := r.do(ctx, "delete", claims, func(ctx context.Context) error { return r.o.Client.Delete(ctx, c, unchanged(c)) })
	if overtaken(err) {
		return nil
	}
	return unavailable(err, "release claim %s", c.Name)
}

// unchanged restricts a deletion to the version of the object that was read.
func unchanged(o client.Object) client.Preconditions {
	uid, version := o.GetUID(), o.GetResourceVersion()
	return client.Preconditions{UID: &uid, ResourceVersion: &version}
}

// ReleaseClaims deletes the claims of a deleted Machine that left no record. For each claim it asks the
// API for the Machine that the claim names. It revokes the Machine's credentials first, because
// afterwards nothing names the Machine anymore.
func (r *Records) ReleaseClaims(ctx context.Context, uid string) error {
	return r.releaseClaims(ctx, uid, false)
}

// releaseClaims does the same. If the credentials are revoked already, it does not revoke them.
func (r *Records) releaseClaims(ctx context.Context, uid string, revoked bool) error {
	found, _, err := list[v1alpha1.IdentityClaim](ctx, r, v1alpha1.KindIdentityClaim, claims,
		client.MatchingLabels{labelMachineUID: uid})
	if err != nil {
		return unavailable(err, "list the claims of %s", uid)
	}
	for i := range found {
		c := &found[i]
		if r.valid(c) != nil || c.Spec.MachineUID != uid {
			continue
		}
		gone, err := r.machineDeleted(ctx, c.Spec.MachineRef, uid)
		if err != nil {
			return err
		}
		if !gone {
			return fmt.Errorf("claim %s: %w", c.Name, ErrMachineThere)
		}
		if !revoked {
			if err := r.revoke(ctx, uid, nil); err != nil {
				return err
			}
			revoked = true
		}
		if err := r.deleteClaim(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// EachClaim calls f for every claim, page by page. If a page expires, it skips the remaining claims.
func (r *Records) EachClaim(ctx context.Context, f func(v1alpha1.IdentityClaimSpec)) error {
	for next := ""; ; {
		page, more, err := list[v1alpha1.IdentityClaim](ctx, r, v1alpha1.KindIdentityClaim, claims,
			client.Limit(claimsPage), client.Continue(next))
		if kerrors.IsResourceExpired(err) {
			return nil
		}
		if err != nil {
			return unavailable(err, "list claims")
		}
		for i := range page {
			f(page[i].Spec)
		}
		if next = more; next == "" {
			return nil
		}
	}
}
