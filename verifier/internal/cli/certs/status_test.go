// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"
)

func TestDescribeCert_MarksWhatHasExpiredOrSoonWill(t *testing.T) {
	end := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	c := &x509.Certificate{NotBefore: end.Add(-time.Hour), NotAfter: end}
	for _, tt := range []struct {
		at   time.Time
		want string
	}{
		{end.Add(-40 * 24 * time.Hour), "until 2026-03-01"},
		{end.Add(-10 * 24 * time.Hour), "until 2026-03-01, EXPIRES IN 10 DAYS"},
		{end, "until 2026-03-01, EXPIRED"},
	} {
		if got := describeCert(c, tt.at); !strings.HasSuffix(got, tt.want) {
			t.Errorf("at %v: %q, want %q at its end", tt.at, got, tt.want)
		}
	}
}
