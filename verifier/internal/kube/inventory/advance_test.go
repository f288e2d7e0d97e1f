// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
)

// A note that cannot be read must not keep a Machine that has joined, or goes,
// as it was before.
func TestInventory_InvalidAnnotationHidesNoJoinOrDeletion(t *testing.T) {
	spoiled := func(o map[string]any) {
		o["metadata"].(map[string]any)["annotations"] = map[string]any{v1alpha1.AnnotationEKSHA256: "nonsense"}
	}
	set := func(part, field string, value any) func(o map[string]any) {
		return func(o map[string]any) { o[part].(map[string]any)[field] = value }
	}
	for name, test := range map[string]struct {
		changes       []func(o map[string]any)
		joined, going bool
		unknown       bool
		incomplete    bool
	}{
		"no other field is set": {changes: []func(o map[string]any){spoiled}},
		"it has joined": {changes: []func(o map[string]any){spoiled,
			set("status", "nodeRef", map[string]any{"name": "n"})}, joined: true},
		"it runs": {changes: []func(o map[string]any){spoiled, set("status", "phase", "Running")}, joined: true},
		"it is being deleted": {changes: []func(o map[string]any){spoiled,
			set("metadata", "deletionTimestamp", "2026-11-21T08:00:00Z")}, going: true},
		"phase Deleting": {changes: []func(o map[string]any){spoiled, set("status", "phase", "Deleting")}, going: true},
		"it was recreated": {changes: []func(o map[string]any){spoiled, set("metadata", "uid", "another")}, unknown: true,
			incomplete: true},
		"more cannot be used":  {changes: []func(o map[string]any){spoiled, set("status", "nodeRef", "text")}},
		"it can be used again": {changes: []func(o map[string]any){set("status", "phase", "Running")}, joined: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := everythingRead(t)
			w := c.watching(t, machineAPIKind, "m")
			good := object(1, 11, nil)
			uid := string(good.GetUID())
			w.list(t, 11, good)
			w.receive(t, object(1, 12, func(o map[string]any) {
				for _, change := range test.changes {
					change(o)
				}
			}))
			c.build()
			if c.View().Complete == test.incomplete {
				t.Errorf("complete %v", c.View().Complete)
			}
			m, ok := c.registry.ByUID(uid)
			if ok == test.unknown {
				t.Fatalf("known: %v", ok)
			}
			if !ok {
				return
			}
			if m.Joined() != test.joined || m.Deleting != test.going {
				t.Errorf("joined %v, deleting %v", m.Joined(), m.Deleting)
			}
			if m.ProviderID == "" || !m.HasPool("worker") {
				t.Errorf("the last good state went: %+v", m)
			}
		})
	}
	t.Run("there was never a good state", func(t *testing.T) {
		c := everythingRead(t)
		c.watching(t, machineAPIKind, "m").list(t, 11, object(1, 11, spoiled))
		c.build()
		if c.View().Complete || len(c.registry.UIDs()) != 0 {
			t.Errorf("complete %v, %v", c.View().Complete, c.registry.UIDs())
		}
	})
}

// That a Machine has joined is a latch here, too.
func TestInventory_MachineThatJoinedStaysJoined(t *testing.T) {
	c := unconnected(t)
	m := machine.Machine{APIVersion: "machine.openshift.io/v1beta1", Kind: "Machine", Namespace: "m", Name: "one",
		UID: "u", NodeRef: "n", Phase: "Running", Deleting: true}
	c.registry.PutMachine(m)
	m.NodeRef, m.Phase, m.Deleting = "", "Provisioned", false
	if !c.registry.Advance(m) {
		t.Fatal("it is not known")
	}
	if got, ok := c.registry.ByUID("u"); !ok || !got.Joined() || !got.Deleting {
		t.Errorf("%+v", got)
	}
}
