// SPDX-License-Identifier: Apache-2.0

package verifierstatus

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	kerrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// rig is a Reconciler with an API that counts.
type rig struct {
	*testing.T
	*Reconciler
	api                     client.Client
	reads, writes           int
	refuse                  error // of the next write
	now                     time.Time
	unavailable, inProgress view.Finding
	findings                []view.Finding
	door                    metav1.Condition
	nodes                   []string
	known                   bool
	acknowledged            map[string]string
	degraded                map[string]bool
}

func newRig(t *testing.T) *rig {
	t.Helper()
	scheme, err := kube.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, degraded: map[string]bool{}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	r.api = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.AttestationVerifier{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object,
				all ...client.GetOption) error {
				r.reads++
				return c.Get(ctx, k, o, all...)
			},
			SubResourceUpdate: func(
				ctx context.Context, c client.Client, sub string, o client.Object, all ...client.SubResourceUpdateOption,
			) error {
				r.writes++
				if err := r.refuse; err != nil {
					r.refuse = nil
					return err
				}
				return c.SubResource(sub).Update(ctx, o, all...)
			},
		}).Build()
	r.Reconciler = New(Options{
		Now: func() time.Time { return r.now }, Limit: flowcontrol.NewFakeAlwaysRateLimiter(), Holder: "me", Version: "1.2.3",
		Unavailable: func() view.Finding { return r.unavailable }, Progressing: func() view.Finding { return r.inProgress },
		Findings: []Findings{func() []view.Finding { return r.findings }, func() []view.Finding { return nil }},
		Degraded: func(reason string, exists bool) {
			if r.degraded[reason] = exists; !exists {
				delete(r.degraded, reason)
			}
		},
		Conditions:        []Condition{func() metav1.Condition { return r.door }},
		ControlPlaneNodes: func([]string) ([]string, bool) { return r.nodes, r.known },
		Acknowledge:       func(a map[string]string) { r.acknowledged = a },
	})
	r.reader, r.writer = r.api, r.api
	return r
}

// do reconciles, and returns the status and what it cost.
func (r *rig) do() (s v1alpha1.AttestationVerifierStatus, reads, writes int) {
	r.Helper()
	reads, writes = r.reads, r.writes
	result, err := r.Reconcile(r.Context(), reconcile.Request{})
	if err != nil || result.RequeueAfter != interval {
		r.Fatalf("%+v, %v", result, err)
	}
	reads, writes = r.reads-reads, r.writes-writes
	var v v1alpha1.AttestationVerifier
	if err := r.api.Get(r.Context(), client.ObjectKey{Name: v1alpha1.VerifierName}, &v); err != nil {
		r.Fatal(err)
	}
	return v.Status, reads, writes
}

func (r *rig) is(what string, s v1alpha1.AttestationVerifierStatus, kind string, status metav1.ConditionStatus,
	reason string) {
	r.Helper()
	if c := meta.FindStatusCondition(s.Conditions, kind); c == nil || c.Status != status || c.Reason != reason {
		r.Errorf("%s: %s is %+v", what, kind, c)
	}
}

func TestReconcile_WritesOnlyWhatChanged(t *testing.T) {
	r := newRig(t)
	s, _, writes := r.do()
	if writes != 1 || s.Holder != "me" || s.Version != "1.2.3" || len(s.Conditions) != 4 {
		t.Errorf("at first: %d writes, %+v", writes, s)
	}
	r.is("at first", s, v1alpha1.ConditionAvailable, metav1.ConditionTrue, "AsExpected")
	r.is("at first", s, v1alpha1.ConditionUpgradeable, metav1.ConditionTrue, "AsExpected")
	for range 30 {
		r.now = r.now.Add(time.Second)
		if _, reads, writes := r.do(); reads+writes > 0 {
			t.Fatalf("nothing changed: %d reads, %d writes", reads, writes)
		}
	}
	r.now = r.now.Add(time.Hour)
	if _, reads, writes := r.do(); reads != 1 || writes != 0 {
		t.Errorf("after the resync interval: %d reads, %d writes", reads, writes)
	}

	before := r.now
	r.now = r.now.Add(time.Minute / 2)
	r.findings = []view.Finding{{Reason: "Grave", Text: "a"}, {Reason: "Light", Text: "b"}}
	s, _, writes = r.do()
	r.is("findings", s, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "Grave")
	degraded := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDegraded)
	available := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionAvailable)
	if writes != 1 || degraded.Message != "a\nb" || !degraded.LastTransitionTime.Time.Equal(r.now) ||
		available.LastTransitionTime.Time.After(before) {
		t.Errorf("%d writes, %+v, %+v", writes, degraded, available)
	}

	// Another client's change is undone, at the latest after the resync interval.
	var v v1alpha1.AttestationVerifier
	if err := r.api.Get(t.Context(), client.ObjectKey{Name: v1alpha1.VerifierName}, &v); err != nil {
		t.Fatal(err)
	}
	v.Status = v1alpha1.AttestationVerifierStatus{}
	if err := r.api.Status().Update(t.Context(), &v); err != nil {
		t.Fatal(err)
	}
	r.now = r.now.Add(time.Minute)
	s, _, _ = r.do()
	r.is("undone", s, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "Grave")
}

func TestReconcile_ReportsEachReasonUntilItEnds(t *testing.T) {
	r := newRig(t)
	want := func(when string, reasons ...string) {
		t.Helper()
		if got := slices.Sorted(maps.Keys(r.degraded)); !slices.Equal(got, reasons) {
			t.Errorf("%s: %q", when, got)
		}
	}
	r.findings = []view.Finding{{Reason: "A", Text: "a"}, {Reason: "B", Text: "b"}, {Reason: "B", Text: "c"}}
	r.do()
	want("two reasons", "A", "B")
	r.findings = r.findings[:1]
	r.refuse = errors.New("the API does not answer")
	_, _ = r.Reconcile(t.Context(), reconcile.Request{})
	want("one has ended", "A")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.end(ctx); err != nil {
		t.Fatal(err)
	}
	want("another replica leads")
	r.do()
	want("a Reconcile ended later")
}

func TestReconcile_ReadsAgainAfterAConflict(t *testing.T) {
	r := newRig(t)
	r.refuse = kerrors.NewConflict(v1alpha1.GroupVersion.WithResource("attestationverifiers").GroupResource(), "cluster",
		errors.New("changed"))
	if s, _, writes := r.do(); writes != 1 || s.Holder != "" {
		t.Errorf("%d writes, %+v", writes, s)
	}
	if s, reads, writes := r.do(); reads != 1 || writes != 1 || s.Holder != "me" {
		t.Errorf("then: %d reads, %d writes, %+v", reads, writes, s)
	}
	r.refuse, r.findings = errors.New("away"), []view.Finding{{Reason: "R", Text: "t"}}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err == nil {
		t.Error("a failed write is no error")
	}
	r.findings = nil // as it was; but what was written is not known
	if _, reads, _ := r.do(); reads != 1 {
		t.Errorf("%d reads", reads)
	}
}

func TestReconcile_WhatHoldsAnUpgrade(t *testing.T) {
	r := newRig(t)
	r.findings = []view.Finding{{Reason: restore.Reason, Text: "went back"}, {Reason: "Light", Text: "b"}}
	s, _, _ := r.do()
	r.is("restore", s, v1alpha1.ConditionUpgradeable, metav1.ConditionFalse, restore.Reason)
	r.is("restore", s, v1alpha1.ConditionAvailable, metav1.ConditionTrue, "AsExpected")
	r.unavailable, r.inProgress = view.Finding{Reason: "NoKeys", Text: "none"}, view.Finding{Reason: "Syncing", Text: "x"}
	s, _, _ = r.do()
	r.is("unavailable", s, v1alpha1.ConditionUpgradeable, metav1.ConditionFalse, "NoKeys")
	r.is("unavailable", s, v1alpha1.ConditionAvailable, metav1.ConditionFalse, "NoKeys")
	r.is("unavailable", s, v1alpha1.ConditionProgressing, metav1.ConditionTrue, "Syncing")

	var v v1alpha1.AttestationVerifier
	if err := r.api.Get(t.Context(), client.ObjectKey{Name: v1alpha1.VerifierName}, &v); err != nil {
		t.Fatal(err)
	}
	v.Annotations = map[string]string{"a": "b"}
	if err := r.api.Update(t.Context(), &v); err != nil {
		t.Fatal(err)
	}
	r.now = r.now.Add(time.Minute)
	r.do()
	if r.acknowledged["a"] != "b" {
		t.Errorf("the annotations are not received: %v", r.acknowledged)
	}
}

func TestReconcile_OtherConditionsAndTheListOfNodes(t *testing.T) {
	r := newRig(t)
	r.nodes, r.known = []string{"one"}, true
	r.door = metav1.Condition{Type: v1alpha1.ConditionDoorOpen, Status: metav1.ConditionTrue, Reason: "R",
		Message: strings.Repeat("é", maxMessage)}
	s, _, _ := r.do()
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDoorOpen)
	if c == nil || len(c.Message) > maxMessage || !slices.Equal(s.ControlPlaneNodes, []string{"one"}) {
		t.Errorf("%+v", s)
	}
	// Before the first observation of a replica, the condition stays. If there is nothing to observe, it is removed.
	r.door = metav1.Condition{}
	if s, _, writes := r.do(); writes != 0 || meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDoorOpen) == nil {
		t.Errorf("%d writes, %+v", writes, s.Conditions)
	}
	r.door.Type = v1alpha1.ConditionDoorOpen
	if s, _, writes := r.do(); writes != 1 || meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionDoorOpen) != nil {
		t.Errorf("%d writes, %+v", writes, s.Conditions)
	}
	// While it is not known who may have the role, the list stays.
	r.nodes, r.known = nil, false
	if s, _, writes := r.do(); writes != 0 || !slices.Equal(s.ControlPlaneNodes, []string{"one"}) {
		t.Errorf("%d writes, %+v", writes, s.ControlPlaneNodes)
	}
	r.known = true
	if s, _, _ := r.do(); len(s.ControlPlaneNodes) != 0 {
		t.Errorf("%+v", s.ControlPlaneNodes)
	}
}
