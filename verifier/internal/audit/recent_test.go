// SPDX-License-Identifier: Apache-2.0

package audit_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/verifier/internal/audit"
)

func denied(source, ek, id string) audit.Decision {
	return audit.Decision{Event: "attest", Outcome: "denied",
		Denial:        reason.From(reason.Deny(reason.EKNotEnrolled, "EK %s", ek)),
		CorrelationID: id, Source: source, Pool: "worker", EKSHA256: ek, Answered: true}
}

func TestRecent_CountsTheCallsOfOneMachineAsOneDenial(t *testing.T) {
	r, start := &audit.Recent{}, time.Now()
	for i := range 100 {
		r.Add(start.Add(time.Duration(i)*time.Second), denied("10.0.0.1", "aa", fmt.Sprintf("id%02d", i)))
	}
	all := r.List()
	if len(all) != 1 {
		t.Fatalf("%d denials", len(all))
	}
	d := all[0]
	if d.Count != 100 || !d.First.Equal(start) || !d.Last.Equal(start.Add(99*time.Second)) {
		t.Errorf("got %+v", d)
	}
	if n := len(d.CorrelationIDs); n != 32 || d.CorrelationIDs[n-1] != "id99" {
		t.Errorf("correlation ids %q", d.CorrelationIDs)
	}
	if d.Reason != "EKNotEnrolled" || !d.Temporary || d.EKSHA256 != "aa" {
		t.Errorf("got %+v", d)
	}
}

// A caller without proof must not grow the verifier, nor hide another machine's denial.
func TestRecent_IsBoundedAndAFloodDisplacesItsOwn(t *testing.T) {
	r, now := &audit.Recent{}, time.Now()
	r.Add(now, denied("10.0.0.1", "honest", "h"))
	r.Add(now, denied("10.0.0.2", "honest", "h2"))
	for i := range 20000 {
		now = now.Add(time.Millisecond)
		d := denied("10.9.9.9", fmt.Sprint(i), "f")
		d.Answered = i%2 == 0
		d.Pool = strings.Repeat("p", 10000)
		r.Add(now, d)
	}
	all := r.List()
	if len(all) > 1024 {
		t.Errorf("%d denials are kept", len(all))
	}
	honest := 0
	for _, d := range all {
		if d.EKSHA256 == "honest" {
			honest++
		}
		if len(d.Pool) > 600 || len(d.Detail) > 600 {
			t.Fatalf("a text of %d and one of %d bytes", len(d.Pool), len(d.Detail))
		}
	}
	if honest != 2 {
		t.Errorf("%d of 2 other denials are left", honest)
	}
}
