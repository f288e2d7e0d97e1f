// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"maps"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	rule "github.com/mcs-attest/mcs-attest/pkg/restore"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
)

// Demand is the state that an administrator's objects require for a Machine. Only administrators write
// them.
type Demand struct {
	Quarantined bool // an object quarantines the Machine
	Granted     bool // it may attest once more although it has joined
}

// Recorded receives the state of a Machine's record, and the administrator's demand.
//
// A front can write any record, so a latch that a record loses while a restore is held is set again. An
// administrator lifts a quarantine in two steps: an object demands it, and then no longer does. From
// the first step on, the memory does not keep the quarantine. A used grant is not compared, because the
// next grant may end earlier.
func (g *Guard) Recorded(uid string, l rule.Latch, by Demand) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if missing, ok := g.missing[uid]; ok {
		if l.Covers(missing) {
			delete(g.missing, uid)
		}
		return
	}
	if g.memory == nil {
		return
	}
	held, ok := g.memory.Latches[uid]
	if !ok {
		return
	}
	if by.Quarantined && held.Quarantined {
		held.Quarantined = false
		g.memory.Latches[uid] = held
	}
	lost := rule.Latch{Quarantined: held.Quarantined, Joined: held.Joined && !by.Granted, Node: held.Node}
	if l.Covers(lost) {
		return
	}
	g.o.Log.Warn("a record lost what it had before the restore of etcd; it is set again", "machine_uid", uid)
	removed := maps.Clone(g.removed)
	if removed == nil {
		removed = map[string]rule.Latch{}
	}
	removed[uid], g.missing[uid] = lost, lost
	g.removed, g.repaired = removed, false
	g.trigger.Enqueue(kube.PriorityRevoke, reconcile.Request{})
}
