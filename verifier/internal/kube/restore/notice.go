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

// newNotice returns the notice of a restore that was detected at a time. The revision or the objects of the backup are
// older than what the process saw, so the backup is older than the time at which the inventory was last current. A
// process that was cut off from the API detects the restore long after that.
func newNotice(at, current time.Time, why string) notice {
	n := notice{at: at, backup: at, why: why}
	if limit := current.Add(keys.ClockSkew); !current.IsZero() && limit.Before(at) {
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
