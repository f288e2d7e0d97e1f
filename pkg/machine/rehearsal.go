// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/hex"
	"slices"
	"time"
)

// maxRehearsal is the longest validity of a ticket for a rehearsal.
const maxRehearsal = time.Hour

// ticketed is a Machine with a ticket for a rehearsal, and the end of the ticket.
type ticketed struct {
	*Machine
	until time.Time
}

// ByTicket returns the one Machine for which an administrator issued this ticket, given by its hash, or
// nil. The ticket must be valid now.
func (ix *Index) ByTicket(ticketSHA256 string, now time.Time) (found *Machine) {
	for _, t := range ix.byTicket[ticketSHA256] {
		switch left := t.until.Sub(now); {
		case left <= 0 || left > maxRehearsal:
		case found != nil && found != t.Machine:
			return nil
		default:
			found = t.Machine
		}
	}
	return found
}

// ByTicket is [Index.ByTicket].
func (r *Registry) ByTicket(ticketSHA256 string, now time.Time) *Machine {
	r.mu.RLock()
	known := len(r.ticket[ticketSHA256]) > 0
	r.mu.RUnlock()
	if !known {
		return nil // without the work of an index
	}
	return r.collect(func(c *closure) {
		for _, e := range r.ticket[ticketSHA256] {
			c.enrollment(e)
		}
	}).ByTicket(ticketSHA256, now)
}

// Rehearsal finds only one Machine, as if it had a grant to attest again. An identity of another Machine
// gets the result of an identity that no Machine has, so a rehearsal does not reveal whose it is.
type Rehearsal struct {
	All interface {
		Match(id Identity, r Rules) (*Machine, error)
		Named(id Identity, r Rules) *Machine
		Enrolled(ek EKHash) bool
	}
	Machine *Machine
}

// Match is [Index.Match] for the Machine of the rehearsal.
func (v Rehearsal) Match(id Identity, r Rules) (*Machine, error) {
	r.rehearsed = v.Machine.UID
	m, err := v.All.Match(id, r)
	if m != nil && m.UID == v.Machine.UID || m == nil && v.names(id) {
		return m, err
	}
	return (&Index{}).Match(id, r)
}

// Named is [Index.Named] for the Machine of the rehearsal.
func (v Rehearsal) Named(id Identity, r Rules) *Machine {
	r.rehearsed = v.Machine.UID
	if m := v.All.Named(id, r); m != nil && m.UID == v.Machine.UID {
		return m
	}
	return nil
}

// Enrolled reports whether the EK is enrolled for the Machine of the rehearsal.
func (v Rehearsal) Enrolled(ek EKHash) bool {
	return slices.Contains(v.Machine.EKSHA256, hex.EncodeToString(ek[:])) && v.All.Enrolled(ek)
}

// names reports whether a component of an identity is that of the Machine.
func (v Rehearsal) names(id Identity) bool {
	m := v.Machine
	own := func(p string) bool { return p != "" && NormalProviderID(p) == NormalProviderID(m.ProviderID) }
	return id.MachineUID == m.UID || m.Mirror != nil && id.MachineUID == m.Mirror.UID ||
		slices.Contains(m.EKSHA256, hex.EncodeToString(id.EK[:])) ||
		slices.ContainsFunc(id.ProviderIDs, own)
}
