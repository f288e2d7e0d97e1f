// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"net/http"
	"testing"
	"time"
)

func TestCacheControlCountsWithinBounds(t *testing.T) {
	for _, c := range []struct {
		control []string
		age     string
		want    time.Duration
	}{
		{[]string{"public, max-age=19845, must-revalidate, no-transform"}, "", 19845 * time.Second},
		{[]string{"public, max-age=21600"}, "3600", 5 * time.Hour},
		{[]string{"Max-Age=7200"}, "", 2 * time.Hour},
		{[]string{"public", "max-age=7200"}, "", 2 * time.Hour},
		{[]string{`max-age="7200"`}, "", 2 * time.Hour},
		{nil, "", time.Hour},
		{[]string{""}, "7", time.Hour},
		{[]string{"max-age=0"}, "", 5 * time.Minute},
		{[]string{"no-store"}, "", 5 * time.Minute},
		{[]string{"no-cache, max-age=7200"}, "", 5 * time.Minute},
		{[]string{"max-age=600"}, "1000000", 5 * time.Minute},
		{[]string{"max-age=7200"}, "2147483648", 5 * time.Minute}, // RFC 9111, 1.2.2: such an age counts as large
		{[]string{"max-age=7200"}, "99999999999999999999999", 5 * time.Minute},
		{[]string{"max-age=99999999"}, "", 24 * time.Hour},
		{[]string{"max-age=99999999999999999999999"}, "", 24 * time.Hour},
		{[]string{"max-age=-1"}, "", time.Hour},
		{[]string{"max-age=soon"}, "", time.Hour},
		{[]string{"max-age=7200"}, "-5", 2 * time.Hour},
	} {
		h := http.Header{"Cache-Control": c.control}
		if c.age != "" {
			h.Set("Age", c.age)
		}
		if got := freshness(h); got != c.want {
			t.Errorf("%q, age %q: %s, want %s", c.control, c.age, got, c.want)
		}
	}
}
