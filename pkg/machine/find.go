// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Named returns the Machine that an identity names, even if it may not attest now. It
// returns nil if the identity names no Machine or contradicts it. A denial by Match may
// be written to this Machine's record.
func (ix *Index) Named(id Identity, r Rules) *Machine {
	m, err := ix.find(id, r)
	if err != nil || ix.fits(m, id, r) != nil {
		return nil
	}
	return m
}

// Enrolled reports whether an administrator enrolled the EK, also for a Machine that
// does not exist yet.
func (ix *Index) Enrolled(ek EKHash) bool {
	_, waiting := ix.waiting[ek]
	return waiting || len(ix.byEK[ek]) > 0
}

// Known reports whether a Machine has this UID.
func (ix *Index) Known(uid string) bool {
	_, ok := ix.byUID[uid]
	return ok
}

// Redeemable checks the Machine when a client presents its token to the gate. The
// Machine must exist, have the token's pool, and be neither quarantined, nor being
// deleted, nor joined without a valid grant.
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
		return reason.Deny(reason.MachineJoined, "Machine %s is already Node %s", m, m.NodeRef)
	case !m.HasPool(pool):
		return reason.Deny(reason.MachinePool, "Machine %s may have %q, not %q", m, m.Pools, pool)
	}
	return nil
}
