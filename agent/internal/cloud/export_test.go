package cloud

import "time"

// SetLookTime is for looks until restore is called.
func SetLookTime(d time.Duration) (restore func()) {
	before := lookTime
	lookTime = d
	return func() { lookTime = before }
}
