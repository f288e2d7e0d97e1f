package record

import (
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/machine"
)

// Step is what a record needs next to be in line with its Machine.
type Step int

// The steps. After each of them the record is compared again.
const (
	StepNone       Step = iota
	StepQuarantine      // latch the quarantine
	StepRevoke          // revoke the bootstrap credentials of a quarantined machine
	StepJoin            // latch that the machine has joined
	StepRelease         // no object demands the quarantine any more
	StepRestate         // an object demands the quarantine again
	StepCreate          // the record does not exist
	StepDelete          // the Machine was deleted
)

// State is what is known of a record. The zero value is a record that does not exist.
type State struct {
	Exists      bool
	Joined      bool
	Quarantined bool
	Restored    bool // no object demands the quarantine since a restore of etcd
	Unrevoked   bool // it has live bootstrap credentials that can be revoked
}

// Compare returns the next step for the record of a Machine. A step that takes a right away
// comes before one that does not. m is nil if the Machine was deleted.
func Compare(s State, m *machine.Machine, now time.Time) Step {
	if m == nil {
		return StepDelete
	}
	quarantined, joined := m.Quarantined(), m.Joined()
	switch {
	case quarantined && !s.Quarantined:
		return StepQuarantine
	case quarantined && s.Unrevoked:
		return StepRevoke
	case joined && s.Exists && !s.Joined && !m.Granted(now):
		return StepJoin
	case !quarantined && s.Quarantined && !s.Restored:
		return StepRelease
	case quarantined && s.Restored:
		return StepRestate
	case !joined && !s.Exists && !m.StandIn && !m.Deleting:
		return StepCreate
	}
	return StepNone
}
