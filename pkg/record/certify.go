// SPDX-License-Identifier: Apache-2.0

package record

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// RequestCertificate records the request for a node's certificate that a machine made after its
// attestation. der is a PKCS #10 request, and key is the hash of its public key. It denies
//
//   - a token that is not the live one of its machine: TokenSuperseded
//   - a key that the machine did not attest: CSRKeyChanged
//   - another request than the recorded one: CSRKeyChanged. A machine makes one request for each
//     attestation
//   - a recorded request that the approver refused: CertificateRefused, whose cause has the approver's reason
//
// It returns nil if the request is already recorded.
func RequestCertificate(rec *v1alpha1.MachineAttestation, tokenID string, der []byte, key string,
	now time.Time) (*v1alpha1.MachineAttestation, error) {
	if err := notQuarantined(rec); err != nil {
		return nil, err
	}
	if err := attestedKey(rec, tokenID, key, now); err != nil {
		return nil, err
	}
	if r := rec.Status.CertificateRequest; r != nil {
		if r.Token != tokenID || string(r.Request) != string(der) {
			return nil, reason.Deny(reason.CSRKeyChanged, "%s/%s already requested a certificate with token %s",
				rec.Namespace, rec.Name, r.Token)
		}
		return nil, refusal(rec)
	}
	next := rec.DeepCopy()
	meta.RemoveStatusCondition(&next.Status.Conditions, v1alpha1.ConditionCertificateRefused) // of an earlier request
	next.Status.CertificateRequest = &v1alpha1.CertificateRequestStatus{Request: der, Token: tokenID}
	return next, nil
}

// refusal returns why the approver refused the recorded request, or nil.
func refusal(rec *v1alpha1.MachineAttestation) error {
	c := meta.FindStatusCondition(rec.Status.Conditions, v1alpha1.ConditionCertificateRefused)
	if c == nil || c.Status != metav1.ConditionTrue || rec.Status.Certificate != nil {
		return nil
	}
	code, _ := reason.Parse(c.Reason)
	return &reason.Denial{Code: reason.CertificateRefused,
		Err: reason.Deny(code, "%s", strings.TrimPrefix(c.Message, c.Reason+": "))}
}

// Certify records the approval of a machine's own request. Other than [Approve] it is not a join:
// the machine does not have its config yet, and its Node does not exist. It denies what
// [RequestCertificate] denies, and another name than that of an earlier approval: CSRKeyChanged. It
// returns nil if the approval is already recorded.
func Certify(rec *v1alpha1.MachineAttestation, c v1alpha1.CertificateStatus,
	now time.Time) (*v1alpha1.MachineAttestation, error) {
	if err := notQuarantined(rec); err != nil {
		return nil, err
	}
	if err := Requested(rec, c.PublicKeySHA256, now); err != nil {
		return nil, err
	}
	if was := rec.Status.Certificate; was != nil {
		if was.PublicKeySHA256 != c.PublicKeySHA256 || was.Node != c.Node {
			return nil, reason.Deny(reason.CSRKeyChanged, "a certificate for node %s and the key %s was already approved",
				was.Node, was.PublicKeySHA256)
		}
		return nil, nil
	}
	next := rec.DeepCopy()
	c.Approved = metav1.NewTime(now)
	next.Status.Certificate = &c
	note(&next.Status, now, "Certified", "", "", "as node "+c.Node+", for the key that it attested")
	clearRefusal(&next.Status, now)
	return next, nil
}

// Superseded records that a machine gets a certificate although other keys were approved for its Node in
// the last hour: those of the given requests. That is an interrupted first boot, or a theft.
func Superseded(rec *v1alpha1.MachineAttestation, requests []string, now time.Time) *v1alpha1.MachineAttestation {
	next := rec.DeepCopy()
	note(&next.Status, now, "CertificateReplaced", "", "", truncate("the certificate of another key, from "+
		strings.Join(requests, ", ")+", stays valid"))
	return next
}

// Issued records the chain (PEM) that was issued for the approved request of this name. It returns
// nil if the record has another certificate, or has the chain already.
func Issued(rec *v1alpha1.MachineAttestation, request string, chain []byte) *v1alpha1.MachineAttestation {
	if rec == nil || rec.Status.Certificate == nil || rec.Status.Certificate.Request != request ||
		len(rec.Status.Certificate.Issued) > 0 {
		return nil
	}
	next := rec.DeepCopy()
	next.Status.Certificate.Issued = chain
	return next
}

// Certified returns the hash of the key for which the bearer of a token has its node's certificate,
// or "". Such a machine needs no bootstrap credential.
func Certified(rec *v1alpha1.MachineAttestation, tokenID string, now time.Time) string {
	t := CredentialToken(rec, now)
	if t == nil || t.ID != tokenID {
		return ""
	}
	s := rec.Status
	if s.Certificate == nil || len(s.Certificate.Issued) == 0 || s.Certificate.PublicKeySHA256 != s.CSRKeySHA256 {
		return ""
	}
	return s.CSRKeySHA256
}

// Requested checks that a machine has attested a key, has requested a certificate, and has the live token of
// both. Like [Credential], it also accepts a quarantined machine, because that shows whose request it is.
func Requested(rec *v1alpha1.MachineAttestation, key string, now time.Time) error {
	if rec == nil || rec.Status.CertificateRequest == nil {
		return reason.Deny(reason.CSRCredential, "the machine has requested no certificate")
	}
	return attestedKey(rec, rec.Status.CertificateRequest.Token, key, now)
}

func notQuarantined(rec *v1alpha1.MachineAttestation) error {
	if rec != nil && (rec.Status.Quarantined || rec.Spec.Quarantined) {
		return reason.Deny(reason.Quarantined, "%s/%s", rec.Namespace, rec.Name)
	}
	return nil
}

// attestedKey checks that the machine attested a key with its live token and has not joined.
func attestedKey(rec *v1alpha1.MachineAttestation, tokenID, key string, now time.Time) error {
	if rec == nil {
		return reason.Deny(reason.CSRCredential, "no record exists")
	}
	s := rec.Status
	switch t := liveToken(rec, now); {
	case s.Phase == v1alpha1.PhaseJoined:
		return reason.Deny(reason.MachineJoined, "%s/%s already joined", rec.Namespace, rec.Name)
	case t == nil || t.ID != tokenID:
		return reason.Deny(reason.TokenSuperseded, "token %s is not the live token of %s/%s", tokenID, rec.Namespace,
			rec.Name)
	case key == "" || s.CSRKeySHA256 != key:
		return reason.Deny(reason.CSRKeyChanged, "the machine attested the key %q, but the request has %q", s.CSRKeySHA256,
			key)
	}
	return nil
}
