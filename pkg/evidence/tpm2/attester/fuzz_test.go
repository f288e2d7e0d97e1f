// SPDX-License-Identifier: Apache-2.0

package attester_test

import (
	"bytes"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2/attester"
)

// The content of NV comes from the manufacturer, or from an attacker who can write it.
func FuzzSplitDER(f *testing.F) {
	f.Add([]byte{0x30, 0x01, 0x00, 0xff})
	f.Add([]byte{0x10, 0x01, 0x00, 0x00, 0x03, 0x30, 0x01, 0x00})
	f.Add([]byte{0x30, 0x82, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		out := attester.SplitDER(data, 8)
		if len(out) > 8 {
			t.Fatalf("%d parts", len(out))
		}
		for _, part := range out {
			if !bytes.Contains(data, part) || part[0] != 0x30 {
				t.Fatalf("% x is not of the input", part)
			}
			_, _ = attester.CertificateKey(part)
		}
	})
}
