// SPDX-License-Identifier: Apache-2.0

package record

import (
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
)

// Step is what must be done next to bring a record in line with its Machine.
type Step int

// The steps. The record is compared again after each one.
const (
	StepNone       Step = iota
	StepQuarantine      // record the quarantine
	StepRevoke          // revoke the bootstrap credentials of a quarantined machine
	StepJoin            // record that the machine joined
	StepRelease         // no object requires the quarantine anymore
	StepRestate         // an object requires the quarantine again
	StepUse             // record that the Node of its certificate existed
	StepCreate          // the record does not exist
	StepDelete          // the Machine was deleted
)

// State summarizes a record. The zero value is a record that does not exist.
type State struct {
	Exists      bool
	Joined      bool
	Arrived     bool // the Node of its certificate exists
	Used        bool // the Node of its certificate exists, and the record does not say that yet
	Quarantined bool
	Restored    bool // no object requires the quarantine since a restore of etcd
	Unrevoked   bool // it has live bootstrap credentials that can be revoked
}

// Compare returns the next step for the record of a Machine. Steps that revoke a right come first. m is nil if the
// Machine was deleted.
func Compare(s State, m *machine.Machine, now time.Time) Step {
	if m == nil {
		return StepDelete
	}
	quarantined, joined := m.Quarantined(), m.Joined()
	switch {
	case quarantined && !s.Quarantined:
		return StepQuarantine
	case s.Unrevoked && s.Quarantined && (quarantined || s.Restored): // a restore brings deleted Secrets back
		return StepRevoke
	case s.Exists && !s.Joined && (s.Arrived || joined && !m.Granted(now)):
		return StepJoin
	case !quarantined && s.Quarantined && !s.Restored:
		return StepRelease
	case quarantined && s.Restored:
		return StepRestate
	case s.Used:
		return StepUse
	case !joined && !s.Exists && !m.StandIn && !m.Deleting:
		return StepCreate
	}
	return StepNone
}
