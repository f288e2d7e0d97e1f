// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/randfill"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
)

var ticketHash = strings.Repeat("a", 64)

func rehearsal(t *testing.T) record.Rehearsal {
	t.Helper()
	a := honest(t)
	return record.Rehearsal{Machine: a.Machine, TicketSHA256: ticketHash, Pool: "worker", AgentVersion: "v1",
		Identity: a.Identity, Endorsement: a.Endorsement}
}

func rehearsed(r *rec) *metav1.Condition {
	for i := range r.Status.Conditions {
		if c := &r.Status.Conditions[i]; c.Type == v1alpha1.ConditionRehearsed {
			return c
		}
	}
	return nil
}

// For random records, only the result and its condition change.
func TestAttack_T74_NoLatchMoves(t *testing.T) {
	fill := randfill.NewWithSeed(74).NilChance(0.3).NumElements(0, 3).Funcs(
		func(at *metav1.Time, c randfill.Continue) { at.Time = start.Add(time.Duration(c.Int63n(1e15))) })
	denials := append([]reason.Code{0}, reason.Codes()...)
	changed := 0
	for i := range 2000 {
		before := &rec{}
		fill.Fill(&before.Spec)
		fill.Fill(&before.Status)
		if i%2 == 0 { // as after an attestation of this machine
			before.Status.Identity = v1alpha1.RecordedIdentity{EKSHA256: "ek1"}
			before.Status.Quarantined, before.Spec.Quarantined = false, false
		}
		r := rehearsal(t)
		if code := denials[i%len(denials)]; code != 0 {
			r.Denial, r.Proven = &reason.Denial{Code: code}, i%3 == 0
		}
		kept := before.DeepCopy()
		next, err := record.Rehearse(before, r, start)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(before, kept) {
			t.Fatalf("seed %d: the former record changed", i)
		}
		if next.Status.Rehearsal == nil || rehearsed(next) == nil {
			t.Fatalf("seed %d: no result: %+v", i, next.Status)
		}
		if next.Status.Rehearsal.Passed {
			changed++
		}
		next.Status.Rehearsal = kept.Status.Rehearsal
		mine := func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionRehearsed }
		next.Status.Conditions = slices.DeleteFunc(next.Status.Conditions, mine)
		kept.Status.Conditions = slices.DeleteFunc(kept.Status.Conditions, mine)
		if len(next.Status.Conditions) == 0 && len(kept.Status.Conditions) == 0 {
			next.Status.Conditions, kept.Status.Conditions = nil, nil
		}
		if !reflect.DeepEqual(next, kept) {
			t.Fatalf("seed %d: more changed than the result:\n%+v\n%+v", i, next, kept)
		}
	}
	if changed == 0 {
		t.Error("no rehearsal passed")
	}
}

func TestRehearse_JudgesTheRecordAsWithAGrant(t *testing.T) {
	counters := func(resets int64) *v1alpha1.TPMCounters { return &v1alpha1.TPMCounters{ResetCount: resets} }
	for name, c := range map[string]struct {
		before func() *rec
		change func(*record.Rehearsal)
		want   reason.Code
		warns  string
	}{
		"no record": {before: func() *rec { return nil }},
		"attested":  {before: func() *rec { return attested(t) }},
		"joined":    {before: func() *rec { return joined(t) }},
		"another identity": {func() *rec { return joined(t) }, func(r *record.Rehearsal) {
			r.Identity.EKSHA256 = "ek2"
		}, reason.IdentityConflict, ""},
		"denied by appraisal": {func() *rec { return joined(t) }, func(r *record.Rehearsal) {
			r.Denial = &reason.Denial{Code: reason.EKUntrusted}
		}, reason.EKUntrusted, ""},
		"quarantined on the record": {func() *rec {
			r := joined(t)
			r.Status.Quarantined = true
			return r
		}, nil, reason.Quarantined, ""},
		"based on first use, another identity": {func() *rec {
			r := joined(t)
			r.Status.Endorsement = v1alpha1.EndorsementManufacturer
			return r
		}, func(r *record.Rehearsal) { r.Identity.EKSHA256 = "ek2" }, reason.PendingApproval, ""},
		"its TPM was cleared after the join": {func() *rec {
			r := joined(t)
			r.Status.TPM = counters(9)
			return r
		}, func(r *record.Rehearsal) { r.TPM = counters(1) }, 0, "went back from 9 resets to 1"},
		"its TPM was cleared before the join": {func() *rec {
			r := attested(t)
			r.Status.TPM = counters(9)
			return r
		}, func(r *record.Rehearsal) { r.TPM = counters(1) }, reason.IdentityConflict, ""},
		"only a shared token": {func() *rec { return joined(t) }, func(r *record.Rehearsal) {
			r.Identity, r.Unnamed = v1alpha1.RecordedIdentity{}, true
		}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := rehearsal(t)
			if c.change != nil {
				c.change(&r)
			}
			next, err := record.Rehearse(c.before(), r, start)
			if err != nil {
				t.Fatal(err)
			}
			s, condition := next.Status.Rehearsal, rehearsed(next)
			if s.Passed != (c.want == 0) || s.Passed != (condition.Status == metav1.ConditionTrue) {
				t.Fatalf("%+v, %+v", s, condition)
			}
			if c.want == 0 && condition.Reason != "WouldPass" || c.want != 0 && (s.Reason != c.want.String() ||
				condition.Reason != s.Reason) {
				t.Errorf("%+v, %+v", s, condition)
			}
			if got := strings.Join(s.Warnings, "; "); !strings.Contains(got, c.warns) || c.warns == "" && got != "" {
				t.Errorf("warnings %q", got)
			}
		})
	}
}

// A ticket is good for one result, and only until it is withdrawn.
func TestAttack_T74_ATicketIsUsedOnce(t *testing.T) {
	r := rehearsal(t)
	first, err := record.Rehearse(joined(t), r, start)
	if err != nil {
		t.Fatal(err)
	}
	_, err = record.Rehearse(first, r, start.Add(time.Second))
	wantCode(t, err, reason.ChallengeInvalid)
	r.TicketSHA256 = strings.Repeat("b", 64)
	if _, err = record.Rehearse(first, r, start.Add(time.Second)); err != nil {
		t.Errorf("the next ticket: %v", err)
	}

	// The record itself has the ticket, and is newer than what the caller read.
	own := joined(t)
	own.UID = types.UID("record")
	own.Spec.Rehearsal = &v1alpha1.RehearsalTicket{TicketSHA256: r.TicketSHA256}
	m := *r.Machine
	m.Enrollment = own.DeepCopy()
	r.Machine = &m
	if _, err = record.Rehearse(own, r, start); err != nil {
		t.Fatalf("the ticket of the record: %v", err)
	}
	own.Spec.Rehearsal = nil
	_, err = record.Rehearse(own, r, start)
	wantCode(t, err, reason.ChallengeInvalid)
}

// Only a caller that proved to be the Machine has details on its record.
func TestAttack_T74_AnUnprovenCallerWritesNoTextOfItsOwn(t *testing.T) {
	for _, proven := range []bool{false, true} {
		r := rehearsal(t)
		r.Denial = reason.From(reason.Deny(reason.EKNotEnrolled, "the caller's text %s", strings.Repeat("ü", 2000)))
		r.Proven = proven
		for i := range 20 {
			r.Warnings = append(r.Warnings, fmt.Sprintf("%d%s", i, strings.Repeat("ü", 500)))
		}
		next, err := record.Rehearse(nil, r, start)
		if err != nil {
			t.Fatal(err)
		}
		if got := rehearsed(next).Message; strings.Contains(got, "the caller's text") != proven || got == "" {
			t.Errorf("proven %v: %q", proven, got)
		}
		// The response of the call contains both, and must be UTF-8.
		if !utf8.ValidString(rehearsed(next).Message) || !utf8.ValidString(next.Status.Rehearsal.Warnings[0]) {
			t.Error("not UTF-8")
		}
		if w := next.Status.Rehearsal.Warnings; len(w) != v1alpha1.MaxRehearsalWarnings || len(w[0]) > 256 {
			t.Errorf("%d warnings, the first of %d bytes", len(w), len(w[0]))
		}
	}
}

// A machine that attests meanwhile keeps everything that its attestation wrote.
func TestAttack_T74_AttestationDuringARehearsalWins(t *testing.T) {
	r := attested(t)
	next, err := record.Rehearse(r, rehearsal(t), start.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if err := record.Redeemable(next, claims()); err != nil {
		t.Errorf("the token of the attestation: %v", err)
	}
	again := honest(t)
	again.TokenID = "token2"
	after, err := record.Attest(next, again, start.Add(time.Hour))
	if err != nil || after.Status.Token.ID != "token2" || after.Status.Rehearsal == nil {
		t.Errorf("%+v, %v", after, err)
	}
}
