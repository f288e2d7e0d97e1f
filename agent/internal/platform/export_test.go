// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
)

// SetPatience sets the patience for user data until the test ends.
func SetPatience(t *testing.T, p metadata.Patience) {
	before := patience
	patience = p
	t.Cleanup(func() { patience = before })
}

// QEMU returns the provider of an architecture.
func QEMU(architecture string) func(context.Context, Machine) (UserData, error) {
	return qemuOf(architecture)
}
