// SPDX-License-Identifier: Apache-2.0

package record

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// MaxReports is the number of failure reports that one ticket permits.
const MaxReports = 8

// RoleMismatch records that the machine's Node has a role that its pool does not have.
// An empty text records that it no longer has it. It returns nil if nothing changes.
func RoleMismatch(rec *v1alpha1.MachineAttestation, text string, now time.Time) *v1alpha1.MachineAttestation {
	if rec == nil {
		return nil
	}
	if meta.IsStatusConditionTrue(rec.Status.Conditions, v1alpha1.ConditionRoleMismatch) == (text != "") {
		return nil
	}
	next := rec.DeepCopy()
	if text == "" {
		condition(&next.Status, now, v1alpha1.ConditionRoleMismatch, metav1.ConditionFalse, "RoleOfPool",
			"the Node no longer has a control-plane role")
		return next
	}
	note(&next.Status, now, "RoleMismatch", "", "", truncate(text))
	condition(&next.Status, now, v1alpha1.ConditionRoleMismatch, metav1.ConditionTrue, "ControlPlaneRole", truncate(text))
	return next
}

// Report records a failure report (rule 15 of docs/security-rules.md). Its text is untrusted.
func Report(rec *v1alpha1.MachineAttestation, ticketID string, r v1alpha1.FailureReport, correlationID string,
	now time.Time) (*v1alpha1.MachineAttestation, error) {
	if rec == nil || rec.Status.Ticket == nil || rec.Status.Ticket.ID != ticketID {
		return nil, reason.Deny(reason.ReportTicketInvalid, "ticket %s is not the live ticket of its machine", ticketID)
	}
	if rec.Status.Ticket.Uses >= MaxReports {
		return nil, reason.Deny(reason.ReportLimit, "ticket %s was used %d times", ticketID, rec.Status.Ticket.Uses)
	}
	next := rec.DeepCopy()
	s := &next.Status
	s.Ticket.Uses++
	r.Time = metav1.NewTime(now)
	s.Report = &r
	note(s, now, "Failed", "", correlationID, truncate(r.Unit+": "+r.Result))
	condition(s, now, v1alpha1.ConditionFirstBootFailed, metav1.ConditionTrue, "StageFailed",
		truncate(r.Unit+" failed: "+r.Result))
	return next, nil
}

// attestedBy describes the accepted evidence for administrators.
func attestedBy(a Attestation) string {
	var words []string
	if a.Endorsement != "" {
		words = append(words, string(a.Endorsement))
	}
	for _, e := range a.Evidence {
		if e.Kind != evidence.TPM2.String() {
			words = append(words, e.Kind)
		}
	}
	return "by " + strings.Join(words, " and ")
}

func note(s *v1alpha1.MachineAttestationStatus, now time.Time, event, code, correlationID, message string) {
	s.History = append(s.History, v1alpha1.HistoryEntry{
		Time: metav1.NewTime(now), Event: event, Reason: code, CorrelationID: correlationID, Message: message,
	})
	s.History = slices.Delete(s.History, 0, max(0, len(s.History)-v1alpha1.MaxHistory))
}

func condition(s *v1alpha1.MachineAttestationStatus, now time.Time, kind string, status metav1.ConditionStatus, code,
	message string) {
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: status, Reason: code, Message: message,
		LastTransitionTime: metav1.NewTime(now)})
}

const maxMessage = 1024

// truncate cuts no character in two. The API would store such a text differently, and later comparisons would fail.
func truncate(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxMessage)], "") }
