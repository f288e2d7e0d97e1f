package cluster

import (
	"context"
	"errors"
	"strings"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// A machine that waits is a MachineAttestation in the verifier's namespace, with
// neither machineRef nor pool. An administrator who fills in one of them has made
// an enrolment of it, and the verifier leaves it alone.

const (
	labelPending = "mcs-attest.dev/pending"

	// seenEvery is how often a machine's asking again is written down.
	seenEvery = 10 * time.Minute

	// fullFor is for how long nobody new is let in when there are too many.
	fullFor = 10 * time.Second
)

// waitingRoom lets one new machine in at a time, so that few too many are let in
// at once and then put out again.
type waitingRoom struct {
	door turns
	full time.Time // until when nobody need look again; whoever is at the door has it
}

func pendingName(ekSHA256 string) string {
	return v1alpha1.PendingPrefix + ekSHA256[:min(len(ekSHA256), 16)]
}

// approved reports whether an administrator has decided.
func approved(a *v1alpha1.MachineAttestation) bool {
	return a.Spec.MachineRef != nil || a.Spec.Pool != ""
}

// Wait notes that p was seen now. When there are too many it is a RateLimited.
func (r *Records) Wait(ctx context.Context, now time.Time, p store.Pending) error {
	o, err := r.get(ctx, attestationsResource, r.namespace, pendingName(p.EKSHA256))
	if missing(err) {
		return r.letIn(ctx, now, p)
	}
	if err != nil {
		return unavailable(err, "who waits")
	}
	return r.seen(ctx, now, o, p)
}

// seen writes down that a machine is still there.
func (r *Records) seen(ctx context.Context, now time.Time, o *unstructured.Unstructured, p store.Pending) error {
	a, err := decode(o)
	if err != nil {
		return unavailable(err, "who waits")
	}
	first := now
	if old := a.Status.Pending; old != nil {
		if old.EKSHA256 != p.EKSHA256 {
			return reason.Deny(reason.StoreUnavailable, "%s is of another EK", a.Name)
		}
		if now.Sub(old.LastSeen.Time) < seenEvery {
			return nil
		}
		first = old.FirstSeen.Time
	}
	if approved(a) {
		return nil // what was approved is on its way here
	}
	before, err := content(a.Status)
	if err != nil {
		return unavailable(err, "who waits")
	}
	a.Status.Phase = v1alpha1.PhasePending
	a.Status.Pending = &v1alpha1.PendingMachine{
		EKSHA256: p.EKSHA256, Pool: p.Pool, FirstSeen: metav1.NewTime(first), LastSeen: metav1.NewTime(now),
		Source: p.Source, Certificate: p.Certificate, Claims: p.Claims,
	}
	after, err := content(a.Status)
	if err != nil {
		return unavailable(err, "who waits")
	}
	if err := r.writeStatus(ctx, o, before, after); err != nil && !errors.Is(err, errOvertaken) {
		return err
	}
	return nil // or another replica has seen it just now, or an administrator
}

// letIn makes the object of a machine that did not wait before. There are never
// more than [store.MaxPending] that stay: whoever counts too many after having
// come in goes out again.
func (r *Records) letIn(ctx context.Context, now time.Time, p store.Pending) error {
	queued, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	leave, err := r.waiting.door.enter(queued, "")
	if err != nil {
		return unavailable(err, "let %s wait: others are at it", p.ID)
	}
	defer leave()
	// A client that hangs up must not leave an object behind that is over the limit.
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 4*r.timeout)
	defer stop()
	full := reason.Deny(reason.RateLimited, "%d machines wait for approval already", store.MaxPending)
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
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.APIVersion, "kind": v1alpha1.KindMachineAttestation,
		"metadata": map[string]any{"namespace": r.namespace, "name": pendingName(p.EKSHA256), "labels": map[string]any{labelPending: "true"}},
	}}
	var made *unstructured.Unstructured
	err = r.do(ctx, "create", attestationsResource, "", func(ctx context.Context) (err error) {
		made, err = r.client.Resource(attestationsResource).Namespace(r.namespace).Create(ctx, o, metav1.CreateOptions{})
		return err
	})
	if kerrors.IsAlreadyExists(err) {
		return nil // by another replica
	}
	if err != nil {
		return unavailable(err, "let %s wait", p.ID)
	}
	if n, err = r.expire(ctx, now); err != nil {
		return err
	}
	if n > store.MaxPending {
		if err := r.deletePending(ctx, made); err != nil {
			return err
		}
		return full
	}
	return r.seen(ctx, now, made, p)
}

// Waiting lists what waits, by EK hash.
func (r *Records) Waiting(ctx context.Context, now time.Time) ([]store.Pending, error) {
	var all []store.Pending
	err := r.eachPending(ctx, func(_ *unstructured.Unstructured, a *v1alpha1.MachineAttestation) error {
		p := a.Status.Pending
		if p == nil || now.Sub(p.LastSeen.Time) > store.PendingLifetime {
			return nil
		}
		all = append(all, store.Pending{
			ID: strings.TrimPrefix(a.Name, v1alpha1.PendingPrefix), EKSHA256: p.EKSHA256, Pool: p.Pool, FirstSeen: p.FirstSeen.Time, LastSeen: p.LastSeen.Time,
			Source: p.Source, Certificate: p.Certificate, Claims: p.Claims,
		})
		return nil
	})
	return all, err
}

// ExpirePending removes what waited too long.
func (r *Records) ExpirePending(ctx context.Context, now time.Time) error {
	_, err := r.expire(ctx, now)
	return err
}

// expire removes what waited too long and counts the rest.
func (r *Records) expire(ctx context.Context, now time.Time) (left int, err error) {
	err = r.eachPending(ctx, func(o *unstructured.Unstructured, a *v1alpha1.MachineAttestation) error {
		last := a.CreationTimestamp.Time // of one whose status was never written
		if a.Status.Pending != nil {
			last = a.Status.Pending.LastSeen.Time
		}
		if now.Sub(last) <= store.PendingLifetime {
			left++
			return nil
		}
		return r.deletePending(ctx, o)
	})
	return left, err
}

// eachPending calls f for every machine that waits, in the order of their names.
func (r *Records) eachPending(ctx context.Context, f func(*unstructured.Unstructured, *v1alpha1.MachineAttestation) error) error {
	var list *unstructured.UnstructuredList
	err := r.do(ctx, "list", attestationsResource, "", func(ctx context.Context) (err error) {
		list, err = r.client.Resource(attestationsResource).Namespace(r.namespace).List(ctx, metav1.ListOptions{LabelSelector: labelPending})
		return err
	})
	if err != nil {
		return unavailable(err, "who waits")
	}
	for _, o := range list.Items {
		a, err := decode(&o)
		if err != nil {
			r.log.Error("a pending enrolment cannot be read, and is left alone", "name", o.GetName(), "error", err)
			continue
		}
		if approved(a) || !strings.HasPrefix(a.Name, v1alpha1.PendingPrefix) {
			continue
		}
		if err := f(&o, a); err != nil {
			return err
		}
	}
	return nil
}

// deletePending deletes what waits, unless it changed: an approval must not be lost.
func (r *Records) deletePending(ctx context.Context, o *unstructured.Unstructured) error {
	err := r.do(ctx, "delete", attestationsResource, "", func(ctx context.Context) error {
		return r.client.Resource(attestationsResource).Namespace(o.GetNamespace()).Delete(ctx, o.GetName(), exactly(o, true))
	})
	if kerrors.IsConflict(err) || missing(err) {
		return nil
	}
	return unavailable(err, "remove %s", o.GetName())
}

// Settled removes what no longer waits. An object that an administrator has made
// an enrolment of stays.
func (r *Records) Settled(ctx context.Context, ekSHA256 string) error {
	o, err := r.get(ctx, attestationsResource, r.namespace, pendingName(ekSHA256))
	if missing(err) {
		return nil
	}
	if err != nil {
		return unavailable(err, "does %s wait", ekSHA256)
	}
	a, err := decode(o)
	if err != nil {
		return unavailable(err, "does %s wait", ekSHA256)
	}
	p := a.Status.Pending
	if p != nil && p.EKSHA256 != ekSHA256 {
		return nil
	}
	if !approved(a) {
		return r.deletePending(ctx, o)
	}
	if p == nil {
		return nil
	}
	before, err := content(a.Status)
	if err != nil {
		return unavailable(err, "does %s wait", ekSHA256)
	}
	a.Status.Pending = nil
	if a.Status.Phase == v1alpha1.PhasePending {
		a.Status.Phase = ""
	}
	after, err := content(a.Status)
	if err != nil {
		return unavailable(err, "does %s wait", ekSHA256)
	}
	if err := r.writeStatus(ctx, o, before, after); err != nil && !errors.Is(err, errOvertaken) {
		return err
	}
	return nil
}
