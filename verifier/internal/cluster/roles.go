package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/events"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/inventory"
	"github.com/mcs-attest/mcs-attest/verifier/internal/kube/records"
)

// controlPlanePool is the pool whose Nodes have a control-plane role.
const controlPlanePool = "master"

// maxControlPlaneNodes bounds the list in the status, as the CRD does.
const maxControlPlaneNodes = 512

// roles is what the Nodes' roles should be.
type roles struct {
	// allowed are the names of the Nodes that may give themselves a control-plane role.
	allowed []string
	// mismatched has, by the UID of a Machine of another pool, its Node with the role.
	mismatched map[string]string
	// partial is true while the verifier may not read a namespace of Machines. Then
	// names are only added to the list in the status.
	partial bool
}

// evaluateRoles compares the Nodes that have a control-plane role with the pools of
// their records, or of their Machines where a record names no pool. Nodes choose their
// provider id themselves, so a Node is also found by the certificate on the record and
// by the Machine's nodeRef. With partial, a Node's own role is no reason to list it: its
// Machine may be one that cannot be read.
func (c *Cluster) evaluateRoles(partial bool) roles {
	out := roles{mismatched: map[string]string{}, partial: partial}
	c.mu.Lock()
	if len(c.pools) == 0 {
		c.mu.Unlock()
		return out
	}
	c.mu.Unlock()
	c.Machines.mu.Lock()
	nodes := maps.Clone(c.controlPlane)
	plans := slices.Collect(maps.Values(c.plans))
	pools, certified := map[string]string{}, map[string]string{}
	var names []string
	for uid, l := range c.latches {
		if l.pool == controlPlanePool && l.node != "" {
			names = append(names, l.node)
		}
		if _, ok := nodes[l.node]; ok && l.node != "" {
			certified[uid] = l.node
		}
	}
	c.Machines.mu.Unlock()

	found := c.registry.WithNodes(func(node string) bool { _, ok := nodes[node]; return ok })
	maps.Copy(found, certified)
	for name, n := range nodes {
		if n.providerID == "" {
			continue
		}
		if m := c.registry.Named(machine.Identity{ProviderIDs: []string{n.providerID}}, machine.Rules{Now: c.o.Now()}); m != nil {
			found[m.UID] = name
		}
	}
	for _, p := range plans {
		found[p.uid] = "" // only its pool is asked for
	}
	for uid := range found {
		pools[uid] = c.poolOf(uid)
	}

	impostors := map[string]bool{}
	for uid, node := range found {
		if node != "" && pools[uid] != controlPlanePool && pools[uid] != "" {
			out.mismatched[uid] = node
			impostors[node] = true
		}
	}
	for _, p := range plans {
		if pools[p.uid] == controlPlanePool {
			names = append(names, p.names...)
		}
	}
	if !partial {
		names = slices.AppendSeq(names, maps.Keys(nodes))
	}
	slices.Sort(names)
	out.allowed = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return impostors[name] })
	if len(out.allowed) > maxControlPlaneNodes {
		c.log.Warn("too many Nodes may have a control-plane role; some are not listed", "nodes", len(out.allowed))
		out.allowed = out.allowed[:maxControlPlaneNodes]
	}
	return out
}

// poolOf is the pool of a Machine's record, else of the Machine; "" if neither says.
func (c *Cluster) poolOf(uid string) string {
	m, known := c.registry.ByUID(uid)
	if known {
		uid = records.UID(m) // one record, where the Machine is in both APIs
	}
	if l, ok := c.latch(uid); ok && l.pool != "" {
		return l.pool
	}
	switch {
	case !known || len(m.Pools) == 0:
		return ""
	case m.HasPool(controlPlanePool):
		return controlPlanePool
	}
	return m.Pools[0]
}

// keepRoles reports Nodes whose role is not that of their pool, and lists those that may
// have a control-plane role.
func (c *Cluster) keepRoles(ctx context.Context) error {
	all := c.inventory.Complete()
	if !c.inventory.SyncedElsewhere() || c.poolsUnknown() {
		return nil
	}
	now := c.evaluateRoles(!all)
	c.mu.Lock()
	before := c.roles
	if now.partial { // a Node may belong to a Machine that cannot be read
		now.mismatched = nil
		if before != nil {
			now.mismatched = before.mismatched
		}
	}
	c.roles = &now
	c.mu.Unlock()
	reported := map[string]bool{}
	c.Machines.mu.Lock()
	for uid, l := range c.latches {
		if l.mismatch {
			reported[uid] = true
		}
	}
	c.Machines.mu.Unlock()
	if before == nil || before.partial != now.partial || !slices.Equal(before.allowed, now.allowed) || !maps.Equal(before.mismatched, now.mismatched) {
		c.changed() // the status follows
	}
	if now.partial {
		return nil
	}
	for uid, node := range now.mismatched {
		if before == nil || before.mismatched[uid] != node {
			c.log.Error("a Node has a control-plane role that its pool does not have", "node", node, "uid", uid, "pool", c.poolOf(uid))
			c.events.Emit(events.Event{
				About:   events.Object{APIVersion: "v1", Kind: "Node", Name: node, UID: node}, // as the kubelet names it
				Warning: true, Reason: v1alpha1.ConditionRoleMismatch, Message: mismatchText(node, c.poolOf(uid)),
			})
		}
		if !reported[uid] {
			text := mismatchText(node, c.poolOf(uid))
			if err := c.changeRole(ctx, uid, func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
				return record.RoleMismatch(rec, text, c.o.Now())
			}); err != nil {
				return err
			}
		}
	}
	for uid := range reported {
		if now.mismatched[uid] == "" {
			if err := c.changeRole(ctx, uid, func(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
				return record.RoleMismatch(rec, "", c.o.Now())
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Cluster) changeRole(ctx context.Context, uid string, change func(*v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation) error {
	c.tasks.limit.Accept()
	return c.records.Update(ctx, uid, func(rec *v1alpha1.MachineAttestation) (*v1alpha1.MachineAttestation, error) { return change(rec), nil })
}

func mismatchText(node, pool string) string {
	return fmt.Sprintf("Node %s has a control-plane role, and its machine is of pool %s", node, pool)
}

// RoleMismatches returns the Nodes with a control-plane role that their pool does not
// have. Only the holder of the lease has any.
func (c *Cluster) RoleMismatches() []string {
	if !c.tasks.leading() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.roles == nil {
		return nil
	}
	return slices.Sorted(maps.Values(c.roles.mismatched))
}

// controlPlaneNodes is the list for the status, which has the names in listed; the
// second result is false while it is not known.
func (c *Cluster) controlPlaneNodes(listed []any) ([]string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.roles == nil {
		return nil, false
	}
	if !c.roles.partial {
		return c.roles.allowed, true
	}
	var names []string
	for _, one := range listed {
		if name, ok := one.(string); ok {
			names = append(names, name)
		}
	}
	for _, name := range c.roles.allowed {
		if len(names) < maxControlPlaneNodes && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, true
}

// poolsUnknown reports whether the cluster may have MachineConfigPools that were never read.
func (c *Cluster) poolsUnknown() bool {
	c.mu.Lock()
	known := len(c.pools) > 0
	c.mu.Unlock()
	return !known && slices.ContainsFunc(c.inventory.Sources(), func(w *inventory.Source) bool {
		s, wrong := w.Status()
		return w.Kind.String() == poolKind.String() && wrong && (s.Unsynced || s.Forbidden)
	})
}
