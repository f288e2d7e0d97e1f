// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"encoding/json"
	"slices"
	"strings"
)

// Record is the status output of one machine.
type Record struct {
	// Name is "namespace/name".
	Name   string `json:"name"`
	Record *struct {
		Phase       string `json:"phase"`
		Endorsement string `json:"endorsement"`
		Pool        string `json:"pool"`
		Token       *struct {
			ID   string `json:"id"`
			Uses int    `json:"uses"`
		} `json:"token"`
		Report *struct {
			Unit    string `json:"unit"`
			Result  string `json:"result"`
			Message string `json:"message"`
		} `json:"report"`
		History []struct {
			Event  string `json:"event"`
			Reason string `json:"reason"`
		} `json:"history"`
	} `json:"record"`
}

// Phase returns the record's phase, or "" if there is none yet.
func (rec Record) Phase() string {
	if rec.Record == nil {
		return ""
	}
	return rec.Record.Phase
}

// Status returns `status -o json`: the machines, and the ids of those that wait for approval.
func (v *Verifier) Status() (machines []Record, pending []string) {
	v.r.t.Helper()
	var state struct {
		Serving  bool     `json:"serving"`
		Machines []Record `json:"machines"`
		Pending  []struct {
			ID string `json:"id"`
		} `json:"pending"`
		Problems []string `json:"problems"`
	}
	out := v.Run("status", "-o", "json")
	v.r.fatal(json.Unmarshal([]byte(out), &state), "status -o json: %s", out)
	// The clouds' policies name two pools, and a rig has machines and a config of one. The roots of a rig
	// replace the built-in ones.
	state.Problems = slices.DeleteFunc(state.Problems, func(problem string) bool {
		return strings.HasPrefix(problem, "ConfigMissing: ") || strings.Contains(problem, " built-in anchors; ")
	})
	if !state.Serving || len(state.Problems) > 0 {
		v.r.t.Fatalf("status: serving %t, problems %q", state.Serving, state.Problems)
	}
	for _, p := range state.Pending {
		pending = append(pending, p.ID)
	}
	return state.Machines, pending
}

// WantRecord requires a record with that name in a phase.
func (v *Verifier) WantRecord(name, phase string) Record {
	v.r.t.Helper()
	machines, _ := v.Status()
	for _, rec := range machines {
		if strings.HasSuffix(rec.Name, "/"+name) {
			if rec.Phase() != phase {
				v.r.t.Fatalf("%s is %q, not %q:\n%s", name, rec.Phase(), phase, v.Run("explain", name))
			}
			return rec
		}
	}
	v.r.t.Fatalf("status does not list %s:\n%s", name, v.Run("status"))
	return Record{}
}
