// SPDX-License-Identifier: Apache-2.0

// Package noderole decides which Nodes may have a control-plane role, and which have it although their machine is of
// another pool. The noderoles controller uses it. It has no I/O.
package noderole

import (
	"maps"
	"slices"
)

const (
	// Pool is the pool whose Nodes have a control-plane role.
	Pool = "master"
	// MaxAllowed is the limit of [Result.Allowed], as in the CRD of AttestationVerifiers.
	MaxAllowed = 512
)

// Machine is a Machine or a record. One with several names or states may occur several times.
type Machine struct {
	UID string
	// Pool is the pool of the Machine, or that of the record if it is not [Pool]. It is "" if neither names one.
	Pool string
	// Node is the name of its Node, if the Node has a control-plane role.
	Node string
	// Names are the possible names of its Node. They matter in pool [Pool].
	Names []string
	// Recorded means that only the record names Node. It does not count against a Node that a Machine of pool [Pool]
	// names.
	Recorded bool
}

// Input is the state of the cluster.
type Input struct {
	// Nodes are the names of the Nodes with a control-plane role.
	Nodes    []string
	Machines []Machine
	// Partial means that the verifier may not read some Machines. Then a Node's own role does not suffice to list it,
	// because its Machine may be one of those.
	Partial bool
}

// Result has the correct roles of the Nodes.
type Result struct {
	// Allowed are the names of the Nodes that may assign themselves a control-plane role, sorted.
	Allowed []string
	// Omitted is the number of names that do not fit into the list.
	Omitted int
	// Mismatched has the Nodes with the role, by the UID of their Machine of another pool.
	Mismatched map[string]Mismatch
}

// Mismatch is a Node with a role that its pool does not have.
type Mismatch struct{ Node, Pool string }

// Evaluate compares the Nodes that have a control-plane role with the pools of their machines. A machine of an unknown
// pool is not a mismatch.
func Evaluate(in Input) Result {
	out := Result{Mismatched: map[string]Mismatch{}}
	impostors := map[string]bool{}
	var names []string
	genuine := map[string]bool{}
	for _, m := range in.Machines {
		for _, name := range m.Names {
			genuine[name] = genuine[name] || m.Pool == Pool && !m.Recorded
		}
	}
	for _, m := range in.Machines {
		switch {
		case m.Pool == Pool:
			names = append(names, m.Names...)
		case m.Pool != "" && m.Node != "":
			// A Node that a Machine or a Node names is preferred over one that a record names.
			if _, reported := out.Mismatched[m.UID]; !reported || !m.Recorded {
				out.Mismatched[m.UID] = Mismatch{m.Node, m.Pool}
			}
			impostors[m.Node] = impostors[m.Node] || !m.Recorded || !genuine[m.Node]
		}
	}
	if !in.Partial {
		names = append(names, in.Nodes...)
	}
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" || impostors[name] })
	if out.Omitted = max(0, len(names)-MaxAllowed); out.Omitted > 0 {
		names = names[:MaxAllowed]
	}
	out.Allowed = names
	return out
}

// Merge returns the list for a status whose list is listed. While the input is partial, it does not remove names.
func (r Result) Merge(listed []string, partial bool) []string {
	if !partial {
		return r.Allowed
	}
	names := slices.Clone(listed)
	for _, name := range r.Allowed {
		if len(names) < MaxAllowed && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Nodes returns the names of the mismatched Nodes, sorted, without duplicates.
func (r Result) Nodes() []string {
	var names []string
	for m := range maps.Values(r.Mismatched) {
		names = append(names, m.Node)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
