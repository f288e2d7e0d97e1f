package record

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Credential is the live credential of this id on the record; false if there is
// none, or if it has ended. One that was revoked says whose it was for as long as the
// quarantine lasts.
func Credential(rec *v1alpha1.MachineAttestation, id string, now time.Time) (v1alpha1.CredentialStatus, bool) {
	if rec == nil || id == "" {
		return v1alpha1.CredentialStatus{}, false
	}
	for _, c := range rec.Status.Credentials {
		if c.ID == id && now.Before(c.Expiry.Time) && (!c.Revoked || rec.Status.Quarantined || rec.Spec.Quarantined) {
			return c, true
		}
	}
	return v1alpha1.CredentialStatus{}, false
}

// CredentialToken returns the token of a machine that may receive a bootstrap credential now: it attested, and
// it has not joined. nil if it may not. The caller checks the Machine itself.
func CredentialToken(rec *v1alpha1.MachineAttestation, now time.Time) *v1alpha1.TokenStatus {
	if rec == nil || rec.Status.Token == nil || !now.Before(rec.Status.Token.Expiry.Time) {
		return nil
	}
	s := &rec.Status
	if s.Quarantined || rec.Spec.Quarantined || contested(s) ||
		s.Phase != v1alpha1.PhaseAttested && s.Phase != v1alpha1.PhaseFetched {
		return nil
	}
	return s.Token
}

// AddCredential adds the bootstrap credential that was made for the machine of a token (rule 2: it is on the
// record before any client can receive it). It refuses
//
//   - a token that is no longer the one of [CredentialToken]: TokenSuperseded
//   - a credential whose Secret was replaced by a newer one in the meantime: CredentialUnavailable
//
// Credentials that have expired are removed, and so are those whose Secret was replaced. If there are too many,
// the newest stay, and a kubelet with the oldest waits for an administrator.
func AddCredential(rec *v1alpha1.MachineAttestation, tokenID string, own credential.Credential,
	now time.Time) (*v1alpha1.MachineAttestation, error) {
	if t := CredentialToken(rec, now); t == nil || t.ID != tokenID {
		return nil, reason.Deny(reason.TokenSuperseded, "token %s is not the live token of its machine", tokenID)
	}
	next := rec.DeepCopy()
	s := &next.Status
	s.Credentials = slices.DeleteFunc(s.Credentials,
		func(c v1alpha1.CredentialStatus) bool { return !now.Before(c.Expiry.Time) })
	another := func(c v1alpha1.CredentialStatus) bool { return c.Secret == own.Secret && c.SecretUID != own.SecretUID }
	for _, c := range s.Credentials {
		if another(c) && !own.Issued.After(c.Issued.Time) { // which was first cannot be told within a second
			return nil, reason.Deny(reason.CredentialUnavailable, "Secret %s was recreated in the meantime", own.Secret)
		}
	}
	s.Credentials = slices.DeleteFunc(s.Credentials, another)
	if n := len(s.Credentials) - (v1alpha1.MaxCredentials - 1); n > 0 {
		s.Credentials = slices.Delete(s.Credentials, 0, n)
	}
	s.Credentials = append(s.Credentials, v1alpha1.CredentialStatus{
		ID: own.ID, Issued: metav1.NewTime(own.Issued), Expiry: metav1.NewTime(own.Expiry), Secret: own.Secret,
		SecretUID: own.SecretUID,
	})
	return next, nil
}

// Revoked notes that every credential of the record was taken back; nil when that is
// known.
func Revoked(rec *v1alpha1.MachineAttestation) *v1alpha1.MachineAttestation {
	if rec == nil || !slices.ContainsFunc(rec.Status.Credentials,
		func(c v1alpha1.CredentialStatus) bool { return !c.Revoked }) {
		return nil
	}
	next := rec.DeepCopy()
	for i := range next.Status.Credentials {
		next.Status.Credentials[i].Revoked = true
	}
	return next
}

// Approve records the first client certificate of a machine, which is when it has
// joined (rules 2 and 11). It is called before the approval, so that no two
// requests can be the first. It refuses
//
//   - a quarantined machine: Quarantined
//   - a credential that the record does not have: CSRCredential
//   - another key than the one that was approved, or attested: CSRKeyChanged
//
// The same key again is the same approval, made again: nil changes.
func Approve(rec *v1alpha1.MachineAttestation, c v1alpha1.CertificateStatus,
	now time.Time) (*v1alpha1.MachineAttestation, error) {
	if rec == nil {
		return nil, reason.Deny(reason.CSRCredential, "there is no record")
	}
	s := rec.Status
	if s.Quarantined || rec.Spec.Quarantined {
		return nil, reason.Deny(reason.Quarantined, "%s/%s", rec.Namespace, rec.Name)
	}
	if _, ok := Credential(rec, c.CredentialID, now); !ok {
		return nil, reason.Deny(reason.CSRCredential, "%s is no live credential of the record", c.CredentialID)
	}
	if s.CSRKeySHA256 != "" && s.CSRKeySHA256 != c.PublicKeySHA256 {
		return nil, reason.Deny(reason.CSRKeyChanged, "the machine attested the key %s, the request has %s", s.CSRKeySHA256,
			c.PublicKeySHA256)
	}
	if s.Certificate != nil {
		if s.Certificate.PublicKeySHA256 != c.PublicKeySHA256 || s.Certificate.Node != c.Node {
			return nil, reason.Deny(reason.CSRKeyChanged, "a certificate for node %s and the key %s was approved before",
				s.Certificate.Node, s.Certificate.PublicKeySHA256)
		}
		return nil, nil
	}
	if s.Phase == v1alpha1.PhaseJoined {
		return nil, reason.Deny(reason.MachineJoined, "%s/%s joined without a certificate that was approved here",
			rec.Namespace, rec.Name)
	}
	next := rec.DeepCopy()
	c.Approved = metav1.NewTime(now)
	next.Status.Certificate = &c
	next.Status.Phase = v1alpha1.PhaseJoined
	next.Status.Token = nil
	note(&next.Status, now, "Joined", "", "", "as node "+c.Node+", by its certificate")
	settleRefusal(&next.Status, now)
	return next, nil
}

// Refused sets the condition CertificateRefused: a request that was made with a
// credential of this record is refused. nil when it says so already.
func Refused(rec *v1alpha1.MachineAttestation, d *reason.Denial, now time.Time) *v1alpha1.MachineAttestation {
	if rec == nil {
		return nil
	}
	text := bounded(d.Error())
	for _, c := range rec.Status.Conditions {
		if c.Type == v1alpha1.ConditionCertificateRefused && c.Status == metav1.ConditionTrue &&
			c.Reason == d.Code.String() && c.Message == text {
			return nil
		}
	}
	next := rec.DeepCopy()
	condition(&next.Status, now, v1alpha1.ConditionCertificateRefused, metav1.ConditionTrue, d.Code.String(), text)
	note(&next.Status, now, "CertificateRefused", d.Code.String(), "", text)
	return next
}

func settleRefusal(s *v1alpha1.MachineAttestationStatus, now time.Time) {
	for _, c := range s.Conditions {
		if c.Type == v1alpha1.ConditionCertificateRefused && c.Status == metav1.ConditionTrue {
			condition(s, now, v1alpha1.ConditionCertificateRefused, metav1.ConditionFalse, "Approved",
				"a request was approved since")
		}
	}
}
