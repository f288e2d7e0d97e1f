// SPDX-License-Identifier: Apache-2.0

package record_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/record"
)

var pkcs10 = []byte("a request that is signed with k1")

// keyed returns the record of a machine that attested the key k1.
func keyed(t *testing.T) *rec {
	t.Helper()
	a := honest(t)
	a.CSRKeySHA256 = "k1"
	r, err := record.Attest(nil, a, start)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// requested returns the record of a machine that also requested its certificate.
func requested(t *testing.T) *rec {
	t.Helper()
	r, err := record.RequestCertificate(keyed(t), claims().ID, pkcs10, "k1", start)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func attestedCertificate() v1alpha1.CertificateStatus {
	return v1alpha1.CertificateStatus{Node: "worker-0", PublicKeySHA256: "k1", Request: "mcs-attest-u1-k1"}
}

// issued returns the record of a machine that has its certificate.
func issued(t *testing.T) *rec {
	t.Helper()
	r, err := record.Certify(requested(t), attestedCertificate(), start)
	if err != nil {
		t.Fatal(err)
	}
	if r = record.Issued(r, "mcs-attest-u1-k1", []byte("chain")); r == nil {
		t.Fatal("not recorded")
	}
	return r
}

func TestCertify_IsNotAJoin(t *testing.T) {
	r := issued(t)
	if s := r.Status; s.Phase != v1alpha1.PhaseAttested || s.Token == nil || s.Certificate.Node != "worker-0" ||
		string(s.Certificate.Issued) != "chain" {
		t.Errorf("%+v", s)
	}
	// The same steps again change nothing.
	if again, err := record.RequestCertificate(r, claims().ID, pkcs10, "k1", start); again != nil || err != nil {
		t.Errorf("%v, %v", again, err)
	}
	if again, err := record.Certify(r, attestedCertificate(), start); again != nil || err != nil {
		t.Errorf("%v, %v", again, err)
	}
	if record.Issued(r, "mcs-attest-u1-k1", []byte("another chain")) != nil {
		t.Error("the chain was replaced")
	}
	approved := r.DeepCopy()
	approved.Status.Certificate.Issued = nil
	if record.Issued(requested(t), "mcs-attest-u1-k1", []byte("chain")) != nil ||
		record.Issued(approved, "another", []byte("chain")) != nil {
		t.Error("a chain without its approval was recorded")
	}
	// The machine fetches its config without a credential.
	if r, err := record.Redeem(r, claims(), &credential.Credential{Key: "k1"}, start); err != nil ||
		r.Status.Phase != v1alpha1.PhaseFetched {
		t.Errorf("%v", err)
	}
}

// An administrator reads on the record that a request was refused before, or that other keys are approved.
func TestCertify_RecordsWhatWasBefore(t *testing.T) {
	refused := record.Refused(requested(t), reason.From(reason.Deny(reason.CSRNodeExists, "worker-0")), start)
	r, err := record.Certify(refused, attestedCertificate(), start)
	if err != nil || !refusedAs(r, "Approved", "False") {
		t.Errorf("%v: %+v", err, r)
	}
	r = record.Superseded(issued(t), []string{"csr-1", "csr-2"}, start)
	if got := last(r); got != [3]string{"CertificateReplaced", "",
		"the certificate of another key, from csr-1, csr-2, stays valid"} {
		t.Errorf("%q", got)
	}
}

// A machine that waits for its certificate receives why the approver refused it. The refusal of an earlier
// request says nothing about the next one.
func TestRequestCertificate_ReturnsTheRefusal(t *testing.T) {
	refused := record.Refused(requested(t), reason.From(reason.Deny(reason.CSRNodeExists, "worker-0")), start)
	_, err := record.RequestCertificate(refused, claims().ID, pkcs10, "k1", start)
	wantCode(t, err, reason.CertificateRefused)
	wantCode(t, reason.From(err).Err, reason.CSRNodeExists)
	if got := err.Error(); got != "CertificateRefused: CSRNodeExists: worker-0" {
		t.Errorf("%s", got)
	}
	refused.Status.CertificateRequest = nil
	r, err := record.RequestCertificate(refused, claims().ID, pkcs10, "k1", start)
	if err != nil || refusedAs(r, "CSRNodeExists", "True") {
		t.Fatalf("%v: %+v", err, r)
	}
	approved := record.Refused(issued(t), reason.From(reason.Deny(reason.CSRKeyChanged, "another request")), start)
	for _, r := range []*rec{r, approved} {
		if again, err := record.RequestCertificate(r, claims().ID, pkcs10, "k1", start); again != nil || err != nil {
			t.Errorf("%v, %v", again, err)
		}
	}
}

// Each case changes one thing of a machine that may have its certificate.
func TestAttack_T73_ACertificateIsForTheAttestedKey(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*rec)
		token  string
		key    string
		want   reason.Code
	}{
		{"another key", nil, "", "k2", reason.CSRKeyChanged},
		{"no key", nil, "", "none", reason.CSRKeyChanged},
		{"a machine that attested no key", func(r *rec) { r.Status.CSRKeySHA256 = "" }, "", "", reason.CSRKeyChanged},
		{"the token of an earlier attestation", nil, "token0", "", reason.TokenSuperseded},
		{"a token that ended", func(r *rec) { r.Status.Token.Expiry = metav1.NewTime(start) }, "", "",
			reason.TokenSuperseded},
		{"an audit", func(r *rec) { r.Status.Token = nil }, "", "", reason.TokenSuperseded},
		{"a quarantined machine", func(r *rec) { r.Status.Quarantined = true }, "", "", reason.Quarantined},
		{"one that was just quarantined", func(r *rec) { r.Spec.Quarantined = true }, "", "", reason.Quarantined},
		{"a machine that joined", func(r *rec) { r.Status.Phase = v1alpha1.PhaseJoined }, "", "", reason.MachineJoined},
	} {
		t.Run(c.name, func(t *testing.T) {
			tokenID, key := claims().ID, "k1"
			if c.token != "" {
				tokenID = c.token
			}
			if c.key != "" {
				key = c.key
			}
			r := keyed(t)
			if c.change != nil {
				c.change(r)
			}
			_, err := record.RequestCertificate(r, tokenID, pkcs10, key, start)
			wantCode(t, err, c.want)
			r = requested(t)
			r.Status.CertificateRequest.Token = tokenID
			if c.change != nil {
				c.change(r)
			}
			approve := attestedCertificate()
			approve.PublicKeySHA256 = key
			_, err = record.Certify(r, approve, start)
			wantCode(t, err, c.want)
		})
	}
	for _, r := range []*rec{nil, keyed(t)} {
		_, err := record.Certify(r, attestedCertificate(), start)
		wantCode(t, err, reason.CSRCredential)
	}
	_, err := record.RequestCertificate(nil, claims().ID, pkcs10, "k1", start)
	wantCode(t, err, reason.CSRCredential)
}

func TestAttack_T73_ASecondRequest(t *testing.T) {
	_, err := record.RequestCertificate(requested(t), claims().ID, []byte("another, signed with k1"), "k1", start)
	wantCode(t, err, reason.CSRKeyChanged)
	former := requested(t)
	former.Status.CertificateRequest.Token = "token0"
	_, err = record.RequestCertificate(former, claims().ID, pkcs10, "k1", start)
	wantCode(t, err, reason.CSRKeyChanged)
	former = issued(t)
	former.Status.Certificate.PublicKeySHA256 = "k0"
	_, err = record.Certify(former, attestedCertificate(), start)
	wantCode(t, err, reason.CSRKeyChanged)
	other := attestedCertificate()
	other.Node = "worker-1"
	_, err = record.Certify(issued(t), other, start)
	wantCode(t, err, reason.CSRKeyChanged)
}

// A record that lacks one thing of a certificate is not served a config without a credential. The
// machine could not join with it.
func TestAttack_T73_ANakedConfigOnlyForTheKeyOfTheCertificate(t *testing.T) {
	for name, change := range map[string]func(*rec){
		"another key was attested": func(r *rec) { r.Status.CSRKeySHA256 = "k2" },
		"no key was attested":      func(r *rec) { r.Status.CSRKeySHA256 = "" },
		"nothing was approved":     func(r *rec) { r.Status.Certificate = nil },
		"nothing was issued":       func(r *rec) { r.Status.Certificate.Issued = nil },
	} {
		r := issued(t)
		change(r)
		_, err := record.Redeem(r, claims(), &credential.Credential{Key: "k1"}, start)
		if reason.From(err).Code != reason.CredentialUnavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A first boot that was interrupted after its certificate: the next attestation has another key.
func TestAttest_DropsTheCertificateOfAnInterruptedFirstBoot(t *testing.T) {
	a := honest(t)
	a.CSRKeySHA256, a.TokenID = "k2", "token2"
	r, err := record.Attest(issued(t), a, start.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if s := r.Status; s.Certificate != nil || s.CertificateRequest != nil || s.CSRKeySHA256 != "k2" {
		t.Errorf("%+v", s)
	}
	_, err = record.RequestCertificate(r, "token1", pkcs10, "k1", start.Add(time.Minute))
	wantCode(t, err, reason.TokenSuperseded)
}
