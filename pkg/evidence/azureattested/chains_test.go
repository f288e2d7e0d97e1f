// SPDX-License-Identifier: Apache-2.0

package azureattested

import (
	"crypto/x509"
	"testing"
	"time"
)

// The cache has a limited size, returns the newest entry, and removes those that ended.
func TestChains_AreLimited(t *testing.T) {
	var k chains
	roots, now := x509.NewCertPool(), time.Now()
	for i := range 300 {
		c := &x509.Certificate{Raw: []byte{byte(i), byte(i >> 8)}}
		k.put(roots, nil, c, now.Add(time.Hour), now)
		if k.get(roots, nil, c.Raw, now) != c {
			t.Fatalf("number %d is not cached", i)
		}
		if want := min(i+1, 256); len(k.known) != want {
			t.Fatalf("%d entries, not %d", len(k.known), want)
		}
	}
	last := &x509.Certificate{Raw: []byte("last")}
	k.put(roots, nil, last, now.Add(2*time.Hour), now.Add(time.Hour+1))
	if len(k.known) != 1 || k.get(roots, nil, last.Raw, now) != last {
		t.Errorf("%d entries after all others ended", len(k.known))
	}
	// Entries belong to one pair of pools.
	if k.get(x509.NewCertPool(), nil, last.Raw, now) != nil || k.get(roots, x509.NewCertPool(), last.Raw, now) != nil {
		t.Error("an entry of other pools is returned")
	}
}
