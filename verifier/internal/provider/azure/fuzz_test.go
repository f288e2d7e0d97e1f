// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"testing"

	emulator "github.com/mcs-attest/mcs-attest/testvm/cloud/azure"
)

func FuzzKeySet(f *testing.F) {
	c, err := emulator.New()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(c.KeysJSON())
	f.Add([]byte(`{"keys":[{"kty":"oct","k":"AA","kid":"a"},{"kty":"EC","crv":"P-256","x":"AA","y":"AA","kid":"b"}]}`))
	f.Add([]byte(`{"keys":[{"kty":"RSA","kid":"a","n":"AQAB","e":"AQAB"}]}`))
	f.Add([]byte(`{"keys":{}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		all, err := parseKeys(raw)
		if err == nil && len(all) == 0 {
			t.Fatal("a set without keys")
		}
		for id, k := range all {
			if n := k.N.BitLen(); id == "" || n < minRSABits || n > maxRSABits || k.E != rsaExponent {
				t.Fatalf("%q: %d bits, exponent %d", id, n, k.E)
			}
		}
	})
}
