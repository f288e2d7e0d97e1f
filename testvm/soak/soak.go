// SPDX-License-Identifier: Apache-2.0

// Package soak tells tests how often to repeat. `make test` runs a test with few repetitions, and
// `make soak` with many.
package soak

import "os"

// Or returns short in `make test` and long in `make soak`.
func Or[T any](short, long T) T {
	if os.Getenv("MCS_ATTEST_SOAK") == "1" {
		return long
	}
	return short
}
