// SPDX-License-Identifier: Apache-2.0

package attester_test

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/azureattested/attester"
)

func TestNonce(t *testing.T) {
	var transcript [32]byte
	for i := range transcript {
		transcript[i] = byte(255 - i)
	}
	const want = "__79_Pv6-fj39vX08_Lx8O_u7ezr6uno"
	if got := attester.Nonce(transcript); got != want || len(got) != 32 {
		t.Errorf("%q of %d characters, want %q", got, len(got), want)
	}
	// Each of the 24 bytes in it matters.
	for i := range 24 {
		other := transcript
		other[i] ^= 1
		if attester.Nonce(other) == want {
			t.Errorf("byte %d does not count", i)
		}
	}
	if n := attester.Nonce(transcript); strings.ContainsAny(n, "+/=%&") {
		t.Errorf("%q needs escaping in a query", n)
	}
}
