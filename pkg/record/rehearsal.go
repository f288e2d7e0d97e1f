// SPDX-License-Identifier: Apache-2.0

package record

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Rehearsal is the outcome of an appraisal that grants nothing.
type Rehearsal struct {
	Machine      *machine.Machine
	TicketSHA256 string // of the ticket that the caller presented, in hexadecimal
	Pool         string
	AgentVersion string // untrusted
	Warnings     []string
	// Denial is why the evidence was denied, or nil. Proven reports that the caller proved to be the
	// Machine, so that the record may have the details of the denial.
	Denial *reason.Denial
	Proven bool
	// Of an accepted appraisal; see [Attestation].
	Identity    v1alpha1.RecordedIdentity
	Endorsement v1alpha1.Endorsement
	TPM         *v1alpha1.TPMCounters
	Replayable  bool
	// Unnamed reports that the evidence names no Machine: the policy requires only the provisioning token.
	Unnamed bool
}

// maxWarning limits a warning, in bytes.
const maxWarning = 256

// Rehearse records whether a machine could be provisioned again. It changes only status.rehearsal and the
// condition Rehearsed, so no later decision depends on it. In addition to the appraisal, it makes the checks
// of [Attest] as for a machine with a grant. It denies a ticket that was used or withdrawn with
// ChallengeInvalid.
func Rehearse(rec *v1alpha1.MachineAttestation, r Rehearsal, now time.Time) (*v1alpha1.MachineAttestation, error) {
	next := begin(rec, r.Machine)
	s := &next.Status
	if s.Rehearsal != nil && s.Rehearsal.TicketSHA256 == r.TicketSHA256 {
		return nil, reason.Deny(reason.ChallengeInvalid, "the ticket of Machine %s was used", r.Machine)
	}
	// The record may be newer than the Machine.
	e, t := r.Machine.Enrollment, next.Spec.Rehearsal
	if e != nil && next.UID != "" && e.UID == next.UID && (t == nil || t.TicketSHA256 != r.TicketSHA256) {
		return nil, reason.Deny(reason.ChallengeInvalid, "the ticket of Machine %s was withdrawn", r.Machine)
	}
	denial := r.Denial
	if denial == nil {
		denial = reason.From(rehearsed(next, &r))
	}
	s.Rehearsal = &v1alpha1.RehearsalStatus{
		Time: metav1.NewTime(now), TicketSHA256: r.TicketSHA256, Pool: r.Pool, Passed: denial == nil,
		AgentVersion: r.AgentVersion,
	}
	for _, w := range r.Warnings[:min(len(r.Warnings), v1alpha1.MaxRehearsalWarnings)] {
		s.Rehearsal.Warnings = append(s.Rehearsal.Warnings, strings.ToValidUTF8(w[:min(len(w), maxWarning)], ""))
	}
	if denial == nil {
		condition(s, now, v1alpha1.ConditionRehearsed, metav1.ConditionTrue, "WouldPass",
			"the machine could be provisioned again")
		return next, nil
	}
	s.Rehearsal.Reason = denial.Code.String()
	text := denial.Code.Info().Title
	if r.Proven {
		text = strings.TrimPrefix(denial.Error(), denial.Code.String()+": ")
	}
	condition(s, now, v1alpha1.ConditionRehearsed, metav1.ConditionFalse, denial.Code.String(),
		truncate(text))
	return next, nil
}

// rehearsed returns why the record would deny an attestation that the appraisal accepted.
func rehearsed(rec *v1alpha1.MachineAttestation, r *Rehearsal) error {
	s := &rec.Status
	if r.Machine.Quarantined() || s.Quarantined || rec.Spec.Quarantined {
		return reason.Deny(reason.Quarantined, "Machine %s", r.Machine)
	}
	if r.Unnamed {
		return nil
	}
	if err := consistent(s, r.Machine, r.Identity, r.Endorsement); err != nil {
		return err
	}
	if back := notLater(s, r.Machine, r.TPM, r.Replayable); back != nil {
		if s.Phase != v1alpha1.PhaseJoined && !r.Machine.Joined() {
			return back
		}
		r.Warnings = append(r.Warnings[:len(r.Warnings):len(r.Warnings)], back.Error()) // a grant admits it
	}
	return nil
}
