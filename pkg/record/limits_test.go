// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

// Rule 9 of docs/security-rules.md: five seconds lie between two tokens of one machine.
func TestAttest_FiveSecondsBetweenTwoTokens(t *testing.T) {
	for after, want := range map[time.Duration]reason.Code{
		0: reason.RateLimited, 5*time.Second - 1: reason.RateLimited, 5 * time.Second: 0,
		-1: reason.RateLimited, -5*time.Second + 1: reason.RateLimited, -5 * time.Second: 0,
	} {
		a := honest(t)
		a.TokenID = "token2"
		_, err := record.Attest(attested(t), a, start.Add(after))
		if want != 0 {
			wantCode(t, err, want)
		} else if err != nil {
			t.Errorf("after %s: %v", after, err)
		}
	}
}

// Rule 11 of docs/security-rules.md: a grant covers three attestations of one provisioning.
func TestGrant_CoversThreeAttestations(t *testing.T) {
	a := honest(t)
	a.Machine = enrolled(t, "  reattest: {until: \""+start.Add(time.Hour).Format(time.RFC3339)+"\"}\n")
	a.Machine.NodeRef = "node1" // the Node of the former installation still exists
	r := joined(t)
	for i := range 4 {
		next, err := record.Attest(r, a, start.Add(time.Duration(i+2)*time.Minute))
		if i == 3 {
			wantCode(t, err, reason.MachineJoined)
			break
		}
		if err != nil {
			t.Fatalf("attestation %d: %v", i+1, err)
		}
		r = next
	}
}

// Rule 15 of docs/security-rules.md: a ticket permits eight reports.
func TestReport_EightOfOneTicket(t *testing.T) {
	r := attested(t)
	for i := range 9 {
		next, err := record.Report(r, "ticket1", v1alpha1.FailureReport{Unit: "u", Result: "r"}, "c", start)
		if i == 8 {
			wantCode(t, err, reason.ReportLimit)
			break
		}
		if err != nil {
			t.Fatalf("report %d: %v", i+1, err)
		}
		r = next
	}
}

func TestBreakGlass_LivesAnHour(t *testing.T) {
	for lifetime, want := range map[time.Duration]reason.Code{
		time.Hour: 0, time.Hour + time.Second: reason.TokenInvalid,
	} {
		c := token.Claims{Subject: "break-glass/ticket-7", MachineUID: record.BreakGlassUID("b1"), ID: "b1",
			Pool: "worker", IssuedAt: start, Expiry: start.Add(lifetime)}
		_, err := record.BreakGlass(nil, c, true, start)
		if want != 0 {
			wantCode(t, err, want)
		} else if err != nil {
			t.Errorf("a lifetime of %s: %v", lifetime, err)
		}
	}
}

// A message has at most 1024 bytes, and equal denials are one entry per minute.
func TestDenied_Limits(t *testing.T) {
	m := honest(t).Machine
	denial := func(n int) *reason.Denial {
		return reason.From(reason.Deny(reason.MeasuredBoot, "%s", strings.Repeat("x", n)))
	}
	for n, want := range map[int]int{1024: 1024, 1025: 1024} {
		if got := len(record.Denied(nil, m, denial(n), "c1", start).Status.History[0].Message); got != want {
			t.Errorf("a message of %d bytes has %d on the record", n, got)
		}
	}
	r := record.Denied(nil, m, denial(1), "c1", start)
	if record.Denied(r, m, denial(1), "c2", start.Add(time.Minute-1)) != nil {
		t.Error("another entry within the minute")
	}
	if record.Denied(r, m, denial(1), "c2", start.Add(time.Minute)) == nil {
		t.Error("no entry after the minute")
	}
}

// A joined node can cause denials for many reasons. They do not replace the other entries, and alternating reasons are
// not an entry each.
func TestAttack_T61_DenialsKeepTheHistory(t *testing.T) {
	m := honest(t).Machine
	r := joined(t)
	for i, code := range []reason.Code{reason.EvidenceUnacceptable, reason.PCRCapped, reason.EvidenceUnacceptable} {
		next := record.Denied(r, m, reason.From(reason.Deny(code, "x")), "c", start.Add(time.Duration(i)*time.Second))
		if known := i == 2; known != (next == nil) {
			t.Errorf("denial %d: entry %v", i, next != nil)
		}
		if next != nil {
			r = next
		}
	}
	others := slices.DeleteFunc(slices.Clone(r.Status.History), isDenied)
	for i := range 3 * v1alpha1.MaxHistory {
		at := start.Add(time.Duration(i+2) * time.Minute)
		r = record.Denied(r, m, reason.From(reason.Deny(reason.PCRCapped, "x")), "c", at)
		if n := len(r.Status.History); n > v1alpha1.MaxHistory || !isDenied(r.Status.History[n-1]) {
			t.Fatalf("%d entries, the last is %+v", n, r.Status.History[n-1])
		}
	}
	if got := slices.DeleteFunc(slices.Clone(r.Status.History), isDenied); !slices.Equal(got, others) || len(got) == 0 {
		t.Errorf("other entries: %+v, want %+v", got, others)
	}
	// In a history without denials, the first one replaces the oldest entry. The second one replaces the first.
	r.Status.History = nil
	for i := range v1alpha1.MaxHistory {
		r.Status.History = append(r.Status.History, v1alpha1.HistoryEntry{Event: "Attested", CorrelationID: fmt.Sprint(i)})
	}
	for i, code := range []reason.Code{reason.PCRCapped, reason.EvidenceUnacceptable} {
		r = record.Denied(r, m, reason.From(reason.Deny(code, "x")), "c", start.Add(time.Duration(i)*time.Second))
		h := r.Status.History
		if n := len(h); n != v1alpha1.MaxHistory || h[0].CorrelationID != "1" || h[n-2].CorrelationID != "19" ||
			h[n-1].Reason != code.String() {
			t.Errorf("after denial %d: %+v", i, h)
		}
	}
}

// After another event, a denial for the same reason is an entry again.
func TestDenied_AfterAnotherEventIsAnEntry(t *testing.T) {
	m := honest(t).Machine
	denial := reason.From(reason.Deny(reason.PCRCapped, "x"))
	r := record.Denied(nil, m, denial, "c", start)
	r.Status.History = append(r.Status.History, v1alpha1.HistoryEntry{Event: "Attested", Time: metav1.NewTime(start)})
	if record.Denied(r, m, denial, "c", start.Add(time.Second)) == nil {
		t.Error("no entry")
	}
}

func isDenied(h v1alpha1.HistoryEntry) bool { return h.Event == "Denied" }
