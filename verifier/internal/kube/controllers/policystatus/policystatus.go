// SPDX-License-Identifier: Apache-2.0

// Package policystatus maintains the condition Accepted of AttestationPolicies, and of
// MachineAttestations that cannot be used or previously could not. It writes Events about every object
// that cannot be used as it is.
//
// It watches nothing: the inventory, which reads those objects, requests a reconciliation of each one
// that has changed. A request names an object of any kind as kubectl does: resource/name.
//
// Its permissions:
//
//	attestationpolicies/status                                      update
//	machineattestations, in the namespaces of Machines              get
//	machineattestations/status, in the namespaces of Machines       patch
//	events, in those namespaces and the verifier's own              create, patch
//	events, in the namespace default                                create
//
// If it runs twice, the writes conflict, and the later one is dropped. The first write is a change,
// which requests another reconciliation. Two replicas that disagree replace each other's condition, so
// the writes to one policy have pauses. If it runs late, the condition is outdated. No decision depends
// on it.
package policystatus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

// Reasons of conditions and Events.
const (
	reasonAccepted  = "Accepted"
	reasonNotUsable = "NotUsable"
	reasonClash     = "ContradictsAnother"
	reasonNoPool    = "PoolNotFound"
)

// The kinds with a condition.
var (
	policies     = v1alpha1.GroupVersion.WithResource("attestationpolicies").GroupResource().String()
	attestations = v1alpha1.GroupVersion.WithResource("machineattestations").GroupResource().String()
)

// Inventory is the cached state of the cluster.
type Inventory interface {
	// Policy returns the state of an AttestationPolicy, or false if there is none.
	Policy(name string) (inventory.Policy, bool)
	// Fault returns why an object cannot be used as it is, or false if it can.
	Fault(resource string, name types.NamespacedName) (inventory.Fault, bool)
}

// Options configure a Reconciler. All are required.
type Options struct {
	Now       func() time.Time
	Limit     flowcontrol.RateLimiter // of writes
	Events    events.Sink
	Inventory Inventory
	Trigger   *kube.Trigger
	// Held reports whether the policies from before a restore of etcd are in force, instead of those of
	// the cluster.
	Held func() bool
}

// Reconciler maintains the conditions.
type Reconciler struct {
	o      Options
	reader client.Reader // live
	writer client.StatusClient

	mu       sync.Mutex
	writes   map[string]*rate.Limiter      // by the name of the policy
	reported map[reconcile.Request]warning // of objects that cannot be used
}

// warning is the last Event about an object that cannot be used.
type warning struct {
	event events.Event
	at    time.Time
}

// One policy has this many writes without a pause, and then one in each interval.
const (
	withoutPause  = 8
	writeInterval = 15 * time.Second
	// reminder is the time after which an unchanged fault is reported again, because an Event can be lost, and
	// Kubernetes deletes it after an hour. client-go suppresses more than one in five minutes. The inventory requests
	// a reconciliation of each fault every minute.
	reminder = 15 * time.Minute
)

// New returns a Reconciler.
func New(o Options) *Reconciler {
	return &Reconciler{o: o, writes: map[string]*rate.Limiter{}, reported: map[reconcile.Request]warning{}}
}

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	r.reader, r.writer = m.GetAPIReader(), m.GetClient()
	return ctrl.NewControllerManagedBy(m).Named("policystatus").WatchesRawSource(r.o.Trigger).
		WithOptions(kube.ControllerOptions()).Complete(r)
}

// Reconcile reports one object.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	resource, name := sources.Requested(request)
	fault, bad := r.o.Inventory.Fault(resource, name)
	r.warn(request, fault, bad)
	switch resource {
	case policies:
		return r.policy(ctx, name.Name)
	case attestations:
		return reconcile.Result{}, r.attestation(ctx, name, fault, bad)
	}
	return reconcile.Result{}, nil
}

// warn writes an Event about an object that cannot be used, if it says something new.
func (r *Reconciler) warn(request reconcile.Request, fault inventory.Fault, bad bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !bad {
		delete(r.reported, request)
		return
	}
	event := events.Event{About: fault.About, Warning: true, Reason: reasonNotUsable, Message: fault.Text}
	if last, now := r.reported[request], r.o.Now(); last.event != event || now.Sub(last.at) >= reminder {
		r.o.Events.Emit(event)
		r.reported[request] = warning{event, now}
	}
}

// policy maintains the condition of an AttestationPolicy. It writes with the resourceVersion that the
// inventory has. So it needs no read, and never reports on a newer version what applies to an older
// one.
func (r *Reconciler) policy(ctx context.Context, name string) (result reconcile.Result, err error) {
	p, ok := r.o.Inventory.Policy(name)
	if !ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.writes, name)
		return result, nil
	}
	want := accepted(p, r.o.Held())
	o := p.Object.DeepCopy()
	before := meta.FindStatusCondition(p.Object.Status.Conditions, want.Type)
	if !r.set(&o.Status.Conditions, want) && o.Status.ObservedGeneration == o.Generation {
		return result, nil
	}
	if result.RequeueAfter = r.pause(name); result.RequeueAfter > 0 {
		return result, nil
	}
	o.Status.ObservedGeneration = o.Generation
	if err := r.o.Limit.Wait(ctx); err != nil {
		return result, fmt.Errorf("wait to write the status of policy %s: %w", name, err)
	}
	if err := r.writer.Status().Update(ctx, o); overtaken(err) {
		return result, nil
	} else if err != nil {
		return result, fmt.Errorf("write the status of policy %s: %w", name, err)
	}
	// Reconcile already reported a policy that cannot be used.
	if (want.Reason == reasonClash || want.Reason == reasonNoPool) && (before == nil || before.Reason != want.Reason) {
		r.o.Events.Emit(events.Event{
			About: events.Object{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindAttestationPolicy, Name: name,
				UID: string(o.UID)},
			Warning: true, Reason: want.Reason, Message: want.Message,
		})
	}
	return result, nil
}

// pause returns how long the next write to a policy has to wait. If it is zero, the write is counted.
func (r *Reconciler) pause(name string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writes[name] == nil {
		r.writes[name] = rate.NewLimiter(rate.Every(writeInterval), withoutPause)
	}
	turn := r.writes[name].Reserve()
	pause := turn.Delay()
	if pause > 0 {
		turn.Cancel() // a later reconciliation writes what is right then
	}
	return pause
}

// accepted returns the condition that a policy should have.
func accepted(p inventory.Policy, held bool) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: reasonNotUsable,
		ObservedGeneration: p.Object.Generation,
	}
	switch {
	case held:
		c.Reason = restore.Reason
		c.Message = "the policies from before the restore of etcd stay in force until an administrator acknowledges it"
	case p.Fault != "" && p.NeverUsable:
		c.Message = p.Fault + "; it has no earlier valid state, and the policy of \"*\" does not apply in its place"
	case p.Fault != "":
		c.Message = p.Fault
	case p.Clash != "":
		c.Reason, c.Message = reasonClash, p.Clash
	case len(p.UnknownPools) > 0:
		c.Status, c.Reason = metav1.ConditionTrue, reasonNoPool
		c.Message = "in force; these MachineConfigPools do not exist: " + strings.Join(p.UnknownPools, ", ")
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonAccepted, inForce
	}
	c.Message = sources.Truncate(c.Message)
	return c
}

const inForce = "in force"

// attestation maintains the condition of a MachineAttestation. An object that was always usable needs
// none.
func (r *Reconciler) attestation(
	ctx context.Context, name types.NamespacedName, fault inventory.Fault, bad bool,
) error {
	o := new(unstructured.Unstructured) // one that cannot be decoded has a condition as well
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindMachineAttestation))
	if err := r.reader.Get(ctx, name, o); kerrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("read MachineAttestation %s: %w", name, err)
	}
	want := metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: reasonAccepted, Message: inForce,
		ObservedGeneration: o.GetGeneration(),
	}
	all, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	if err != nil {
		return fmt.Errorf("read the conditions of MachineAttestation %s: %w", name, err)
	}
	at := slices.IndexFunc(all, func(c any) bool {
		m, _ := c.(map[string]any)
		return m["type"] == want.Type
	})
	switch {
	case bad && fault.Generation != o.GetGeneration():
		return nil // the inventory will receive the newer version
	case bad:
		want.Status, want.Reason, want.Message = metav1.ConditionFalse, reasonNotUsable, fault.Text
	case at < 0:
		return nil
	}
	patch := client.MergeFromWithOptions(o.DeepCopy(), client.MergeFromWithOptimisticLock{})
	var own []metav1.Condition
	if at >= 0 {
		var c metav1.Condition
		m, _ := all[at].(map[string]any)
		if runtime.DefaultUnstructuredConverter.FromUnstructured(m, &c) == nil {
			own = append(own, c)
		}
	} else {
		at, all = len(all), append(all, nil)
	}
	if !r.set(&own, want) {
		return nil
	}
	written, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&own[0])
	if err != nil {
		return fmt.Errorf("encode the condition of MachineAttestation %s: %w", name, err)
	}
	all[at] = written
	if err := unstructured.SetNestedSlice(o.Object, all, "status", "conditions"); err != nil {
		return fmt.Errorf("set the condition of MachineAttestation %s: %w", name, err)
	}
	if err := r.o.Limit.Wait(ctx); err != nil {
		return err
	}
	if err := r.writer.Status().Patch(ctx, o, patch); err != nil && !overtaken(err) {
		return fmt.Errorf("write the status of MachineAttestation %s: %w", name, err)
	}
	return nil
}

// set sets a condition with the time of the verifier's clock, and reports whether it changed anything.
func (r *Reconciler) set(conditions *[]metav1.Condition, want metav1.Condition) bool {
	want.LastTransitionTime = metav1.NewTime(r.o.Now().UTC().Truncate(time.Second))
	return meta.SetStatusCondition(conditions, want)
}

// overtaken reports whether the object was changed or deleted before the write. Then another
// reconciliation follows.
func overtaken(err error) bool { return kerrors.IsConflict(err) || kerrors.IsNotFound(err) }
