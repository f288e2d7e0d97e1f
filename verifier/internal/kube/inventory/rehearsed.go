// SPDX-License-Identifier: Apache-2.0

package inventory

import "time"

// Rehearsed returns how many machines failed in their last rehearsal, and the time of the oldest of the last
// rehearsals, for alerts. The time is zero if no machine has rehearsed. Machines that never rehearsed do not count.
func (ms *Machines) Rehearsed() (failed int, oldest time.Time) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	first := int64(0)
	for _, l := range ms.latches {
		if l.rehearsed == 0 {
			continue
		}
		if l.failed {
			failed++
		}
		if first == 0 || l.rehearsed < first {
			first = l.rehearsed
		}
	}
	if first != 0 {
		oldest = time.Unix(first, 0)
	}
	return failed, oldest
}
