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
	// An unknown certificate has no entry, not even at a time before each entry ends.
	if k.get(roots, nil, []byte("unknown"), time.Time{}) != nil {
		t.Error("an entry is returned for an unknown certificate")
	}
}

// A bundle that replaces the roots or the intermediates clears the cache, and is then cached itself.
func TestChains_AreThoseOfTheNewestPools(t *testing.T) {
	now := time.Now()
	first, other := x509.NewCertPool(), x509.NewCertPool()
	one, two := &x509.Certificate{Raw: []byte("one")}, &x509.Certificate{Raw: []byte("two")}
	for name, pools := range map[string][2]*x509.CertPool{
		"other roots": {other, first}, "other intermediates": {first, other}, "no intermediates": {first, nil},
	} {
		var k chains
		k.put(first, first, one, now.Add(time.Hour), now)
		k.put(pools[0], pools[1], two, now.Add(time.Hour), now)
		if k.get(pools[0], pools[1], two.Raw, now) != two {
			t.Errorf("%s: a chain of the new pools is not cached", name)
		}
		for _, c := range []*x509.Certificate{one, two} {
			if k.get(first, first, c.Raw, now) != nil || c == one && k.get(pools[0], pools[1], c.Raw, now) != nil {
				t.Errorf("%s: a chain was verified with other pools: %s", name, c.Raw)
			}
		}
	}
}

// The hash of a certificate costs time. So one that is longer than any usable one is not hashed.
func TestChains_AreNotSearchedForATooLongCertificate(t *testing.T) {
	var k chains
	roots, now := x509.NewCertPool(), time.Now()
	for size, want := range map[int]bool{8192: true, 8193: false} {
		c := &x509.Certificate{Raw: make([]byte, size)}
		k.put(roots, nil, c, now.Add(time.Hour), now)
		if got := k.get(roots, nil, c.Raw, now); (got == c) != want {
			t.Errorf("%d bytes: found: %v", size, got == c)
		}
	}
}
