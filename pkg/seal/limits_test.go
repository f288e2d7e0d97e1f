// SPDX-License-Identifier: Apache-2.0

package seal_test

import (
	"strings"
	"testing"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

func TestOpen_Limits(t *testing.T) {
	r := ring(t)
	_, err := r.Open(make([]byte, 65537))
	wantCode(t, err, reason.TooLarge)
	if _, err := r.Open(make([]byte, 65536)); err == nil || reason.From(err).Code == reason.TooLarge {
		t.Errorf("a challenge of the largest size: %v", err)
	}
	for n, want := range map[int]string{1024: "not a ticket", 1025: "ticket of 1025 bytes"} {
		_, err := r.OpenTicket(epoch, strings.Repeat("A", n))
		wantCode(t, err, reason.ReportTicketInvalid)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
