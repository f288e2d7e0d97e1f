// SPDX-License-Identifier: Apache-2.0

package machine

import "cmp"

// closure collects related manifests. The registry is locked for reading.
type closure struct {
	*Registry
	machinesSeen    map[*compactMachine]bool
	enrollmentsSeen map[*Enrollment]bool
	found           Manifests
}

// instance adds all objects with a provider ID.
func (c *closure) instance(id string) {
	for _, m := range c.byProvider[id] {
		c.machine(m)
	}
	for _, e := range c.standInProvider[id] {
		c.enrollment(e)
	}
}

// node returns the Node with a provider ID, or "".
func (c *closure) node(id string) string {
	for _, node := range c.nodeOf[id] {
		return node
	}
	return ""
}

// machine adds a Machine; nil is ignored.
func (c *closure) machine(k *compactMachine) {
	if k == nil || c.machinesSeen[k] {
		return
	}
	c.machinesSeen[k] = true
	m := k.machine()
	if k.providerID != "" {
		m.NodeRef = cmp.Or(m.NodeRef, c.node(k.provider()))
	}
	c.found.Machines = append(c.found.Machines, m)
	if k.providerID != "" {
		c.instance(k.provider())
	}
	for _, e := range c.enrolledBy[name{"", k.namespace, k.name}] {
		c.enrollment(e)
	}
	if k.metal3 != "" {
		for _, e := range c.enrolledBy[k.metal3Machine()] {
			c.enrollment(e)
		}
	}
}

// enrollment adds an enrollment; nil is ignored.
func (c *closure) enrollment(e *Enrollment) {
	if e == nil || c.enrollmentsSeen[e] {
		return
	}
	c.enrollmentsSeen[e] = true
	own := *e
	own.node = c.node(NormalProviderID(e.Spec.ExpectedProviderID)) // only of a stand-in
	c.found.Enrollments = append(c.found.Enrollments, own)
	if ref := e.Spec.MachineRef; ref != nil {
		for _, group := range []string{groupMachineAPI, groupClusterAPI} {
			c.machine(c.machines[name{group, ref.Namespace, ref.Name}])
		}
		for _, k := range c.byMetal3[target(ref)] {
			c.machine(k)
		}
	}
}
