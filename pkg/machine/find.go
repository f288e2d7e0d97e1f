package machine

import (
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Named is the Machine that an identity names, whether or not it may attest now;
// nil when it names none, or names one that it does not fit. A denial that Match
// returns belongs into this Machine's record.
func (ix *Index) Named(id Identity, r Rules) *Machine {
	m, err := ix.find(id, r)
	if err != nil || ix.fits(m, id, r) != nil {
		return nil
	}
	return m
}

// Enrolled reports whether an administrator named the EK, also for a Machine
// that is not there yet.
func (ix *Index) Enrolled(ek EKHash) bool {
	_, waiting := ix.waiting[ek]
	return waiting || len(ix.byEK[ek]) > 0
}

// Known reports whether there is a Machine with this UID.
func (ix *Index) Known(uid string) bool {
	_, ok := ix.byUID[uid]
	return ok
}

// Redeemable is what a Machine must still be when its token is shown at the
// gate: there, not quarantined, not being deleted, not a Node (unless a grant
// lasts), and of the token's pool.
func (ix *Index) Redeemable(uid, pool string, now time.Time) error {
	m, ok := ix.byUID[uid]
	switch {
	case !ok:
		return reason.Deny(reason.MachineNotFound, "no Machine with UID %s", uid)
	case m.quarantined:
		return reason.Deny(reason.Quarantined, "Machine %s", m)
	case m.Deleting || m.Phase == "Failed":
		return reason.Deny(reason.MachineDeleting, "Machine %s", m)
	case m.Joined() && !m.Granted(now):
		return reason.Deny(reason.MachineJoined, "Machine %s is Node %s", m, m.NodeRef)
	case !m.HasPool(pool):
		return reason.Deny(reason.MachinePool, "Machine %s may have %q, not %q", m, m.Pools, pool)
	}
	return nil
}
