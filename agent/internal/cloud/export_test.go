// SPDX-License-Identifier: Apache-2.0

package cloud

import "time"

// SetLookupTime changes the limit of a lookup until restore is called.
func SetLookupTime(d time.Duration) (restore func()) {
	before := lookupTime
	lookupTime = d
	return func() { lookupTime = before }
}
