// SPDX-License-Identifier: Apache-2.0

package record

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// MaxReports is the number of failure reports that one ticket permits.
const MaxReports = 8

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
