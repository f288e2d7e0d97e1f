// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/noderole"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/sources"
)

// NodeRoles returns the input for the evaluation of the roles of Nodes, and the UIDs of the Machines
// whose records have the condition RoleMismatch. The last result is false before everything was read,
// or while it is unknown whether the cluster has a control plane to check. Without MachineConfigPools,
// the roles of Nodes do not matter.
//
// The processes that attest machines can change each record. So a record can only be a reason against a
// role. An exception is the certificate of a Machine whose pool is known only by its user-data secret.
func (c *Inventory) NodeRoles() (in noderole.Input, reported []string, known bool) {
	in.Partial = !c.watches.Complete()
	if !c.watches.SyncedElsewhere() || c.poolsUnknown() {
		return in, nil, false
	}
	var machines []noderole.Machine
	nodes, plans := c.controlPlane.all()
	planned := map[string]bool{}    // by UID of the Machine
	recorded := map[string]string{} // Nodes of certificates, by UID on the record
	for _, p := range plans {
		machines = append(machines, noderole.Machine{UID: p.uid, Names: p.names})
		planned[p.uid] = true
	}
	c.Machines.mu.Lock()
	for uid, l := range c.latches {
		if _, ok := nodes[l.node]; l.node != "" && (ok || l.pool == noderole.Pool) {
			recorded[uid] = l.node
		}
		if l.mismatch {
			reported = append(reported, uid)
		}
	}
	c.Machines.mu.Unlock()
	if !c.hasPools() {
		return in, reported, true
	}

	// A Node sets its own provider ID. So a Node is also found by the certificate on the record, and by
	// the Machine's nodeRef.
	for uid, node := range recorded {
		m, known := c.registry.ByUID(uid)
		if !known {
			continue
		}
		if m.HasPool(noderole.Pool) && !planned[uid] && !planned[m.UID] {
			machines = append(machines, noderole.Machine{UID: uid, Names: []string{node}, Recorded: true})
		}
		if _, ok := nodes[node]; ok {
			machines = append(machines, noderole.Machine{UID: uid, Node: node, Recorded: true})
		}
	}
	found := c.registry.WithNodes(func(node string) bool { _, ok := nodes[node]; return ok })
	for uid, node := range found {
		machines = append(machines, noderole.Machine{UID: uid, Node: node, Names: []string{node}})
	}
	in.Nodes = slices.Sorted(maps.Keys(nodes))
	for _, name := range in.Nodes {
		if id := nodes[name].providerID; id != "" {
			if m := c.registry.Named(machine.Identity{ProviderIDs: []string{id}}, machine.Rules{Now: c.o.Now()}); m != nil {
				machines = append(machines, noderole.Machine{UID: m.UID, Node: name})
			}
		}
	}
	for i, m := range machines {
		machines[i].UID = c.RecordUID(m.UID) // reported has these
		if m.Pool == "" {
			machines[i].Pool = c.poolOf(m.UID)
		}
	}
	in.Machines = machines
	return in, reported, true
}

// poolOf returns the pool of a Machine, or "" if it names none. A pool on the record has priority,
// unless it is that of the control plane.
func (c *Inventory) poolOf(uid string) string {
	m, known := c.registry.ByUID(uid)
	if !known {
		return ""
	}
	l, _ := c.latch(records.UID(m)) // a Machine in both APIs has one record
	switch {
	case l.pool != "" && l.pool != noderole.Pool:
		return l.pool
	case m.HasPool(noderole.Pool):
		return noderole.Pool
	case len(m.Pools) == 0:
		return ""
	}
	return m.Pools[0]
}

// poolsUnknown reports whether the cluster may have MachineConfigPools that were never read.
func (c *Inventory) poolsUnknown() bool {
	return !c.hasPools() && slices.ContainsFunc(c.watches.Sources(), func(w *sources.Source) bool {
		s, wrong := w.Status()
		return w.Kind.String() == poolKind.String() && wrong && (s.Unsynced || s.Forbidden)
	})
}

// ControlPlane returns the Nodes of the control plane with their internal addresses. Without
// MachineConfigPools there is no Machine Config Server, and it returns none. The second result is false
// while it is unknown whether the cluster has any.
func (c *Inventory) ControlPlane() (map[string][]netip.Addr, bool) {
	if c.poolsUnknown() {
		return nil, false
	}
	if !c.hasPools() {
		return nil, true
	}
	nodes, _ := c.controlPlane.all()
	all := make(map[string][]netip.Addr, len(nodes))
	for name, n := range nodes {
		all[name] = n.addresses
	}
	return all, true
}
