// SPDX-License-Identifier: Apache-2.0

package policystatus

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

// rig is a Reconciler with an API that counts, and with the inventory of the test.
type rig struct {
	*testing.T
	*Reconciler
	api      client.Client
	writes   int
	refuse   error // of writes
	held     bool
	events   []events.Event
	policies map[string]inventory.Policy
	faults   map[types.NamespacedName]inventory.Fault
}

func (r *rig) Policy(name string) (inventory.Policy, bool) {
	p, ok := r.policies[name]
	return p, ok
}

func (r *rig) Fault(_ string, n types.NamespacedName) (inventory.Fault, bool) {
	f, ok := r.faults[n]
	return f, ok
}

func (r *rig) Emit(e events.Event) { r.events = append(r.events, e) }

func newRig(t *testing.T, objects ...client.Object) *rig {
	t.Helper()
	scheme, err := kube.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, policies: map[string]inventory.Policy{}, faults: map[types.NamespacedName]inventory.Fault{}}
	r.api = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.AttestationPolicy{}, &v1alpha1.MachineAttestation{}).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourceUpdate: func(
				ctx context.Context, c client.Client, sub string, o client.Object, all ...client.SubResourceUpdateOption,
			) error {
				if r.writes++; r.refuse != nil {
					return r.refuse
				}
				return c.SubResource(sub).Update(ctx, o, all...)
			},
			SubResourcePatch: func(
				ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
				all ...client.SubResourcePatchOption,
			) error {
				if r.writes++; r.refuse != nil {
					return r.refuse
				}
				return c.SubResource(sub).Patch(ctx, o, p, all...)
			},
		}).Build()
	r.Reconciler = New(Options{
		Now: time.Now, Limit: flowcontrol.NewFakeAlwaysRateLimiter(), Events: r, Inventory: r,
		Held: func() bool { return r.held },
	})
	r.reader, r.writer = r.api, r.api
	return r
}

var (
	policyKind      = sources.Kind{Group: v1alpha1.GroupVersion.Group, Resource: "attestationpolicies"}
	attestationKind = sources.Kind{Group: v1alpha1.GroupVersion.Group, Resource: "machineattestations"}
)

func (r *rig) do(request reconcile.Request) (writes, events int) {
	r.Helper()
	writes, events = r.writes, len(r.events)
	if _, err := r.Reconcile(r.Context(), request); err != nil {
		r.Fatal(err)
	}
	return r.writes - writes, len(r.events) - events
}

// seen has the inventory see the policy as the API has it.
func (r *rig) seen(name string, change func(*inventory.Policy)) {
	r.Helper()
	p := inventory.Policy{Object: &v1alpha1.AttestationPolicy{}}
	if err := r.api.Get(r.Context(), client.ObjectKey{Name: name}, p.Object); err != nil {
		r.Fatal(err)
	}
	if change != nil {
		change(&p)
	}
	r.policies[name] = p
}

// The inventory requests each fault every minute. client-go would suppress so many Events, and the verifier would
// count them as lost.
func TestReconcile_AFaultIsNotReportedEachMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		name := types.NamespacedName{Namespace: "ns", Name: "roots"}
		request := sources.Kind{Resource: "configmaps"}.Request(name)
		fault := inventory.Fault{Text: "one",
			About: events.Object{Kind: "ConfigMap", Namespace: "ns", Name: "roots", UID: "1"}}
		r.faults[name] = fault
		for range 90 {
			r.do(request)
			time.Sleep(time.Minute)
		}
		if n := len(r.events); n != 6 {
			t.Errorf("%d Events in 90 minutes", n)
		}
		fault.Text = "another"
		r.faults[name] = fault
		if _, n := r.do(request); n != 1 {
			t.Errorf("%d Events about another fault", n)
		}
		fault.About.UID = "2"
		r.faults[name] = fault
		if _, n := r.do(request); n != 1 {
			t.Errorf("%d Events about another object of the name", n)
		}
		delete(r.faults, name)
		r.do(request)
		r.faults[name] = fault
		if _, n := r.do(request); n != 1 {
			t.Errorf("%d Events about a fault that came back", n)
		}
	})
}

// After a restore of etcd two replicas may lead for a moment, and only one of them may have noticed it.
func TestReconcile_TheWritesOfReplicasThatDisagreeHavePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time advances only while all goroutines wait
		r := newRig(t, &v1alpha1.AttestationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 3}})
		request := policyKind.Request(types.NamespacedName{Name: "p"})
		var result reconcile.Result
		for range 5*withoutPause + 1 {
			r.held = !r.held
			r.seen("p", nil)
			var err error
			if result, err = r.Reconcile(t.Context(), request); err != nil {
				t.Fatal(err)
			}
		}
		if r.writes != withoutPause || result.RequeueAfter <= 0 || result.RequeueAfter > writeInterval {
			t.Errorf("%d writes, then %+v", r.writes, result)
		}
		delete(r.policies, "p")
		if r.do(request); len(r.Reconciler.writes) > 0 {
			t.Error("a policy that was deleted is still counted")
		}
	})
}

func TestReconcile_Policy(t *testing.T) {
	object := &v1alpha1.AttestationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 3}}
	r := newRig(t, object)
	request := policyKind.Request(types.NamespacedName{Name: "p"})
	if writes, events := r.do(request); writes+events > 0 {
		t.Errorf("a policy that the inventory does not have: %d writes, %d Events", writes, events)
	}
	for _, step := range []struct {
		what           string
		change         func(*inventory.Policy)
		held           bool
		status         metav1.ConditionStatus
		reason         string
		writes, events int
	}{
		{what: "accepted", status: metav1.ConditionTrue, reason: "Accepted", writes: 1},
		{what: "again", status: metav1.ConditionTrue, reason: "Accepted"},
		{"a pool that does not exist", func(p *inventory.Policy) { p.UnknownPools = []string{"wroker"} }, false,
			metav1.ConditionTrue, "PoolNotFound", 1, 1},
		{"still not there", func(p *inventory.Policy) { p.UnknownPools = []string{"wroker"} }, false,
			metav1.ConditionTrue, "PoolNotFound", 0, 0},
		{"a clash", func(p *inventory.Policy) { p.Clash = "the same pool" }, false, metav1.ConditionFalse,
			"ContradictsAnother", 1, 1},
		{"not usable", func(p *inventory.Policy) { p.Fault = "broken" }, false, metav1.ConditionFalse, "NotUsable", 1, 0},
		{"not usable since the start", func(p *inventory.Policy) { p.Fault, p.NeverUsable = "broken", true }, false,
			metav1.ConditionFalse, "NotUsable", 1, 0},
		{"a restore", func(p *inventory.Policy) { p.Clash = "the same pool" }, true, metav1.ConditionFalse, restore.Reason,
			1, 0},
		{what: "usable again", status: metav1.ConditionTrue, reason: "Accepted", writes: 1},
	} {
		r.seen("p", step.change)
		r.held = step.held
		writes, events := r.do(request)
		var now v1alpha1.AttestationPolicy
		if err := r.api.Get(t.Context(), client.ObjectKey{Name: "p"}, &now); err != nil {
			t.Fatal(err)
		}
		c := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionAccepted)
		if c == nil || c.Status != step.status || c.Reason != step.reason || c.ObservedGeneration != 3 ||
			now.Status.ObservedGeneration != 3 {
			t.Errorf("%s: %+v", step.what, now.Status)
		}
		if writes != step.writes || events != step.events {
			t.Errorf("%s: %d writes, %d Events", step.what, writes, events)
		}
	}

	// The API has a newer version than the inventory: nothing is said of it.
	r.seen("p", func(p *inventory.Policy) { p.Clash = "old"; p.Object.ResourceVersion = "1" })
	r.do(request)
	var now v1alpha1.AttestationPolicy
	if err := r.api.Get(t.Context(), client.ObjectKey{Name: "p"}, &now); err != nil {
		t.Fatal(err)
	}
	if c := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionAccepted); c.Reason != "Accepted" {
		t.Errorf("a condition about an older version: %+v", c)
	}
	clear(r.Reconciler.writes)
	r.refuse = errors.New("away")
	if _, err := r.Reconcile(t.Context(), request); err == nil {
		t.Error("a failed write is no error")
	}
}

func TestReconcile_Attestation(t *testing.T) {
	name := types.NamespacedName{Namespace: "m", Name: "a"}
	r := newRig(t, &v1alpha1.MachineAttestation{ObjectMeta: metav1.ObjectMeta{Namespace: "m", Name: "a", Generation: 2}})
	request := attestationKind.Request(name)
	accepted := func() *metav1.Condition {
		t.Helper()
		var o v1alpha1.MachineAttestation
		if err := r.api.Get(t.Context(), name, &o); err != nil {
			t.Fatal(err)
		}
		return meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionAccepted)
	}
	if writes, events := r.do(request); writes+events > 0 || accepted() != nil {
		t.Errorf("one that was never refused: %d writes, %d Events", writes, events)
	}
	r.faults[name] = inventory.Fault{Generation: 1, Text: "old"}
	if writes, _ := r.do(request); writes > 0 {
		t.Error("the fault of an older generation is reported")
	}
	r.faults[name] = inventory.Fault{Generation: 2, Text: "zeros"}
	if writes, events := r.do(request); writes != 1 || events != 1 || r.events[0].Reason != "NotUsable" {
		t.Errorf("not usable: %d writes, %d Events", writes, events)
	}
	if c := accepted(); c == nil || c.Status != metav1.ConditionFalse || c.Reason != "NotUsable" || c.Message != "zeros" {
		t.Errorf("%+v", c)
	}
	if writes, _ := r.do(request); writes > 0 {
		t.Error("the same condition is written again")
	}
	delete(r.faults, name)
	r.refuse = kerrors.NewConflict(v1alpha1.GroupVersion.WithResource("machineattestations").GroupResource(), "a",
		errors.New("changed"))
	r.do(request) // another one follows
	r.refuse = nil
	r.do(request)
	if c := accepted(); c.Status != metav1.ConditionTrue || c.Reason != "Accepted" {
		t.Errorf("usable again: %+v", c)
	}
	gone := types.NamespacedName{Namespace: "m", Name: "gone"}
	if writes, events := r.do(attestationKind.Request(gone)); writes+events > 0 {
		t.Errorf("one that is gone: %d writes, %d Events", writes, events)
	}
}

// The API server accepts times in lower case, which this program cannot decode.
func TestReconcile_AttestationThatCannotBeDecoded(t *testing.T) {
	const small = "2026-11-27t04:00:00z"
	name := types.NamespacedName{Namespace: "m", Name: "a"}
	o := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": "m", "name": "a", "generation": int64(1)},
		"status": map[string]any{"lastAttested": small, "conditions": []any{
			map[string]any{"type": "Accepted", "status": "True", "lastTransitionTime": small},
			map[string]any{"type": "Other", "status": "True", "lastTransitionTime": small},
		}},
	}}
	gvk := v1alpha1.GroupVersion.WithKind(v1alpha1.KindMachineAttestation)
	o.SetGroupVersionKind(gvk)
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(gvk, o)
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(o).WithStatusSubresource(o).Build()
	r := newRig(t)
	r.reader, r.writer = api, api
	r.faults[name] = inventory.Fault{Generation: 1, Text: "a time"}
	r.do(attestationKind.Request(name))
	if err := api.Get(t.Context(), name, o); err != nil {
		t.Fatal(err)
	}
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	found := map[any]any{}
	for _, c := range all {
		m, _ := c.(map[string]any)
		found[m["type"]] = m["status"]
	}
	if want := (map[any]any{"Accepted": "False", "Other": "True"}); len(all) != 2 || !maps.Equal(found, want) {
		t.Errorf("the conditions are %v", all)
	}
}

// Of other kinds there is only an Event.
func TestReconcile_AnyOtherObject(t *testing.T) {
	r := newRig(t)
	name := types.NamespacedName{Namespace: "m", Name: "machine"}
	request := sources.Kind{Group: "machine.openshift.io", Resource: "machines"}.Request(name)
	r.faults[name] = inventory.Fault{About: events.Object{Kind: "Machine", Name: "machine"}, Text: "nonsense"}
	if writes, n := r.do(request); writes != 0 || n != 1 || r.events[0].About.Kind != "Machine" ||
		r.events[0].Message != "nonsense" {
		t.Errorf("%d writes, %+v", writes, r.events)
	}
	delete(r.faults, name)
	if writes, n := r.do(request); writes+n != 0 {
		t.Errorf("%d writes, %d Events about one that can be used", writes, n)
	}
}
