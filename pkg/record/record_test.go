// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

type rec = v1alpha1.MachineAttestation

// enrolled returns an enrolled Machine, with changes to its spec.
func enrolled(t *testing.T, spec string) *machine.Machine {
	t.Helper()
	in, problems := machine.Parse("m1.yaml", []byte("apiVersion: mcs-attest.dev/v1alpha1\nkind: "+
		"MachineAttestation\nmetadata: {name: m1}\nspec:\n  pool: worker\n  expectedProviderID: aws:///zone/i-0\n"+spec),
		start)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	ix, _ := machine.NewIndex(in, nil)
	return ix.Machines()[0]
}

func honest(t *testing.T) record.Attestation {
	t.Helper()
	return record.Attestation{
		Machine: enrolled(t, ""), Identity: v1alpha1.RecordedIdentity{EKSHA256: "ek1"},
		Endorsement: v1alpha1.EndorsementEnrolled,
		Evidence:    []v1alpha1.EvidenceSummary{{Kind: "tpm2"}}, Pool: "worker", TokenID: "token1",
		TokenExpiry: start.Add(10 * time.Minute), TokenUses: 3,
		TicketID: "ticket1", CorrelationID: "c1",
	}
}

func attested(t *testing.T) *rec {
	t.Helper()
	r, err := record.Attest(nil, honest(t), start)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func joined(t *testing.T) *rec {
	t.Helper()
	r := record.Joined(attested(t), "node1", start.Add(time.Minute))
	if r == nil {
		t.Fatal("not latched")
	}
	return r
}

func claims() token.Claims {
	return token.Claims{Subject: "default/m1", Pool: "worker", ID: "token1"}
}

func wantCode(t *testing.T, err error, want reason.Code) {
	t.Helper()
	if err == nil {
		t.Fatalf("accepted, want %s", want)
	}
	if got := reason.From(err).Code; got != want {
		t.Errorf("%s (%v), want %s", got, err, want)
	}
}

func TestAttest_CreatesTheRecord(t *testing.T) {
	r := attested(t)
	s := r.Status
	if r.Namespace != "default" || r.Name != "m1" || s.MachineUID != honest(t).Machine.UID ||
		s.Phase != v1alpha1.PhaseAttested || s.Identity.EKSHA256 != "ek1" || s.Pool != "worker" {
		t.Errorf("got %+v", r)
	}
	if s.Token == nil || s.Token.ID != "token1" || s.Token.Uses != 0 || s.Token.MaxUses != 3 || s.Ticket.ID != "ticket1" {
		t.Errorf("token %+v, ticket %+v", s.Token, s.Ticket)
	}
	if len(s.History) != 1 || s.History[0].Event != "Attested" || s.History[0].CorrelationID != "c1" {
		t.Errorf("history %+v", s.History)
	}
	if len(s.Conditions) != 1 || s.Conditions[0].Type != v1alpha1.ConditionAttested ||
		s.Conditions[0].Status != metav1.ConditionTrue {
		t.Errorf("conditions %+v", s.Conditions)
	}
}

func TestAttestAgain(t *testing.T) {
	until := metav1.NewTime(start.Add(time.Hour))
	grant := func(t *testing.T, a *record.Attestation) {
		a.Machine = enrolled(t, "  reattest: {until: \""+until.Format(time.RFC3339)+"\"}\n")
	}
	for _, c := range []struct {
		name   string
		before func(t *testing.T) *rec
		change func(t *testing.T, a *record.Attestation)
		after  time.Duration
		want   reason.Code // 0: accepted
	}{
		{name: "the same machine, a little later", after: time.Minute},
		{name: "immediately", after: time.Second, want: reason.RateLimited},
		{name: "immediately, in mode Audit, without a token", after: time.Second,
			change: func(_ *testing.T, a *record.Attestation) { a.TokenID = "" }},
		{name: "by a replica whose clock is behind", after: -time.Minute},
		{name: "with another EK", after: time.Minute, want: reason.IdentityConflict,
			change: func(_ *testing.T, a *record.Attestation) { a.Identity.EKSHA256 = "ek2" }},
		{name: "without an EK", after: time.Minute, want: reason.IdentityConflict,
			change: func(_ *testing.T, a *record.Attestation) {
				a.Identity = v1alpha1.RecordedIdentity{ProviderID: "aws:///i-1"}
			}},
		{name: "with a component more", after: time.Minute,
			change: func(_ *testing.T, a *record.Attestation) { a.Identity.ProviderID = "aws:///i-1" }},
		{name: "with another AK than a certified one", after: time.Minute, want: reason.IdentityConflict,
			before: func(t *testing.T) *rec { r := attested(t); r.Status.Identity.AKSHA256 = "ak1"; return r },
			change: func(_ *testing.T, a *record.Attestation) { a.Identity.AKSHA256 = "ak2" }},
		{name: "as another cloud instance", after: time.Minute, want: reason.IdentityConflict,
			before: func(t *testing.T) *rec { r := attested(t); r.Status.Identity.ProviderID = "aws:///i-1"; return r },
			change: func(_ *testing.T, a *record.Attestation) { a.Identity.ProviderID = "aws:///i-2" }},
		{name: "while quarantined", after: time.Minute, want: reason.Quarantined,
			change: func(t *testing.T, a *record.Attestation) {
				a.Machine = enrolled(t, "  quarantined: true\n")
			}},
		{name: "after it joined", before: joined, after: 2 * time.Minute, want: reason.MachineJoined},
		{name: "after it joined, by a grant", before: joined, after: 2 * time.Minute, change: grant},
		{name: "after it joined, by a grant that is over", before: joined, after: 2 * time.Hour, change: grant,
			want: reason.MachineJoined},
		{name: "after it joined, by a grant that ends in two days", before: joined, after: 2 * time.Minute,
			want: reason.MachineJoined,
			change: func(t *testing.T, a *record.Attestation) {
				a.Machine = enrolled(t, "  reattest: {until: \""+start.Add(48*time.Hour).Format(time.RFC3339)+"\"}\n")
			}},
		{name: "after it joined, by a grant that was used", after: 2 * time.Minute, change: grant, want: reason.MachineJoined,
			before: func(t *testing.T) *rec { r := joined(t); r.Status.GrantUsed = &until; return r }},
		{name: "after it joined, by a new grant", after: 2 * time.Minute, change: grant,
			before: func(t *testing.T) *rec {
				r := joined(t)
				r.Status.GrantUsed = &metav1.Time{Time: start.Add(-time.Hour)}
				return r
			}},
		{name: "quarantined in the record's own spec, but not yet in the Machine", after: time.Minute,
			want:   reason.Quarantined,
			before: func(t *testing.T) *rec { r := attested(t); r.Spec.Quarantined = true; return r }},
		{name: "after it joined, by a grant in the record's own spec", after: 2 * time.Minute,
			before: func(t *testing.T) *rec {
				r := joined(t)
				r.Spec.Reattest = &v1alpha1.ReattestGrant{Until: until}
				return r
			}},
		{name: "after it joined, by a grant in the record's own spec that is over", after: 2 * time.Hour,
			want: reason.MachineJoined,
			before: func(t *testing.T) *rec {
				r := joined(t)
				r.Spec.Reattest = &v1alpha1.ReattestGrant{Until: until}
				return r
			}},
		{name: "after it joined, by a grant that the record's own spec has no more", after: 2 * time.Minute,
			want:   reason.MachineJoined,
			before: func(t *testing.T) *rec { r := joined(t); r.UID = "object1"; return r },
			change: func(t *testing.T, a *record.Attestation) { grant(t, a); a.Machine.Enrollment.UID = "object1" }},
		{name: "after it joined, by a grant in another object", after: 2 * time.Minute,
			before: func(t *testing.T) *rec { r := joined(t); r.UID = "object1"; return r },
			change: func(t *testing.T, a *record.Attestation) { grant(t, a); a.Machine.Enrollment.UID = "object2" }},
		{name: "with another EK, by a grant", before: joined, after: 2 * time.Minute, want: reason.IdentityConflict,
			change: func(t *testing.T, a *record.Attestation) { grant(t, a); a.Identity.EKSHA256 = "ek2" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.before == nil {
				c.before = attested
			}
			before := c.before(t)
			kept := before.DeepCopy()
			a := honest(t)
			a.TokenID, a.TicketID = "token2", "ticket2"
			if c.change != nil {
				c.change(t, &a)
			}
			after, err := record.Attest(before, a, start.Add(c.after))
			if !reflect.DeepEqual(before, kept) {
				t.Error("the record that was passed in was changed")
			}
			if c.want != 0 {
				wantCode(t, err, c.want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := after.Status; s.Phase != v1alpha1.PhaseAttested || s.Identity.EKSHA256 != "ek1" ||
				s.Identity.ProviderID != a.Identity.ProviderID || s.Ticket.ID != "ticket2" {
				t.Errorf("got %+v", s)
			}
			if live := after.Status.Token; (live == nil) != (a.TokenID == "") || live != nil && live.ID != a.TokenID {
				t.Errorf("live token %+v, want %q", live, a.TokenID)
			}
		})
	}
}

// An instance document has no nonce, so a copy is as good as the original.
func TestAttack_T05_ADocumentThatCanBeReplayedIsGoodOnce(t *testing.T) {
	first := honest(t)
	first.Identity = v1alpha1.RecordedIdentity{ProviderID: "aws:///zone/i-0", InstanceID: "aws:i-0"}
	first.Endorsement, first.Evidence, first.Replayable = "", []v1alpha1.EvidenceSummary{{Kind: "aws-iid"}}, true
	r, err := record.Attest(nil, first, start)
	if err != nil {
		t.Fatal(err)
	}
	if last := r.Status.History[len(r.Status.History)-1]; last.Message != "by aws-iid" {
		t.Errorf("history %+v", last)
	}
	later := start.Add(time.Hour)
	again := first
	again.TokenID = "token2"
	_, err = record.Attest(r, again, later)
	wantCode(t, err, reason.EvidenceUnacceptable)

	// With evidence that is bound to this exchange, the machine may start again.
	fresh := again
	fresh.Replayable, fresh.Evidence = false, []v1alpha1.EvidenceSummary{{Kind: "aws-iid"}, {Kind: "aws-sts"}}
	if _, err := record.Attest(r, fresh, later); err != nil {
		t.Errorf("a signed challenge beside it: %v", err)
	}
	// An administrator's grant permits it.
	granted := r.DeepCopy()
	granted.Spec.Reattest = &v1alpha1.ReattestGrant{Until: metav1.NewTime(later.Add(time.Hour))}
	if _, err := record.Attest(granted, again, later); err != nil {
		t.Errorf("with a grant: %v", err)
	}
}

func TestAttack_T10_AnotherInstanceUnderTheRecordedName(t *testing.T) {
	a := honest(t)
	a.Identity = v1alpha1.RecordedIdentity{ProviderID: "gce://p/z/n", InstanceID: "gcp:1"}
	r, err := record.Attest(nil, a, start)
	if err != nil {
		t.Fatal(err)
	}
	a.TokenID = "token2"
	if _, err := record.Attest(r, a, start.Add(time.Minute)); err != nil {
		t.Errorf("the same instance: %v", err)
	}
	a.Identity.InstanceID = "gcp:2"
	_, err = record.Attest(r, a, start.Add(time.Minute))
	wantCode(t, err, reason.IdentityConflict)
}

func TestGrant_CoversOneProvisioning(t *testing.T) {
	a := honest(t)
	a.Machine = enrolled(t, "  reattest: {until: \""+start.Add(time.Hour).Format(time.RFC3339)+"\"}\n")
	r, err := record.Attest(joined(t), a, start.Add(2*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	r = record.Joined(r, "node1", start.Add(10*time.Minute))
	_, err = record.Attest(r, a, start.Add(20*time.Minute))
	wantCode(t, err, reason.MachineJoined)
}

func TestAttack_T44_ChallengeAnsweredTwiceBehindAFrontEnd(t *testing.T) {
	a := honest(t)
	a.ChallengeID, a.ChallengeEnds = "challenge1", start.Add(5*time.Minute)
	r, err := record.Attest(nil, a, start)
	if err != nil {
		t.Fatal(err)
	}
	_, err = record.Attest(r, a, start.Add(time.Minute))
	wantCode(t, err, reason.ChallengeUsed)
	a.ChallengeID, a.ChallengeEnds = "challenge2", start.Add(6*time.Minute)
	if r, err = record.Attest(r, a, start.Add(time.Minute)); err != nil {
		t.Fatal("another challenge:", err)
	}
	if len(r.Status.Challenges) != 2 {
		t.Errorf("remembered %v", r.Status.Challenges)
	}
	a.ChallengeID, a.ChallengeEnds = "challenge3", start.Add(time.Hour)
	if r, err = record.Attest(r, a, start.Add(10*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if len(r.Status.Challenges) != 1 {
		t.Errorf("challenges that are over are remembered: %v", r.Status.Challenges)
	}
}

func TestAttack_T43_ADenialDoesNotHarmTheMachine(t *testing.T) {
	m := honest(t).Machine
	conflict := reason.From(reason.Deny(reason.IdentityConflict, "another EK"))
	for name, before := range map[string]*rec{
		"attested": attested(t), "joined": joined(t),
		"fetched": func() *rec { r, _ := record.Redeem(attested(t), claims(), nil, start); return r }(),
	} {
		t.Run(name, func(t *testing.T) {
			after := record.Denied(before, m, conflict, "c2", start.Add(time.Hour))
			if after == nil {
				t.Fatal("not recorded")
			}
			s := after.Status
			if s.Phase != before.Status.Phase || !reflect.DeepEqual(s.Identity, before.Status.Identity) ||
				!reflect.DeepEqual(s.Token, before.Status.Token) || !reflect.DeepEqual(s.Ticket, before.Status.Ticket) {
				t.Errorf("a denial changed the record: %+v", s)
			}
			if h := s.History[len(s.History)-1]; h.Event != "Denied" || h.Reason != "IdentityConflict" ||
				h.CorrelationID != "c2" {
				t.Errorf("history %+v", h)
			}
			if !hasCondition(s, v1alpha1.ConditionConflict, metav1.ConditionTrue) ||
				!hasCondition(s, v1alpha1.ConditionAttested, metav1.ConditionTrue) {
				t.Errorf("conditions %+v", s.Conditions)
			}
		})
	}
}

func hasCondition(s v1alpha1.MachineAttestationStatus, kind string, status metav1.ConditionStatus) bool {
	for _, c := range s.Conditions {
		if c.Type == kind {
			return c.Status == status
		}
	}
	return false
}

func TestDenied_RecordsAnUnacceptedMachine(t *testing.T) {
	m := honest(t).Machine
	d := reason.From(reason.Deny(reason.MeasuredBoot, "PCR 7: %s", strings.Repeat("x", 4000)))
	r := record.Denied(nil, m, d, "c1", start)
	if r == nil || r.Status.Phase != v1alpha1.PhaseDenied || r.Status.MachineUID != m.UID ||
		!hasCondition(r.Status, v1alpha1.ConditionAttested, metav1.ConditionFalse) {
		t.Fatalf("got %+v", r)
	}
	if len(r.Status.History[0].Message) > 1024 {
		t.Errorf("message of %d bytes", len(r.Status.History[0].Message))
	}
	if record.Denied(r, m, d, "c2", start.Add(5*time.Second)) != nil {
		t.Error("the same denial seconds later is another entry")
	}
	if again := record.Denied(r, m, d, "c2", start.Add(2*time.Minute)); again == nil || len(again.Status.History) != 2 {
		t.Error("the same denial minutes later is not recorded")
	}
	other := reason.From(reason.Deny(reason.EKNotEnrolled, "EK"))
	if next := record.Denied(r, m, other, "c2", start.Add(5*time.Second)); next == nil ||
		last(next) != [3]string{"Denied", "EKNotEnrolled", "EK"} {
		t.Errorf("another denial seconds later: %+v", next)
	}
	pending := record.New(m)
	pending.Status.Phase = v1alpha1.PhasePending
	if next := record.Denied(pending, m, d, "c1", start); next.Status.Phase != v1alpha1.PhaseDenied {
		t.Errorf("a machine that waited is %s", next.Status.Phase)
	}
	// After the repair it is admitted.
	if r, err := record.Attest(r, honest(t), start.Add(time.Hour)); err != nil ||
		r.Status.Phase != v1alpha1.PhaseAttested {
		t.Errorf("after the repair: %v", err)
	}
}

// conflict returns a change of a record for whose Machine another identity was proven.
func conflict(by v1alpha1.Endorsement, status metav1.ConditionStatus) func(*rec) {
	return func(r *rec) {
		r.Status.Endorsement = by
		r.Status.Conditions = append(r.Status.Conditions,
			metav1.Condition{Type: v1alpha1.ConditionConflict, Status: status})
	}
}

func TestRedemption(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(r *rec)
		claims func(*token.Claims)
		want   reason.Code
	}{
		{name: "the live token"},
		{name: "a token that another replaced", claims: func(c *token.Claims) { c.ID = "token0" },
			want: reason.TokenSuperseded},
		{name: "no live token", change: func(r *rec) { r.Status.Token = nil }, want: reason.TokenSuperseded},
		{name: "used up", change: func(r *rec) { r.Status.Token.Uses = 3 }, want: reason.TokenUsedUp},
		{name: "joined", change: func(r *rec) { r.Status.Phase = v1alpha1.PhaseJoined }, want: reason.MachineJoined},
		{name: "quarantined", change: func(r *rec) { r.Status.Quarantined = true }, want: reason.Quarantined},
		{name: "quarantined by the record's own spec", change: func(r *rec) { r.Spec.Quarantined = true },
			want: reason.Quarantined},
		{name: "contested", change: conflict(v1alpha1.EndorsementManufacturer, metav1.ConditionTrue),
			want: reason.PendingApproval},
		{name: "no longer contested", change: conflict(v1alpha1.EndorsementManufacturer, metav1.ConditionFalse)},
		{name: "a conflict with an enrolled identity", change: conflict(v1alpha1.EndorsementEnrolled,
			metav1.ConditionTrue)},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, cl := attested(t), claims()
			if c.change != nil {
				c.change(r)
			}
			if c.claims != nil {
				c.claims(&cl)
			}
			next, err := record.Redeem(r, cl, nil, start.Add(time.Minute))
			if ok := record.Redeemable(r, cl); (ok == nil) != (err == nil) {
				t.Errorf("Redeemable returns %v, Redeem %v", ok, err)
			}
			if c.want != 0 {
				wantCode(t, err, c.want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if next.Status.Token.Uses != 1 || r.Status.Token.Uses != 0 || next.Status.Phase != v1alpha1.PhaseFetched {
				t.Errorf("got %+v", next.Status)
			}
		})
	}
	wantCode(t, record.Redeemable(nil, claims()), reason.TokenSuperseded)
}

func TestRedeem_LimitsTheUses(t *testing.T) {
	r := attested(t)
	for range 3 {
		var err error
		if r, err = record.Redeem(r, claims(), nil, start); err != nil {
			t.Fatal(err)
		}
	}
	_, err := record.Redeem(r, claims(), nil, start)
	wantCode(t, err, reason.TokenUsedUp)
}

func TestJoined_IsALatch(t *testing.T) {
	r := joined(t)
	if r.Status.Phase != v1alpha1.PhaseJoined || r.Status.Token != nil {
		t.Errorf("got %+v", r.Status)
	}
	if record.Joined(r, "node1", start) != nil {
		t.Error("joined twice")
	}
	if record.Joined(nil, "node1", start) != nil {
		t.Error("a Machine without a record got one")
	}
}

func TestAttack_T57_ReportsWithoutTheLiveTicketOrTooMany(t *testing.T) {
	report := v1alpha1.FailureReport{Unit: "ignition-files.service", Result: "exit-code", ExitStatus: 1,
		Message: "no space"}
	r, err := record.Report(attested(t), "ticket1", report, "c3", start.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if r.Status.Report == nil || r.Status.Report.Unit != report.Unit ||
		!r.Status.Report.Time.Equal(&metav1.Time{Time: start.Add(time.Minute)}) ||
		!hasCondition(r.Status, v1alpha1.ConditionFirstBootFailed, metav1.ConditionTrue) {
		t.Errorf("got %+v", r.Status)
	}
	_, err = record.Report(r, "ticket0", report, "c", start)
	wantCode(t, err, reason.ReportTicketInvalid)
	_, err = record.Report(nil, "ticket1", report, "c", start)
	wantCode(t, err, reason.ReportTicketInvalid)
	_, err = record.Report(record.New(honest(t).Machine), "", report, "c", start)
	wantCode(t, err, reason.ReportTicketInvalid)
	for range record.MaxReports - 1 {
		if r, err = record.Report(r, "ticket1", report, "c", start); err != nil {
			t.Fatal(err)
		}
	}
	_, err = record.Report(r, "ticket1", report, "c", start)
	wantCode(t, err, reason.ReportLimit)
	// A new attestation starts over.
	a := honest(t)
	a.TicketID = "ticket2"
	if r, err = record.Attest(r, a, start.Add(time.Hour)); err != nil || r.Status.Report != nil ||
		r.Status.Ticket.Uses != 0 {
		t.Errorf("after another attestation: %v, %+v", err, r.Status.Report)
	}
}

func TestHistory_IsLimited(t *testing.T) {
	r := attested(t)
	m := honest(t).Machine
	for i := range 3 * v1alpha1.MaxHistory {
		d := reason.From(reason.Deny(reason.MeasuredBoot, "number %d", i))
		if r = record.Denied(r, m, d, fmt.Sprint(i), start.Add(time.Duration(i+1)*time.Hour)); r == nil {
			t.Fatal("not recorded")
		}
		if n := len(r.Status.History); n != min(i+2, v1alpha1.MaxHistory) {
			t.Fatalf("%d entries after %d", n, i+2)
		}
	}
	h := r.Status.History
	if len(h) != v1alpha1.MaxHistory || h[len(h)-1].CorrelationID != fmt.Sprint(3*v1alpha1.MaxHistory-1) {
		t.Errorf("%d entries, the last %+v", len(h), h[len(h)-1])
	}
}

func TestBreakGlass(t *testing.T) {
	valid := token.Claims{
		Subject: "break-glass/ticket-7", MachineUID: record.BreakGlassUID("b1"), ID: "b1", Pool: "worker", IssuedAt: start,
		Expiry: start.Add(15 * time.Minute),
	}
	if !record.IsBreakGlass(valid.MachineUID) || record.IsBreakGlass(honest(t).Machine.UID) {
		t.Error("IsBreakGlass does not tell them apart")
	}
	if r, err := record.BreakGlass(nil, valid, false, start); r != nil || err != nil {
		t.Errorf("a check took a use: %v, %v", r, err)
	}
	var r *rec
	for i := range 3 {
		next, err := record.BreakGlass(r, valid, true, start)
		if err != nil {
			t.Fatal(err)
		}
		r = next
		if int(r.Status.Token.Uses) != i+1 || r.Namespace != "break-glass" || r.Name != "ticket-7" {
			t.Errorf("use %d: %+v", i+1, r)
		}
	}
	if s := r.Status; r.APIVersion != v1alpha1.APIVersion || r.Kind != v1alpha1.KindMachineAttestation ||
		s.MachineUID != valid.MachineUID || s.Phase != v1alpha1.PhaseFetched || s.Pool != "worker" || len(s.History) != 3 ||
		last(r) != [3]string{"BreakGlass", "",
			"full config of pool worker by an administrator's token, break-glass/ticket-7"} {
		t.Errorf("%+v", r)
	}
	_, err := record.BreakGlass(r, valid, true, start)
	wantCode(t, err, reason.TokenUsedUp)
	_, err = record.BreakGlass(r, valid, false, start)
	wantCode(t, err, reason.TokenUsedUp)

	long := valid
	long.Expiry = start.Add(record.MaxBreakGlass + time.Second)
	_, err = record.BreakGlass(nil, long, true, start)
	wantCode(t, err, reason.TokenInvalid)
	other := valid
	other.MachineUID = record.BreakGlassUID("b2")
	_, err = record.BreakGlass(nil, other, true, start)
	wantCode(t, err, reason.TokenInvalid)
}

func TestNew_ReturnsAnEmptyRecord(t *testing.T) {
	m := &machine.Machine{Namespace: "m", Name: "one", UID: "u"}
	r := record.New(m)
	if r.APIVersion != v1alpha1.APIVersion || r.Kind != v1alpha1.KindMachineAttestation ||
		r.Namespace != "m" || r.Name != "one" || r.Status.MachineUID != "u" || r.Status.Phase != "" ||
		len(r.Status.History) != 0 {
		t.Errorf("%+v", r)
	}
	if got := record.Joined(r, "node1", start); got == nil || got.Status.Phase != v1alpha1.PhaseJoined {
		t.Errorf("joined: %+v", got)
	}
}

// A grant covers one provisioning, even if the evidence could be a copy and the Machine has
// not joined.
func TestAttack_T05_AGrantPermitsOneReplayableAttestation(t *testing.T) {
	a := honest(t)
	a.Identity = v1alpha1.RecordedIdentity{ProviderID: "aws:///zone/i-0", InstanceID: "aws:i-0"}
	a.Endorsement, a.Evidence, a.Replayable = "", []v1alpha1.EvidenceSummary{{Kind: "aws-iid"}}, true
	r, err := record.Attest(nil, a, start)
	if err != nil {
		t.Fatal(err)
	}
	r.Spec.Reattest = &v1alpha1.ReattestGrant{Until: metav1.NewTime(start.Add(20 * time.Hour))}
	accepted := 0
	for i := range 20 {
		next, err := record.Attest(r, a, start.Add(time.Duration(i+1)*time.Minute))
		if err != nil {
			wantCode(t, err, reason.MachineJoined)
			break
		}
		accepted, r = accepted+1, next
	}
	if accepted != 3 {
		t.Errorf("%d copies were accepted under one grant", accepted)
	}
}
