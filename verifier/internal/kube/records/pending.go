// SPDX-License-Identifier: Apache-2.0

package records

import (
	"context"
	"errors"
	"strings"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// A pending machine is a MachineAttestation in the verifier's namespace with neither a machineRef nor a
// pool. An administrator who sets one of them enrolls the machine. From then on the verifier does not
// change the object.

const (
	labelPending = "mcs-attest.dev/pending"

	// seenEvery is the minimum time between two recorded requests of a pending machine.
	seenEvery = 10 * time.Minute

	// fullFor is the time for which no new machine is admitted after the limit was reached.
	fullFor = 10 * time.Second
)

// admission admits one new machine at a time, so that few objects are created over the limit and
// deleted again.
type admission struct {
	turns turns
	full  time.Time // until when no machine is admitted; guarded by the turn
}

func (r *Records) pendingKey(ekSHA256 string) client.ObjectKey {
	return client.ObjectKey{Namespace: r.o.Namespace, Name: v1alpha1.PendingPrefix + ekSHA256[:min(len(ekSHA256), 16)]}
}

// approved reports whether an administrator has enrolled the machine.
func approved(a *v1alpha1.MachineAttestation) bool {
	return a.Spec.MachineRef != nil || a.Spec.Pool != ""
}

// AddPending records a request of the pending machine p. If there are too many pending machines, it returns
// RateLimited.
func (r *Records) AddPending(ctx context.Context, now time.Time, p store.Pending) error {
	o, err := r.get(ctx, r.pendingKey(p.EKSHA256))
	if Missing(err) {
		return r.admit(ctx, now, p)
	}
	if err != nil {
		return unavailable(err, "read pending machine %s", p.ID)
	}
	return r.seen(ctx, now, o, p)
}

// seen records when a pending machine sent its last request.
func (r *Records) seen(ctx context.Context, now time.Time, o *unstructured.Unstructured, p store.Pending) error {
	a, err := decode(o)
	if err != nil {
		return unavailable(err, "read pending machine %s", p.ID)
	}
	first := now
	if old := a.Status.Pending; old != nil {
		if old.EKSHA256 != p.EKSHA256 {
			return reason.Deny(reason.StoreUnavailable, "%s belongs to another EK", a.Name)
		}
		if now.Sub(old.LastSeen.Time) < seenEvery {
			return nil
		}
		first = old.FirstSeen.Time
	}
	if approved(a) {
		return nil // the watch delivers the approval
	}
	return r.changePending(ctx, o, a, func(s *v1alpha1.MachineAttestationStatus) {
		s.Phase = v1alpha1.PhasePending
		s.Pending = &v1alpha1.PendingMachine{
			EKSHA256: p.EKSHA256, Pool: p.Pool, FirstSeen: metav1.NewTime(first), LastSeen: metav1.NewTime(now),
			Source: p.Source, Certificate: p.Certificate, Claims: p.Claims,
		}
	})
}

// changePending writes a change of the status. If another replica or an administrator wrote first, it
// changes nothing.
func (r *Records) changePending(
	ctx context.Context, o *unstructured.Unstructured, a *v1alpha1.MachineAttestation,
	change func(*v1alpha1.MachineAttestationStatus),
) error {
	before, err := content(a.Status)
	if err != nil {
		return unavailable(err, "pending machine %s", a.Name)
	}
	change(&a.Status)
	if err := r.patchStatus(ctx, o, before, a.Status, r.o.Revisions.Epoch()); !errors.Is(err, errConflict) {
		return err
	}
	return nil
}

// admit creates the object of a machine that was not pending before. At most [store.MaxPending] objects
// remain: a replica that finds more after it created an object deletes that object.
func (r *Records) admit(ctx context.Context, now time.Time, p store.Pending) error {
	queued, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	leave, err := r.waiting.turns.enter(queued, "")
	if err != nil {
		return unavailable(err, "admit %s: other machines are being admitted", p.ID)
	}
	defer leave()
	// If the client disconnects, an object over the limit must still be deleted.
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 4*r.o.Timeout)
	defer stop()
	full := reason.Deny(reason.RateLimited, "%d machines are already waiting for approval", store.MaxPending)
	if left := r.waiting.full.Sub(now); left > 0 && left <= fullFor {
		return full
	}
	n, err := r.expire(ctx, now)
	if err != nil {
		return err
	}
	if n >= store.MaxPending {
		r.waiting.full = now.Add(fullFor)
		return full
	}
	key := r.pendingKey(p.EKSHA256)
	made, err := r.add(ctx, &v1alpha1.MachineAttestation{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name, Labels: map[string]string{labelPending: "true"},
	}})
	if kerrors.IsAlreadyExists(err) {
		return nil // created by another replica
	}
	if err != nil {
		return unavailable(err, "admit %s", p.ID)
	}
	if n, err = r.expire(ctx, now); err != nil {
		return err
	}
	if n > store.MaxPending {
		if err := r.removePending(ctx, made); err != nil {
			return err
		}
		return full
	}
	return r.seen(ctx, now, made, p)
}

// ListPending returns the pending machines, sorted by EK hash.
func (r *Records) ListPending(ctx context.Context, now time.Time) ([]store.Pending, error) {
	var all []store.Pending
	err := r.eachPending(ctx, func(_ *unstructured.Unstructured, a *v1alpha1.MachineAttestation) error {
		p := a.Status.Pending
		if p == nil || now.Sub(p.LastSeen.Time) > store.PendingLifetime {
			return nil
		}
		all = append(all, store.PendingOf(a))
		return nil
	})
	return all, err
}

// ExpirePending deletes the machines that have been pending for too long.
func (r *Records) ExpirePending(ctx context.Context, now time.Time) error {
	_, err := r.expire(ctx, now)
	return err
}

// expire deletes the machines that have been pending for too long, and returns the number of the
// others.
func (r *Records) expire(ctx context.Context, now time.Time) (left int, err error) {
	err = r.eachPending(ctx, func(o *unstructured.Unstructured, a *v1alpha1.MachineAttestation) error {
		last := a.CreationTimestamp.Time // for an object whose status was never written
		if a.Status.Pending != nil {
			last = a.Status.Pending.LastSeen.Time
		}
		if now.Sub(last) <= store.PendingLifetime {
			left++
			return nil
		}
		return r.removePending(ctx, o)
	})
	return left, err
}

// eachPending calls f for every pending machine, sorted by name.
func (r *Records) eachPending(
	ctx context.Context, f func(*unstructured.Unstructured, *v1alpha1.MachineAttestation) error,
) error {
	list := &unstructured.UnstructuredList{} // so that one object that cannot be decoded does not fail the list
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindMachineAttestation + "List"))
	err := r.do(ctx, "list", attestations, func(ctx context.Context) error {
		return r.o.Client.List(ctx, list, client.InNamespace(r.o.Namespace), client.HasLabels{labelPending})
	})
	if err != nil {
		return unavailable(err, "list pending machines")
	}
	for i := range list.Items {
		o := &list.Items[i]
		a, err := decode(o)
		if err != nil {
			r.o.Log.Error("a pending machine cannot be decoded and is not changed", "name", o.GetName(), "error", err)
			continue
		}
		if approved(a) || !strings.HasPrefix(a.Name, v1alpha1.PendingPrefix) {
			continue
		}
		if err := f(o, a); err != nil {
			return err
		}
	}
	return nil
}

// removePending deletes a pending machine unless it changed, because an approval must not be lost.
func (r *Records) removePending(ctx context.Context, o *unstructured.Unstructured) error {
	err := r.do(ctx, "delete", attestations, func(ctx context.Context) error {
		return r.o.Client.Delete(ctx, o, unchanged(o))
	})
	if overtaken(err) {
		return nil
	}
	return unavailable(err, "delete %s", o.GetName())
}

// DeletePending deletes the object of a machine that is no longer pending. It does not delete an object with
// which an administrator enrolled the machine.
func (r *Records) DeletePending(ctx context.Context, ekSHA256 string) error {
	o, err := r.get(ctx, r.pendingKey(ekSHA256))
	if Missing(err) {
		return nil
	}
	if err != nil {
		return unavailable(err, "check whether %s is pending", ekSHA256)
	}
	a, err := decode(o)
	if err != nil {
		return unavailable(err, "check whether %s is pending", ekSHA256)
	}
	switch p := a.Status.Pending; {
	case p != nil && p.EKSHA256 != ekSHA256:
		return nil
	case !approved(a):
		return r.removePending(ctx, o)
	case p == nil:
		return nil
	}
	return r.changePending(ctx, o, a, func(s *v1alpha1.MachineAttestationStatus) {
		s.Pending = nil
		if s.Phase == v1alpha1.PhasePending {
			s.Phase = ""
		}
	})
}
