package record_test

import (
	"fmt"
	"testing"
	"time"

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

// fetched is a record whose machine received the credential JTI=0.
func fetched(t *testing.T) *rec {
	t.Helper()
	r, err := record.Redeem(attested(t), claims(), own(0), start.Add(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func certificate() v1alpha1.CertificateStatus {
	return v1alpha1.CertificateStatus{Node: "worker-0", PublicKeySHA256: "k1", Request: "csr-1", CredentialID: "JTI=0"}
}

func TestACredentialIsOnTheRecordWithTheUse(t *testing.T) {
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
}

func TestCredentialsAreBoundedAndThoseThatEndedGo(t *testing.T) {
	r := fetched(t)
	for n := 1; n < 3*v1alpha1.MaxCredentials; n++ {
		r.Status.Token.Uses = 0
		var err error
		if r, err = record.Redeem(r, claims(), own(n), start); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(r.Status.Credentials); n != v1alpha1.MaxCredentials {
		t.Errorf("%d credentials", n)
	}
	if _, ok := record.Credential(r, fmt.Sprintf("JTI=%d", 3*v1alpha1.MaxCredentials-1), start); !ok {
		t.Error("the newest is not there")
	}
	r.Status.Token.Uses = 0
	late := own(100)
	late.Expiry = start.Add(24 * time.Hour)
	r, err := record.Redeem(r, claims(), late, start.Add(5*time.Hour))
	if err != nil || len(r.Status.Credentials) != 1 {
		t.Errorf("%v, %+v", err, r.Status.Credentials)
	}
}

func TestOfTwoSecretsOfOneNameTheNewerCounts(t *testing.T) {
	r := fetched(t)
	stale := own(1)
	stale.SecretUID, stale.Issued = "u0", start.Add(-time.Second)
	_, err := record.Redeem(r, claims(), stale, start)
	wantCode(t, err, reason.CredentialUnavailable)
	anew := own(1)
	anew.SecretUID, anew.Issued = "u2", start.Add(time.Second)
	if r, err = record.Redeem(r, claims(), anew, start); err != nil || len(r.Status.Credentials) != 1 ||
		r.Status.Credentials[0].SecretUID != "u2" {
		t.Errorf("%v, %+v", err, r.Status.Credentials)
	}
}

func TestTheFirstCertificateLatches(t *testing.T) {
	r, err := record.Approve(fetched(t), certificate(), start.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if s := r.Status; s.Phase != v1alpha1.PhaseJoined || s.Token != nil || s.Certificate == nil ||
		s.Certificate.Node != "worker-0" {
		t.Errorf("%+v", s)
	}
	// The approval may have been lost on its way: the same again changes nothing.
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
		{"a machine that joined by somebody else's approval", record.Joined(fetched(t), "worker-0", start), nil,
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

func TestTheKeyThatWasAttestedIsTheOneThatIsApproved(t *testing.T) {
	a := honest(t)
	a.CSRKeySHA256 = "k1"
	r, err := record.Attest(nil, a, start)
	if err != nil {
		t.Fatal(err)
	}
	if r, err = record.Redeem(r, claims(), own(0), start); err != nil {
		t.Fatal(err)
	}
	if _, err := record.Approve(r, certificate(), start); err != nil {
		t.Error(err)
	}
}

func TestARefusalIsAConditionUntilOneIsApproved(t *testing.T) {
	d := reason.From(reason.Deny(reason.CSROtherMachine, "asks for worker-1"))
	r := record.Refused(fetched(t), d, start)
	if r == nil || !refusedAs(r, "CSROtherMachine", "True") {
		t.Fatalf("%+v", r)
	}
	if record.Refused(r, d, start.Add(time.Second)) != nil {
		t.Error("the same refusal is told again")
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

func TestAQuarantineRevokesAndARemovalOfItBringsNothingBack(t *testing.T) {
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
	lifted := r.DeepCopy()
	lifted.Status.Quarantined = false // by whatever way
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
