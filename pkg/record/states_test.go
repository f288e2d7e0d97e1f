// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
)

// last returns the event, the reason and the message of the last entry of a history.
func last(r *rec) [3]string {
	e := r.Status.History[len(r.Status.History)-1]
	return [3]string{e.Event, e.Reason, e.Message}
}

// A record that is based on first use becomes contested by another identity, and then admits neither.
func TestAttack_T42_AContestedFirstUse(t *testing.T) {
	first := honest(t)
	first.Endorsement = v1alpha1.EndorsementManufacturer
	r, err := record.Attest(nil, first, start)
	if err != nil {
		t.Fatal(err)
	}
	again := first
	again.TokenID = "token2"
	if _, err := record.Attest(r, again, start.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	other := again
	other.Identity.EKSHA256 = "ek2"
	_, err = record.Attest(r, other, start.Add(time.Minute))
	wantCode(t, err, reason.PendingApproval)

	m := first.Machine
	denied := func(r *rec, c reason.Code) *rec {
		return record.Denied(r, m, reason.From(reason.Deny(c, "another identity")), "c2", start.Add(time.Minute))
	}
	for name, c := range map[string]struct {
		rec  *rec
		code reason.Code
		want bool
	}{
		"first use, another identity":        {r, reason.PendingApproval, true},
		"first use, a contradiction":         {r, reason.IdentityConflict, true},
		"first use, an unrelated denial":     {r, reason.MeasuredBoot, false},
		"an enrollment, another identity":    {attested(t), reason.PendingApproval, false},
		"an enrollment, and a contradiction": {attested(t), reason.IdentityConflict, true},
	} {
		status := denied(c.rec, c.code).Status
		if got := hasCondition(status, v1alpha1.ConditionConflict, metav1.ConditionTrue); got != c.want {
			t.Errorf("%s: a conflict: %v", name, got)
		}
	}
	contested := denied(r, reason.PendingApproval)
	_, err = record.Attest(contested, again, start.Add(2*time.Minute))
	wantCode(t, err, reason.PendingApproval)
	if record.CredentialToken(contested, start) != nil || record.CredentialToken(r, start) == nil {
		t.Error("a contested record has a credential, or the other one has none")
	}
	// An administrator decides by an enrollment.
	again.Endorsement = v1alpha1.EndorsementEnrolled
	if _, err = record.Attest(contested, again, start.Add(2*time.Minute)); err != nil {
		t.Error(err)
	}
}

func TestQuarantine_ChangesTheRecordOnce(t *testing.T) {
	m := honest(t).Machine
	if record.Quarantine(nil, m, false, start) != nil || record.Quarantine(attested(t), m, false, start) != nil {
		t.Error("a release of what is not quarantined")
	}
	for name, before := range map[string]*rec{"no record": nil, "a record": attested(t)} {
		r := record.Quarantine(before, m, true, start)
		if r == nil || !r.Status.Quarantined || last(r) != [3]string{"Quarantined", "", "by an administrator"} {
			t.Fatalf("%s: %+v", name, r)
		}
		if record.Quarantine(r, m, true, start) != nil {
			t.Errorf("%s: quarantined twice", name)
		}
		_, err := record.Attest(r, honest(t), start.Add(time.Minute))
		wantCode(t, err, reason.Quarantined)
		r = record.Quarantine(r, m, false, start)
		if r == nil || r.Status.Quarantined || last(r) != [3]string{"Released", "", "by an administrator"} {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// The uses of clients that were not served can be used again, and no others.
func TestReturn_OnlyUsesOfTheLiveToken(t *testing.T) {
	r := attested(t)
	for _, id := range []string{"use1", "use2"} {
		next, err := record.Redeem(r, claims(), nil, start)
		if err != nil {
			t.Fatal(err)
		}
		record.Used(next, id)
		r = next
	}
	without := attested(t)
	without.Status.Token = nil
	if record.Return(nil, "token1", []string{"use1"}) != nil ||
		record.Return(without, "token1", []string{"use1"}) != without {
		t.Error("a use without a token")
	}
	if record.Return(r, "token2", []string{"use1"}) != r || record.Return(r, "token1", []string{"use3"}) != r {
		t.Error("a use that is not on the record was returned")
	}
	next := record.Return(r, "token1", []string{"use1", "use3"})
	if s := next.Status.Token; s.Uses != 1 || !slices.Equal(s.UseIDs, []string{"use2"}) || r.Status.Token.Uses != 2 {
		t.Errorf("%+v, before %+v", s, r.Status.Token)
	}
	r.Status.Token.Uses = 0
	if s := record.Return(r, "token1", []string{"use1", "use2"}).Status.Token; s.Uses != 0 || len(s.UseIDs) != 0 {
		t.Errorf("%+v", s)
	}
}

func TestRoleMismatch_IsACondition(t *testing.T) {
	if record.RoleMismatch(nil, "x", start) != nil || record.RoleMismatch(attested(t), "", start) != nil {
		t.Error("a change of nothing")
	}
	r := record.RoleMismatch(attested(t), "Node node1 is a control-plane node", start)
	if r == nil || !hasCondition(r.Status, v1alpha1.ConditionRoleMismatch, metav1.ConditionTrue) ||
		last(r) != [3]string{"RoleMismatch", "", "Node node1 is a control-plane node"} {
		t.Fatalf("%+v", r)
	}
	if record.RoleMismatch(r, "again", start) != nil {
		t.Error("noted twice")
	}
	r = record.RoleMismatch(r, "", start)
	if !hasCondition(r.Status, v1alpha1.ConditionRoleMismatch, metav1.ConditionFalse) {
		t.Errorf("%+v", r.Status.Conditions)
	}
	if record.RoleMismatch(r, "", start) != nil {
		t.Error("the end was noted twice")
	}
}

// What the rest of the system reads about a machine's life is on its record.
func TestHistory_HasEachStep(t *testing.T) {
	redeemed, err := record.Redeem(attested(t), claims(), nil, start)
	if err != nil {
		t.Fatal(err)
	}
	certified, err := record.Certify(requested(t), attestedCertificate(), start.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if got := certified.Status.Certificate.Approved; !got.Time.Equal(start.Add(time.Minute)) {
		t.Errorf("approved at %s", got)
	}
	report, err := record.Report(attested(t), "ticket1", v1alpha1.FailureReport{Unit: "u", Result: "r"}, "c", start)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		rec  *rec
		want [3]string
	}{
		{redeemed, [3]string{"Fetched", "", "full config of pool worker"}},
		{joined(t), [3]string{"Joined", "", "as node node1"}},
		{certified, [3]string{"Certified", "", "as node worker-0, for the key that it attested"}},
		{report, [3]string{"Failed", "", "u: r"}},
	} {
		if got := last(c.rec); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	// A new first boot ends the condition of the failed one.
	a := honest(t)
	a.TokenID, a.Identity.AKSHA256 = "token2", "ak1"
	again, err := record.Attest(report, a, start.Add(time.Minute))
	if err != nil || !hasCondition(again.Status, v1alpha1.ConditionFirstBootFailed, metav1.ConditionFalse) ||
		again.Status.Identity.AKSHA256 != "ak1" {
		t.Errorf("%v: %+v", err, again)
	}
	// The Machine has been attested since the first time, but failed until now.
	for _, c := range again.Status.Conditions {
		want := map[string]time.Time{v1alpha1.ConditionAttested: start,
			v1alpha1.ConditionFirstBootFailed: start.Add(time.Minute)}
		if !c.LastTransitionTime.Time.Equal(want[c.Type]) {
			t.Errorf("%s since %s", c.Type, c.LastTransitionTime)
		}
	}
	again, err = record.Attest(attested(t), a, start.Add(time.Minute))
	if err != nil || len(again.Status.Conditions) != 1 {
		t.Errorf("without a failure: %v, %+v", err, again.Status.Conditions)
	}
}

// Only the bearer of the live token has the certificate, and only for the key that the machine attested.
func TestCertified_OnlyForTheAttestedKeyAndTheLiveToken(t *testing.T) {
	if got := record.Certified(issued(t), "token1", start); got != "k1" {
		t.Fatalf("%q", got)
	}
	for name, change := range map[string]func(*rec){
		"another token":   func(r *rec) { r.Status.Token.ID = "token2" },
		"no token":        func(r *rec) { r.Status.Token = nil },
		"another key":     func(r *rec) { r.Status.Certificate.PublicKeySHA256 = "k2" },
		"no attested key": func(r *rec) { r.Status.CSRKeySHA256, r.Status.Certificate.PublicKeySHA256 = "", "" },
		"no certificate":  func(r *rec) { r.Status.Certificate = nil },
		"not issued":      func(r *rec) { r.Status.Certificate.Issued = nil },
		"quarantined":     func(r *rec) { r.Spec.Quarantined = true },
	} {
		r := issued(t)
		change(r)
		if got := record.Certified(r, "token1", start); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
	// An empty key is no key.
	_, err := record.RequestCertificate(attested(t), "token1", pkcs10, "", start)
	wantCode(t, err, reason.CSRKeyChanged)
	if record.Issued(nil, "mcs-attest-u1-k1", []byte("chain")) != nil {
		t.Error("a chain without a record")
	}
}
