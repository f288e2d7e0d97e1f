// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package guestinfo

import "errors"

// Backdoor is not supported on this architecture.
func Backdoor() (Port, error) {
	return nil, errors.New("guestinfo is supported only on amd64, as in Ignition")
}
