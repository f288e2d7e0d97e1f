// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package tpm2_test

import "errors"

// startSimulator fails: .ci/qemu runs only tests that need no simulator.
func startSimulator() (simulated, error) {
	return nil, errors.New("start the TPM simulator: built without cgo")
}
