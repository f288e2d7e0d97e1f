// SPDX-License-Identifier: Apache-2.0

package noderoles

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/noderole"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/store"
)

// rig is the inventory, the records and the Events of a test.
type rig struct {
	in      noderole.Input
	known   bool
	records map[string]*v1alpha1.MachineAttestation
	err     error
	broken  string // UID of a record that cannot be written
	writes  int
	events  []events.Event
	metric  int
}

func (r *rig) NodeRoles() (noderole.Input, []string, bool) {
	var reported []string
	for uid, rec := range r.records {
		if slices.ContainsFunc(rec.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == v1alpha1.ConditionRoleMismatch && c.Status == metav1.ConditionTrue
		}) {
			reported = append(reported, uid)
		}
	}
	return r.in, reported, r.known
}

func (r *rig) Update(_ context.Context, uid string, change store.Change) error {
	if r.err != nil {
		return r.err
	}
	if uid == r.broken {
		return errors.New("the record is invalid")
	}
	next, err := change(r.records[uid])
	if next != nil {
		r.records[uid] = next
		r.writes++
	}
	return err
}

func (r *rig) Emit(e events.Event) { r.events = append(r.events, e) }

func TestReconcile_ReportsAMismatchUntilItEnds(t *testing.T) {
	r := &rig{records: map[string]*v1alpha1.MachineAttestation{"1": {}, "2": {}}, in: noderole.Input{
		Nodes: []string{"impostor", "master-0"},
		Machines: []noderole.Machine{{UID: "1", Pool: "worker", Node: "impostor"},
			{UID: "2", Pool: "master", Node: "master-0"}},
	}}
	c := New(Options{
		Log: slog.New(slog.DiscardHandler), Now: time.Now, Limit: flowcontrol.NewFakeAlwaysRateLimiter(), Events: r,
		Inventory: r, Records: r, Report: func(n int) { r.metric = n },
	})
	want := func(what string, writes, events, findings int, nodes ...string) {
		t.Helper()
		if _, err := c.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(what, err)
		}
		list, known := c.ControlPlaneNodes([]string{"listed"})
		if r.writes != writes || len(r.events) != events || len(c.Findings()) != findings || known != r.known ||
			!slices.Equal(list, nodes) {
			t.Errorf("%s: %d writes, %d Events, findings %+v, list %v, known %t", what, r.writes, len(r.events), c.Findings(),
				list, known)
		}
		if r.metric != findings {
			t.Errorf("%s: the metric is %d", what, r.metric)
		}
	}
	want("not known yet", 0, 0, 0)
	r.known, r.err = true, errors.New("away")
	if _, err := c.Reconcile(t.Context(), reconcile.Request{}); err == nil {
		t.Error("a failed write is no error")
	}
	r.err = nil
	want("a mismatch", 1, 1, 1, "master-0")
	if e := r.events[0]; e.Reason != "RoleMismatch" || !e.Warning || e.About.Kind != "Node" || e.About.Name != "impostor" {
		t.Errorf("%+v", e)
	}
	want("the same", 1, 1, 1, "master-0")

	all := r.in
	r.in = noderole.Input{Partial: true}
	want("a part of the Machines", 1, 1, 1, "listed")
	r.in = all
	want("all of them", 1, 1, 1, "master-0")

	r.in.Nodes, r.in.Machines = r.in.Nodes[1:], r.in.Machines[1:]
	want("it is gone", 2, 1, 0, "master-0")
	c.set(nil, false) // another replica leads
	if _, known := c.ControlPlaneNodes(nil); known || len(c.Findings()) > 0 {
		t.Error("a replica that does not lead reports roles")
	}
}

func TestReconcile_ThatEndsAfterTheLeadershipReportsNothing(t *testing.T) {
	r := &rig{known: true, records: map[string]*v1alpha1.MachineAttestation{"1": {}}, in: noderole.Input{
		Nodes: []string{"impostor"}, Machines: []noderole.Machine{{UID: "1", Pool: "worker", Node: "impostor"}},
	}}
	c := New(Options{Log: slog.New(slog.DiscardHandler), Now: time.Now, Limit: flowcontrol.NewFakeAlwaysRateLimiter(),
		Events: r, Inventory: r, Records: r, Report: func(n int) { r.metric = n }})
	for _, ended := range []bool{false, true, false} {
		c.setEnded(ended)
		if _, err := c.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(err)
		}
		if (r.metric == 0) != ended || (len(c.Findings()) == 0) != ended {
			t.Errorf("ended %v: %d mismatches, findings %v", ended, r.metric, c.Findings())
		}
	}
}

// A record that cannot be written stops the conditions of no other record.
func TestReconcile_WritesTheOthersIfARecordCannotBeWritten(t *testing.T) {
	mismatch := []metav1.Condition{{Type: v1alpha1.ConditionRoleMismatch, Status: metav1.ConditionTrue}}
	for _, reported := range []bool{false, true} {
		r := &rig{known: true, broken: "broken", records: map[string]*v1alpha1.MachineAttestation{
			"broken": {}, "new": {}, "over": {Status: v1alpha1.MachineAttestationStatus{Conditions: mismatch}},
		}, in: noderole.Input{
			Nodes: []string{"one", "two"}, Machines: []noderole.Machine{{UID: "new", Pool: "worker", Node: "two"}},
		}}
		if reported { // its mismatch is over
			r.records["broken"].Status.Conditions = mismatch
		} else {
			r.in.Machines = append(r.in.Machines, noderole.Machine{UID: "broken", Pool: "worker", Node: "one"})
		}
		c := New(Options{
			Log: slog.New(slog.DiscardHandler), Now: time.Now, Limit: flowcontrol.NewFakeAlwaysRateLimiter(), Events: r,
			Inventory: r, Records: r, Report: func(int) {},
		})
		if _, err := c.Reconcile(t.Context(), reconcile.Request{}); err == nil {
			t.Error("a failed write is no error")
		}
		for uid, is := range map[string]bool{"new": true, "over": false} {
			if meta.IsStatusConditionTrue(r.records[uid].Status.Conditions, v1alpha1.ConditionRoleMismatch) != is {
				t.Errorf("reported %v: the record %q has %+v", reported, uid, r.records[uid].Status.Conditions)
			}
		}
	}
}
