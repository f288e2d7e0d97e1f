// SPDX-License-Identifier: Apache-2.0

package poolconfig

import (
	"cmp"
	"maps"
	"slices"

	"github.com/mcs-attest/mcs-attest/pkg/manifest"
	"github.com/mcs-attest/mcs-attest/verifier/internal/view"
)

// The reasons of findings and Events.
const (
	ReasonNotUsable   = "NotUsable"
	ReasonNotRendered = "ConfigNotRendered"
	ReasonNoPart      = "PreApprovedNotRendered"
	ReasonNotRead     = "ConfigNotRead"
)

// Fault is a problem of the input or of a config.
type Fault struct {
	Reason, Text string
	// Key identifies the fault, so that it is reported once. Default: Text.
	Key string
	// About is the object of the Event. For the zero value there is no Event.
	About Object
}

// Object is one of the API group of MachineConfigs.
type Object struct{ Kind, Name, UID string }

// The ends of messages about content that cannot be read.
const (
	stays  = "; its last good state stays in force"
	unused = "; none of it is in force"
)

// InForce returns the end of a message about unreadable content: whether its last good state stays in force.
func InForce(lastGood bool) string {
	if lastGood {
		return stays
	}
	return unused
}

// NotUsable returns the faults of an object or a file that cannot be read. The argument
// inForce is from [InForce].
func NotUsable(problems []manifest.Problem, inForce string) []Fault {
	var all []Fault
	for _, p := range problems {
		text := p.Error()
		if !p.Warning {
			text += inForce
		}
		all = append(all, Fault{Reason: ReasonNotUsable, Text: text})
	}
	return all
}

// Findings returns the reasons why configs are not the newest, or are not served, without duplicates.
func (s *Store) Findings() []view.Finding {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var all []view.Finding
	for _, f := range s.current() {
		if one := (view.Finding{Reason: f.Reason, Text: f.Text}); !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	return all
}

// current returns the faults, those of no pool first. The caller holds the lock.
func (s *Store) current() []Fault {
	var all []Fault
	for _, name := range slices.Sorted(maps.Keys(s.faults)) {
		all = append(all, s.faults[name]...)
	}
	return all
}

// Report replaces the faults of a pool; those of no pool have the name "". It logs each
// new fault once.
func (s *Store) Report(pool string, faults ...Fault) {
	leading := s.o.Notify != nil && s.o.Leading()
	s.mu.Lock()
	before := len(s.faults)
	s.faults[pool] = faults
	if len(faults) == 0 {
		delete(s.faults, pool)
	}
	next := map[string]bool{}
	var fresh, notify []Fault
	for _, f := range s.current() {
		k := cmp.Or(f.Key, f.Text)
		notified, known := s.reported[k]
		if _, twice := next[k]; twice {
			continue
		}
		if !known {
			fresh = append(fresh, f)
		}
		if leading && !notified && f.About != (Object{}) {
			notify = append(notify, f)
			notified = true
		}
		next[k] = notified
	}
	fixed := before > 0 && len(s.faults) == 0
	s.reported = next
	s.mu.Unlock()
	for _, f := range fresh {
		s.o.Log.Error("configs may not be the newest", "reason", f.Reason, "error", f.Text)
	}
	if fixed {
		s.o.Log.Info("the configs of all pools are the newest again", "pools", s.Pools())
	}
	for _, f := range notify {
		s.o.Notify(f)
	}
}
