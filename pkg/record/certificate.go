// SPDX-License-Identifier: Apache-2.0

package record

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Credential returns the live credential with this ID. It returns false if the record has
// none, or if it has expired. During a quarantine it also returns a revoked one, because
// that shows whose credential it was.
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

// CredentialToken returns the token of a machine that may now receive a bootstrap credential: it attested and has not
// joined. Otherwise it returns nil. The caller checks the Machine itself.
func CredentialToken(rec *v1alpha1.MachineAttestation, now time.Time) *v1alpha1.TokenStatus {
	if rec == nil || rec.Status.Quarantined || rec.Spec.Quarantined {
		return nil
	}
	return liveToken(rec, now)
}

// liveToken is [CredentialToken] without the quarantine.
func liveToken(rec *v1alpha1.MachineAttestation, now time.Time) *v1alpha1.TokenStatus {
	if rec.Status.Token == nil || !now.Before(rec.Status.Token.Expiry.Time) {
		return nil
	}
	s := &rec.Status
	if contested(s) ||
		s.Phase != v1alpha1.PhaseAttested && s.Phase != v1alpha1.PhaseFetched {
		return nil
	}
	return s.Token
}

// AddCredential adds the bootstrap credential that was made for the machine of a token. It must be on the record
// before any client can receive it (rule 2 of docs/security-rules.md). AddCredential denies
//
//   - a token that [CredentialToken] no longer returns: TokenSuperseded
//   - a credential whose Secret was since replaced by a newer one: CredentialUnavailable
//
// It removes credentials that have expired or whose Secret was replaced. If there are too many, it keeps the newest,
// and a kubelet with the oldest must wait for an administrator.
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
		if another(c) && !own.Issued.After(c.Issued.Time) { // times have a resolution of one second
			return nil, reason.Deny(reason.CredentialUnavailable, "Secret %s was recreated", own.Secret)
		}
	}
	s.Credentials = slices.DeleteFunc(s.Credentials, another)
	s.Credentials = slices.Delete(s.Credentials, 0, max(0, len(s.Credentials)-(v1alpha1.MaxCredentials-1)))
	s.Credentials = append(s.Credentials, v1alpha1.CredentialStatus{
		ID: own.ID, Issued: metav1.NewTime(own.Issued), Expiry: metav1.NewTime(own.Expiry), Secret: own.Secret,
		SecretUID: own.SecretUID,
	})
	return next, nil
}

// Revoked records that every credential of the record was revoked. It returns nil if that
// is already recorded.
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

// Approve records the first client certificate of a machine, and that the machine joined
// (rules 2 and 11 of docs/security-rules.md). The approver calls it before it approves, so
// that only one request can be the first. Approve denies
//
//   - a quarantined machine: Quarantined
//   - a credential that the record does not have: CSRCredential
//   - a key other than the approved or attested one: CSRKeyChanged
//
// For the approved key and node it returns nil: nothing changes.
func Approve(rec *v1alpha1.MachineAttestation, c v1alpha1.CertificateStatus,
	now time.Time) (*v1alpha1.MachineAttestation, error) {
	if rec == nil {
		return nil, reason.Deny(reason.CSRCredential, "no record exists")
	}
	s := rec.Status
	if s.Quarantined || rec.Spec.Quarantined {
		return nil, reason.Deny(reason.Quarantined, "%s/%s", rec.Namespace, rec.Name)
	}
	if _, ok := Credential(rec, c.CredentialID, now); !ok {
		return nil, reason.Deny(reason.CSRCredential, "%s is not a live credential of the record", c.CredentialID)
	}
	if s.CSRKeySHA256 != "" && s.CSRKeySHA256 != c.PublicKeySHA256 {
		return nil, reason.Deny(reason.CSRKeyChanged, "the machine attested the key %s, but the request has %s",
			s.CSRKeySHA256, c.PublicKeySHA256)
	}
	if s.Certificate != nil {
		if s.Certificate.PublicKeySHA256 != c.PublicKeySHA256 || s.Certificate.Node != c.Node {
			used := ""
			if s.Certificate.Used {
				used = ", and that Node existed"
			}
			return nil, reason.Deny(reason.CSRKeyChanged, "a certificate for node %s and the key %s was already approved%s",
				s.Certificate.Node, s.Certificate.PublicKeySHA256, used)
		}
		return nil, nil
	}
	if s.Phase == v1alpha1.PhaseJoined {
		return nil, reason.Deny(reason.MachineJoined, "%s/%s already joined, without a certificate from this approver",
			rec.Namespace, rec.Name)
	}
	next := rec.DeepCopy()
	c.Approved = metav1.NewTime(now)
	next.Status.Certificate = &c
	next.Status.Phase = v1alpha1.PhaseJoined
	next.Status.Token = nil
	note(&next.Status, now, "Joined", "", "", "as node "+c.Node+", by its certificate")
	clearRefusal(&next.Status, now)
	return next, nil
}

// Refused sets the condition CertificateRefused after the approver refused a request that
// was made with a credential of this record. It returns nil if nothing changes.
func Refused(rec *v1alpha1.MachineAttestation, d *reason.Denial, now time.Time) *v1alpha1.MachineAttestation {
	if rec == nil {
		return nil
	}
	text := truncate(d.Error())
	c := meta.FindStatusCondition(rec.Status.Conditions, v1alpha1.ConditionCertificateRefused)
	if c != nil && c.Message == text { // text begins with the reason
		return nil
	}
	next := rec.DeepCopy()
	condition(&next.Status, now, v1alpha1.ConditionCertificateRefused, metav1.ConditionTrue, d.Code.String(), text)
	note(&next.Status, now, "CertificateRefused", d.Code.String(), "", text)
	return next
}

func clearRefusal(s *v1alpha1.MachineAttestationStatus, now time.Time) {
	if meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionCertificateRefused) != nil {
		condition(s, now, v1alpha1.ConditionCertificateRefused, metav1.ConditionFalse, "Approved",
			"a later request was approved")
	}
}
