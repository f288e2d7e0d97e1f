// SPDX-License-Identifier: Apache-2.0

package noderole_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/noderole"
)

func TestEvaluate(t *testing.T) {
	type mismatch = noderole.Mismatch
	for name, c := range map[string]struct {
		in         noderole.Input
		allowed    []string
		mismatched map[string]mismatch
	}{
		"nothing": {},
		"Nodes that have the role keep it, Nodes to come may have it": {
			in: noderole.Input{Nodes: []string{"master-1", "unknown"}, Machines: []noderole.Machine{
				{UID: "1", Pool: "master", Node: "master-1", Names: []string{"master-1"}},
				{UID: "2", Pool: "master", Names: []string{"master-0", ""}},
			}},
			allowed: []string{"master-0", "master-1", "unknown"},
		},
		"a Node of another pool": {
			in: noderole.Input{Nodes: []string{"impostor"}, Machines: []noderole.Machine{
				{UID: "1", Pool: "worker", Node: "impostor", Names: []string{"impostor"}},
				{UID: "2", Pool: "worker", Names: []string{"w"}},
			}},
			mismatched: map[string]mismatch{"1": {"impostor", "worker"}},
		},
		"a Node that two Machines name, one of them of another pool": {
			in: noderole.Input{Nodes: []string{"n"}, Machines: []noderole.Machine{
				{UID: "1", Pool: "master", Node: "n", Names: []string{"n"}}, {UID: "2", Pool: "infra", Node: "n"},
			}},
			mismatched: map[string]mismatch{"2": {"n", "infra"}},
		},
		"a planned Machine of the control plane that attested for another pool": {
			in: noderole.Input{Nodes: []string{"n"}, Machines: []noderole.Machine{
				{UID: "1", Pool: "worker", Node: "n"}, {UID: "1", Pool: "worker", Names: []string{"n"}},
			}},
			mismatched: map[string]mismatch{"1": {"n", "worker"}},
		},
		"a record that names the Node of another Machine": {
			in: noderole.Input{Nodes: []string{"n", "impostor"}, Machines: []noderole.Machine{
				{UID: "1", Pool: "master", Names: []string{"n"}}, {UID: "2", Pool: "worker", Node: "n", Recorded: true},
				{UID: "3", Pool: "worker", Node: "impostor", Recorded: true},
				{UID: "4", Pool: "worker", Node: "impostor"}, {UID: "4", Pool: "worker", Node: "n", Recorded: true},
			}},
			allowed: []string{"n"},
			mismatched: map[string]mismatch{
				"2": {"n", "worker"}, "3": {"impostor", "worker"}, "4": {"impostor", "worker"},
			},
		},
		"a machine without a pool is no mismatch": {
			in: noderole.Input{
				Nodes: []string{"n"}, Machines: []noderole.Machine{{UID: "1", Node: "n", Names: []string{"m"}}},
			},
			allowed: []string{"n"},
		},
		"with a part of the Machines, a Node's role is no reason": {
			in: noderole.Input{
				Partial: true, Nodes: []string{"n"}, Machines: []noderole.Machine{{UID: "1", Pool: "master", Names: []string{"m"}}},
			},
			allowed: []string{"m"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := noderole.Evaluate(c.in)
			if c.mismatched == nil {
				c.mismatched = map[string]mismatch{}
			}
			if !slices.Equal(out.Allowed, c.allowed) || !reflect.DeepEqual(out.Mismatched, c.mismatched) || out.Omitted != 0 {
				t.Errorf("%+v", out)
			}
		})
	}
}

func TestEvaluate_LimitsTheList(t *testing.T) {
	var in noderole.Input
	for i := range noderole.MaxAllowed + 3 {
		in.Nodes = append(in.Nodes, fmt.Sprintf("n-%04d", i))
	}
	out := noderole.Evaluate(in)
	if len(out.Allowed) != noderole.MaxAllowed || out.Omitted != 3 {
		t.Errorf("%d names, %d omitted", len(out.Allowed), out.Omitted)
	}
	if got := out.Merge([]string{"hidden"}, true); len(got) != noderole.MaxAllowed || !slices.Contains(got, "hidden") {
		t.Errorf("merged: %d names, hidden %t", len(got), slices.Contains(got, "hidden"))
	}
}

func TestResult_MergeOnlyAddsWhileNotAllIsRead(t *testing.T) {
	r := noderole.Result{Allowed: []string{"b", "c"}}
	if got := r.Merge([]string{"a", "b"}, true); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("partial: %v", got)
	}
	if got := r.Merge([]string{"a", "b"}, false); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("all: %v", got)
	}
}
