// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
)

func own(n int) *credential.Credential {
	return &credential.Credential{
		ID: fmt.Sprintf("JTI=%d", n), Issued: start, Expiry: start.Add(4 * time.Hour),
		Secret: "mco/mcs-attest-bootstrap-1", SecretUID: "u1",
	}
}

// fetched returns a record whose machine received the credential JTI=0.
func fetched(t *testing.T) *rec {
	t.Helper()
	r, err := record.Redeem(added(t, attested(t), own(0), start), claims(), own(0), start.Add(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// added returns a record with a credential for its token.
func added(t *testing.T, r *rec, own *credential.Credential, now time.Time) *rec {
	t.Helper()
	r, err := record.AddCredential(r, claims().ID, *own, now)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func certificate() v1alpha1.CertificateStatus {
	return v1alpha1.CertificateStatus{Node: "worker-0", PublicKeySHA256: "k1", Request: "csr-1", CredentialID: "JTI=0"}
}

func TestRedeem_RequiresTheCredentialOnTheRecord(t *testing.T) {
	r := fetched(t)
	if c, ok := record.Credential(r, "JTI=0", start); !ok || c.SecretUID != "u1" || r.Status.Token.Uses != 1 {
		t.Errorf("%+v, %d uses", c, r.Status.Token.Uses)
	}
	if _, ok := record.Credential(r, "JTI=0", start.Add(4*time.Hour)); ok {
		t.Error("it counts after its end")
	}
	for _, id := range []string{"", "JTI=1"} {
		if _, ok := record.Credential(r, id, start); ok {
			t.Errorf("there is a credential %q", id)
		}
	}
	if _, ok := record.Credential(nil, "JTI=0", start); ok {
		t.Error("there is one without a record")
	}
	r.Status.Credentials[0].ID = ""
	if _, ok := record.Credential(r, "", start); ok {
		t.Error("a request without a credential has one without an ID")
	}
}

func TestAddCredential_RemovesExpiredAndOldest(t *testing.T) {
	r := fetched(t)
	for n := 1; n < 3*v1alpha1.MaxCredentials; n++ {
		r = added(t, r, own(n), start)
		if got := len(r.Status.Credentials); got != min(n+1, v1alpha1.MaxCredentials) {
			t.Errorf("%d credentials after %d", got, n+1)
		}
	}
	if _, ok := record.Credential(r, fmt.Sprintf("JTI=%d", 3*v1alpha1.MaxCredentials-1), start); !ok {
		t.Error("the newest is missing")
	}
	late := own(100)
	late.Expiry = start.Add(24 * time.Hour)
	r.Status.Token.Expiry = metav1.NewTime(start.Add(6 * time.Hour))
	if r = added(t, r, late, start.Add(5*time.Hour)); len(r.Status.Credentials) != 1 {
		t.Errorf("%+v", r.Status.Credentials)
	}
}

func TestAddCredential_PrefersTheNewerSecret(t *testing.T) {
	r := fetched(t)
	stale := own(1)
	stale.SecretUID, stale.Issued = "u0", start.Add(-time.Second)
	_, err := record.AddCredential(r, claims().ID, *stale, start)
	wantCode(t, err, reason.CredentialUnavailable)
	next := own(1)
	next.SecretUID, next.Issued = "u2", start.Add(time.Second)
	if r = added(t, r, next, start); len(r.Status.Credentials) != 1 || r.Status.Credentials[0].SecretUID != "u2" {
		t.Errorf("%+v", r.Status.Credentials)
	}
	another := own(2)
	another.Secret, another.SecretUID = "mco/mcs-attest-bootstrap-2", "u0"
	if r = added(t, r, another, start); len(r.Status.Credentials) != 2 {
		t.Errorf("with another Secret: %+v", r.Status.Credentials)
	}
}

func TestAttack_T49_ACredentialThatIsNotOnTheRecordIsNotServed(t *testing.T) {
	revoked := added(t, attested(t), own(0), start)
	revoked.Status.Credentials[0].Revoked = true
	for name, r := range map[string]*rec{
		"none":                 attested(t),
		"another one":          added(t, attested(t), own(1), start),
		"one that ended":       added(t, attested(t), &credential.Credential{ID: "JTI=0", Expiry: start}, start),
		"one that was revoked": revoked,
	} {
		_, err := record.Redeem(r, claims(), own(0), start)
		if reason.From(err).Code != reason.CredentialUnavailable {
			t.Errorf("the record has %s: %v", name, err)
		}
	}
}

func TestAttack_T49_OnlyTheMachineOfALiveTokenReceivesACredential(t *testing.T) {
	if record.CredentialToken(attested(t), start) == nil || record.CredentialToken(fetched(t), start) == nil {
		t.Fatal("an honest machine receives none")
	}
	for name, change := range map[string]func(*rec){
		"joined":                func(r *rec) { r.Status.Phase = v1alpha1.PhaseJoined },
		"denied":                func(r *rec) { r.Status.Phase = v1alpha1.PhaseDenied },
		"without a phase":       func(r *rec) { r.Status.Phase = "" },
		"without a token":       func(r *rec) { r.Status.Token = nil },
		"with another token":    func(r *rec) { r.Status.Token.ID = "t2" },
		"with an expired token": func(r *rec) { r.Status.Token.Expiry = metav1.NewTime(start) },
		"quarantined":           func(r *rec) { r.Spec.Quarantined = true },
		"that was quarantined":  func(r *rec) { r.Status.Quarantined = true },
	} {
		r := attested(t)
		change(r)
		if next, err := record.AddCredential(r, claims().ID, *own(0), start); next != nil ||
			reason.From(err).Code != reason.TokenSuperseded {
			t.Errorf("a machine %s: %v", name, err)
		}
	}
	if _, err := record.AddCredential(nil, claims().ID, *own(0), start); err == nil {
		t.Error("a machine without a record")
	}
}

func TestApprove_RecordsTheFirstCertificate(t *testing.T) {
	r, err := record.Approve(fetched(t), certificate(), start.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if s := r.Status; s.Phase != v1alpha1.PhaseJoined || s.Token != nil || s.Certificate == nil ||
		s.Certificate.Node != "worker-0" || !s.Certificate.Approved.Time.Equal(start.Add(time.Minute)) ||
		last(r) != [3]string{"Joined", "", "as node worker-0, by its certificate"} {
		t.Errorf("%+v", s)
	}
	// Without an earlier refusal there is no condition.
	if hasCondition(r.Status, v1alpha1.ConditionCertificateRefused, metav1.ConditionFalse) {
		t.Errorf("conditions %+v", r.Status.Conditions)
	}
	// The approval may have failed: the same request again changes nothing.
	if again, err := record.Approve(r, certificate(), start.Add(2*time.Minute)); err != nil || again != nil {
		t.Errorf("again: %v, %v", again, err)
	}
}

func TestAttack_T54_NoSecondCertificateOfAMachine(t *testing.T) {
	approved := func() *rec {
		r, err := record.Approve(fetched(t), certificate(), start)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, c := range []struct {
		name string
		rec  *rec
		csr  func(*v1alpha1.CertificateStatus)
		want reason.Code
	}{
		{"another key", approved(), func(c *v1alpha1.CertificateStatus) { c.PublicKeySHA256 = "k2" }, reason.CSRKeyChanged},
		{"another name", approved(), func(c *v1alpha1.CertificateStatus) { c.Node = "worker-1" }, reason.CSRKeyChanged},
		{"a credential that the record does not have", fetched(t),
			func(c *v1alpha1.CertificateStatus) { c.CredentialID = "JTI=shared" }, reason.CSRCredential},
		{"no credential", fetched(t), func(c *v1alpha1.CertificateStatus) { c.CredentialID = "" }, reason.CSRCredential},
		{"no record", nil, nil, reason.CSRCredential},
		{"a quarantined machine", func() *rec {
			r := fetched(t)
			r.Status.Quarantined = true
			return r
		}(), nil, reason.Quarantined},
		{"one that the administrator has just quarantined", func() *rec {
			r := fetched(t)
			r.Spec.Quarantined = true
			return r
		}(), nil, reason.Quarantined},
		{"another key than the one attested", func() *rec {
			r := fetched(t)
			r.Status.CSRKeySHA256 = "k0"
			return r
		}(), nil, reason.CSRKeyChanged},
		{"a machine that joined by a third party's approval", record.Joined(fetched(t), "worker-0", start), nil,
			reason.MachineJoined},
	} {
		t.Run(c.name, func(t *testing.T) {
			csr := certificate()
			if c.csr != nil {
				c.csr(&csr)
			}
			_, err := record.Approve(c.rec, csr, start)
			wantCode(t, err, c.want)
		})
	}
	late, err := record.Approve(fetched(t), certificate(), start.Add(5*time.Hour))
	if err == nil {
		t.Errorf("approved with a credential that ended: %+v", late.Status.Certificate)
	}
}

func TestApprove_RequiresTheAttestedKey(t *testing.T) {
	a := honest(t)
	a.CSRKeySHA256 = "k1"
	r, err := record.Attest(nil, a, start)
	if err != nil {
		t.Fatal(err)
	}
	if r, err = record.Redeem(added(t, r, own(0), start), claims(), own(0), start); err != nil {
		t.Fatal(err)
	}
	if _, err := record.Approve(r, certificate(), start); err != nil {
		t.Error(err)
	}
	other := certificate()
	other.PublicKeySHA256 = "k2"
	_, err = record.Approve(r, other, start)
	wantCode(t, err, reason.CSRKeyChanged)
	// The next attestation replaces the key, even by none.
	a.CSRKeySHA256 = ""
	if r, err = record.Attest(r, a, start.Add(time.Minute)); err != nil || r.Status.CSRKeySHA256 != "" {
		t.Errorf("%v: %+v", err, r)
	}
}

// The approver evaluates a waiting request again and again. The API server stores only valid UTF-8.
func TestRefused_WritesALongTextOnce(t *testing.T) {
	for offset := range utf8.UTFMax {
		d := reason.From(reason.Deny(reason.CSRContent, "%s%s", strings.Repeat("x", offset), strings.Repeat("節", 1000)))
		stored := &v1alpha1.MachineAttestation{}
		raw, err := json.Marshal(record.Refused(fetched(t), d, start))
		if err == nil {
			err = json.Unmarshal(raw, stored)
		}
		if err != nil {
			t.Fatal(err)
		}
		if record.Refused(stored, d, start.Add(time.Second)) != nil {
			t.Errorf("the same refusal is written twice, with %d bytes before the text", offset)
		}
	}
}

func TestRefused_SetsAConditionUntilAnApproval(t *testing.T) {
	d := reason.From(reason.Deny(reason.CSROtherMachine, "asks for worker-1"))
	r := record.Refused(fetched(t), d, start)
	if r == nil || !refusedAs(r, "CSROtherMachine", "True") ||
		last(r) != [3]string{"CertificateRefused", "CSROtherMachine", "CSROtherMachine: asks for worker-1"} {
		t.Fatalf("%+v", r)
	}
	for name, other := range map[string]*reason.Denial{
		"the same for another name":       reason.From(reason.Deny(reason.CSROtherMachine, "asks for worker-2")),
		"another reason, the same detail": {Code: reason.CSRContent, Detail: d.Detail},
	} {
		if record.Refused(r, other, start) == nil {
			t.Errorf("%s is not reported", name)
		}
	}
	elsewhere := r.DeepCopy()
	for i := range elsewhere.Status.Conditions {
		elsewhere.Status.Conditions[i].Type = v1alpha1.ConditionConflict
	}
	if record.Refused(elsewhere, d, start) == nil {
		t.Error("another condition with this text hides the refusal")
	}
	if record.Refused(r, d, start.Add(time.Second)) != nil {
		t.Error("the same refusal is reported again")
	}
	r, err := record.Approve(r, certificate(), start)
	if err != nil || !refusedAs(r, "Approved", "False") {
		t.Errorf("%v %+v", err, r.Status.Conditions)
	}
	if record.Refused(nil, d, start) != nil {
		t.Error("a refusal without a record made one")
	}
}

func refusedAs(r *rec, why, status string) bool {
	for _, c := range r.Status.Conditions {
		if c.Type == v1alpha1.ConditionCertificateRefused {
			return c.Reason == why && string(c.Status) == status
		}
	}
	return false
}

func TestQuarantine_RevokesCredentialsPermanently(t *testing.T) {
	m := enrolled(t, "")
	r := record.Quarantine(fetched(t), m, true, start)
	if r = record.Revoked(r); r == nil || record.Revoked(r) != nil {
		t.Fatal("revoked, and again")
	}
	if _, ok := record.Credential(r, "JTI=0", start); !ok {
		t.Error("a quarantine forgets whose the credential was")
	}
	_, err := record.Approve(r, certificate(), start)
	wantCode(t, err, reason.Quarantined)
	r.Status.Quarantined, r.Spec.Quarantined = false, true // the administrator's wish, before it is recorded
	if _, ok := record.Credential(r, "JTI=0", start); !ok {
		t.Error("a new quarantine forgets whose the credential was")
	}
	r.Status.Quarantined, r.Spec.Quarantined = true, false
	lifted := r.DeepCopy()
	lifted.Status.Quarantined = false // in any way
	if _, ok := record.Credential(lifted, "JTI=0", start); ok {
		t.Error("a revoked credential counts again")
	}
	if r = record.Quarantine(r, m, false, start); len(r.Status.Credentials) != 0 {
		t.Errorf("%+v", r.Status.Credentials)
	}
	if record.Revoked(nil) != nil || record.Revoked(attested(t)) != nil {
		t.Error("revoked what there was not")
	}
}

func TestAttack_T54_CredentialsOfTheLifeBeforeAGrant(t *testing.T) {
	r, err := record.Approve(fetched(t), certificate(), start)
	if err != nil {
		t.Fatal(err)
	}
	a := honest(t)
	a.Machine = enrolled(t, "  reattest: {until: "+start.Add(2*time.Hour).Format(time.RFC3339)+"}\n")
	if r, err = record.Attest(r, a, start.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	_, err = record.Approve(r, certificate(), start.Add(time.Hour))
	wantCode(t, err, reason.CSRCredential)
}
