// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"time"

	"github.com/mcs-attest/mcs-attest/verifier/internal/keys"
)

// notice is a detected restore that is not acknowledged.
type notice struct {
	at     time.Time // of the detection
	backup time.Time // the backup contains nothing that is later
	why    string
}

// shortOutage is the maximum time without the API for which one detected restore is assumed to be the only one.
const shortOutage = 15 * time.Minute

// newNotice returns the notice of a restore that was detected at a time. A process that was cut off from the API
// detects the restore long after it happened. The revision or the objects of the backup are older than what the process
// saw. So the backup is older than the time at which the inventory was last current.
//
// This is true only of the first restore of an outage. In a longer outage there may be another one, whose backup is
// younger than the first restore. The backup is then as old as the detection.
func newNotice(at, current time.Time, why string) notice {
	n := notice{at: at, backup: at, why: why}
	if limit := current.Add(keys.ClockSkew); at.Sub(current) <= shortOutage && limit.Before(at) {
		n.backup = limit
	}
	return n
}

// contains reports whether an object with this time of creation may be from the backup. Times of creation have no
// fractions of a second.
func (n notice) contains(created time.Time) bool {
	return created.Before(n.backup.Truncate(time.Second))
}

// acknowledged reports whether an administrator's acknowledgement until a time includes the restore.
func (n notice) acknowledged(until time.Time) bool { return !n.backup.After(until) }
