// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"testing"

	"github.com/mcs-attest/mcs-attest/agent/internal/metadata"
)

// SetPatience sets the patience for user data until the test ends.
func SetPatience(t *testing.T, p metadata.Patience) {
	before := patience
	patience = p
	t.Cleanup(func() { patience = before })
}
