// SPDX-License-Identifier: Apache-2.0

// Package record is the state machine of a Machine's record, a MachineAttestation.
// Each function is one pure step: it returns the next state, or a denial. The stores,
// and the controllers that keep records, apply each step as one atomic change.
//
//	            attest            fetch             join
//	(none) ──────────▶ Attested ─────────▶ Fetched ─────────▶ Joined
//	    │                ▲ │ same identity   │                   │
//	    │ denied         └─┴─────────────────┘                   │ grant
//	    ▼                            ▲                           │
//	 Denied ─────────────────────────┴───────────────────────────┘
//
// The first writer wins: later steps only confirm or extend a recorded identity
// (rules 3, 4 and 13 of docs/security-rules.md). Joined is a latch, which only an
// administrator's unexpired grant opens (rule 11).
package record

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/credential"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
	"github.com/mcs-attest/mcs-attest/pkg/token"
)

// Attestation is a verdict that a store records.
type Attestation struct {
	Machine       *machine.Machine
	Identity      v1alpha1.RecordedIdentity
	Endorsement   v1alpha1.Endorsement
	Evidence      []v1alpha1.EvidenceSummary
	Warnings      []string
	Pool          string
	TokenID       string // empty under Audit
	TokenExpiry   time.Time
	TokenUses     int32
	TicketID      string
	ChallengeID   string // set under the binding "terminated"
	ChallengeEnds time.Time
	CorrelationID string
	// TPM has the counters of the quote, or is nil without one.
	TPM *v1alpha1.TPMCounters
	// Replayable reports that no evidence is bound to this exchange.
	Replayable bool
	// CSRKeySHA256 is the hash of the key that the machine attested for its kubelet, in
	// hexadecimal, or "".
	CSRKeySHA256 string
}

// minInterval is the shortest time between two tokens of one machine (rule 9 of
// docs/security-rules.md). A second first boot takes longer.
const minInterval = 5 * time.Second

// Attest records an attestation. It denies
//
//   - a quarantined Machine: Quarantined
//   - a Machine that joined, without an unexpired grant: MachineJoined
//   - another identity than the recorded one: IdentityConflict, or PendingApproval
//     if the record is based on first use
//   - a challenge that was already answered: ChallengeUsed
//   - a second attestation that is Replayable, without a grant: EvidenceUnacceptable
//   - a TPM whose counters went back, without a grant: IdentityConflict or QuoteNotFresh
//   - a second token within a few seconds: RateLimited
//
// rec is nil if no record exists. If rec is an object of the API, its spec is as fresh
// as its status, so a quarantine or a grant in it counts in addition to the Machine's.
func Attest(rec *v1alpha1.MachineAttestation, a Attestation, now time.Time) (*v1alpha1.MachineAttestation, error) {
	next := begin(rec, a.Machine)
	s := &next.Status
	if a.Machine.Quarantined() || s.Quarantined || next.Spec.Quarantined {
		return nil, reason.Deny(reason.Quarantined, "Machine %s", a.Machine)
	}
	if s.Phase == v1alpha1.PhaseJoined || a.Machine.Joined() {
		if err := useGrant(next, a.Machine, now); err != nil {
			return nil, err
		}
		s.Credentials = nil // a third party may have read those on the old disk
	}
	if err := consistent(s, a.Machine, a.Identity, a.Endorsement); err != nil {
		return nil, err
	}
	if a.ChallengeID != "" {
		if err := useChallenge(s, a, now); err != nil {
			return nil, err
		}
	}
	back := notLater(s, a.Machine, a.TPM, a.Replayable)
	if back != nil {
		if grant(next, a.Machine, now) == nil {
			return nil, back
		}
		if s.Phase != v1alpha1.PhaseJoined && !a.Machine.Joined() { // otherwise it was used above
			if err := useGrant(next, a.Machine, now); err != nil {
				return nil, err
			}
		}
		if a.TPM != nil {
			a.Warnings = append(slices.Clone(a.Warnings), back.Error())
		}
	}
	if s.LastAttested != nil && a.TokenID != "" {
		// The clock of another replica may be ahead. Then only a short time counts, and the machine waits no longer.
		if ago := now.Sub(s.LastAttested.Time); ago.Abs() < minInterval {
			return nil, reason.Deny(reason.RateLimited, "the last attestation was less than %v ago", minInterval)
		}
	}
	s.Phase = v1alpha1.PhaseAttested
	s.Identity = merge(s.Identity, a.Identity)
	s.Endorsement, s.Evidence, s.Pool = a.Endorsement, a.Evidence, a.Pool
	s.LastAttested = &metav1.Time{Time: now}
	s.Token = nil
	if a.TokenID != "" {
		s.Token = &v1alpha1.TokenStatus{ID: a.TokenID, Pool: a.Pool, Expiry: metav1.NewTime(a.TokenExpiry),
			MaxUses: a.TokenUses}
	}
	s.Ticket = &v1alpha1.TicketStatus{ID: a.TicketID}
	s.Report = nil
	s.CSRKeySHA256 = a.CSRKeySHA256
	s.Certificate, s.CertificateRequest = nil, nil // the new installation will get another
	if meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionFirstBootFailed) != nil {
		condition(s, now, v1alpha1.ConditionFirstBootFailed, metav1.ConditionFalse, "AttestedAgain",
			"a new first boot has started")
	}
	note(s, now, "Attested", "", a.CorrelationID, attestedBy(a)+resets(s.TPM, a.TPM))
	if a.TPM != nil {
		s.TPM = a.TPM
	}
	for _, w := range a.Warnings {
		note(s, now, "Warning", "", a.CorrelationID, w)
	}
	condition(s, now, v1alpha1.ConditionAttested, metav1.ConditionTrue, "Attested", attestedBy(a))
	return next, nil
}

// Denied records why a Machine with a proven identity was denied. It never changes the
// identity, the token or a phase beyond Denied, so a denial cannot be used to harm the
// Machine (rule 3 of docs/security-rules.md). It returns nil for a recent duplicate.
func Denied(rec *v1alpha1.MachineAttestation, m *machine.Machine, d *reason.Denial, correlationID string,
	now time.Time) *v1alpha1.MachineAttestation {
	next := begin(rec, m)
	s := &next.Status
	if s.Phase == "" || s.Phase == v1alpha1.PhasePending {
		s.Phase = v1alpha1.PhaseDenied
	}
	// Repeated denials for the same reason are one entry per minute, also if others are between them.
	for _, h := range slices.Backward(s.History) {
		if h.Event != denied || now.Sub(h.Time.Time) >= time.Minute {
			break
		}
		if h.Reason == d.Code.String() {
			return nil
		}
	}
	text := truncate(strings.TrimPrefix(d.Error(), d.Code.String()+": "))
	note(s, now, denied, d.Code.String(), correlationID, text)
	if s.Phase == v1alpha1.PhaseDenied {
		condition(s, now, v1alpha1.ConditionAttested, metav1.ConditionFalse, d.Code.String(), text)
	}
	if d.Code == reason.IdentityConflict || d.Code == reason.PendingApproval && firstUse(s) {
		condition(s, now, v1alpha1.ConditionConflict, metav1.ConditionTrue, d.Code.String(), text)
	}
	return next
}

// Redeemable checks that the record still allows what the token grants:
//
//   - a record exists, and the token is its live one: TokenSuperseded
//   - the machine is not quarantined: Quarantined
//   - the Machine has not joined: MachineJoined
//   - the record is not contested: PendingApproval
//   - it has uses left: TokenUsedUp
//
// The caller checks the Machine itself, on its freshest state.
func Redeemable(rec *v1alpha1.MachineAttestation, c token.Claims) error {
	if rec == nil || rec.Status.Token == nil || rec.Status.Token.ID != c.ID {
		return reason.Deny(reason.TokenSuperseded, "token %s is not the live token of %s", c.ID, c.Subject)
	}
	if rec.Status.Quarantined || rec.Spec.Quarantined {
		return reason.Deny(reason.Quarantined, "%s", c.Subject)
	}
	if rec.Status.Phase == v1alpha1.PhaseJoined {
		return reason.Deny(reason.MachineJoined, "%s joined", c.Subject)
	}
	if contested(&rec.Status) {
		return reason.Deny(reason.PendingApproval,
			"%s is contested: its record is based on first use, and another identity was proven for it later", c.Subject)
	}
	if rec.Status.Token.Uses >= rec.Status.Token.MaxUses {
		return reason.Deny(reason.TokenUsedUp, "token %s was used %d times", c.ID, rec.Status.Token.Uses)
	}
	return nil
}

// Redeem counts one use of the token. The credential that is delivered with the config must already be on the record,
// see [AddCredential] (rule 2 of docs/security-rules.md); nil means none.
func Redeem(rec *v1alpha1.MachineAttestation, c token.Claims, own *credential.Credential,
	now time.Time) (*v1alpha1.MachineAttestation, error) {
	if err := Redeemable(rec, c); err != nil {
		return nil, err
	}
	switch {
	case own == nil:
	case own.Key != "":
		if Certified(rec, c.ID, now) != own.Key {
			return nil, reason.Deny(reason.CredentialUnavailable, "the record of %s has no certificate for the key %s",
				c.Subject, own.Key)
		}
	default:
		if _, ok := Credential(rec, own.ID, now); !ok {
			return nil, reason.Deny(reason.CredentialUnavailable, "the record of %s does not have the credential %s",
				c.Subject, own.ID)
		}
	}
	next := rec.DeepCopy()
	s := &next.Status
	s.Token.Uses++
	s.Phase = v1alpha1.PhaseFetched
	note(s, now, "Fetched", "", "", "full config of pool "+c.Pool)
	return next, nil
}

// Used adds the ID of the use that [Redeem] counted.
func Used(rec *v1alpha1.MachineAttestation, useID string) {
	rec.Status.Token.UseIDs = append(rec.Status.Token.UseIDs, useID)
}

// Return returns the uses of a token that served no client: those of unserved that are
// on the record. It returns rec itself if there are none.
func Return(rec *v1alpha1.MachineAttestation, tokenID string, unserved []string) *v1alpha1.MachineAttestation {
	if rec == nil || rec.Status.Token == nil || rec.Status.Token.ID != tokenID {
		return rec
	}
	kept := slices.DeleteFunc(slices.Clone(rec.Status.Token.UseIDs),
		func(id string) bool { return slices.Contains(unserved, id) })
	n := len(rec.Status.Token.UseIDs) - len(kept)
	if n == 0 {
		return rec
	}
	next := rec.DeepCopy()
	next.Status.Token.UseIDs = kept
	next.Status.Token.Uses = max(0, next.Status.Token.Uses-int32(n))
	return next
}

// Joined records that the Machine is a Node. It returns nil if that is already recorded.
func Joined(rec *v1alpha1.MachineAttestation, node string, now time.Time) *v1alpha1.MachineAttestation {
	if rec == nil || rec.Status.Phase == v1alpha1.PhaseJoined {
		return nil
	}
	next := rec.DeepCopy()
	next.Status.Phase = v1alpha1.PhaseJoined
	next.Status.Token = nil
	note(&next.Status, now, "Joined", "", "", "as node "+node)
	return next
}

// firstUse reports whether the record is based only on the fact that its TPM was the
// first for the Machine (rule 3 of docs/security-rules.md).
func firstUse(s *v1alpha1.MachineAttestationStatus) bool {
	return s.Endorsement == v1alpha1.EndorsementManufacturer
}

// contested reports whether, in addition, another identity was proven for the same
// Machine. An administrator must decide, by an enrollment or by deleting the record.
func contested(s *v1alpha1.MachineAttestationStatus) bool {
	return firstUse(s) && meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionConflict)
}

// Quarantine records the quarantine of an administrator's object, or its end. It returns
// nil if nothing changes. The record keeps the quarantine if the object becomes unreadable.
func Quarantine(rec *v1alpha1.MachineAttestation, m *machine.Machine, quarantined bool,
	now time.Time) *v1alpha1.MachineAttestation {
	if rec == nil && !quarantined || rec != nil && rec.Status.Quarantined == quarantined {
		return nil
	}
	next := begin(rec, m)
	next.Status.Quarantined = quarantined
	event := "Quarantined"
	if !quarantined {
		event = "Released"
		next.Status.Credentials = nil // they were revoked
	}
	note(&next.Status, now, event, "", "", "by an administrator")
	return next
}

// New returns the record of a Machine for which nothing was recorded.
func New(m *machine.Machine) *v1alpha1.MachineAttestation { return begin(nil, m) }

func begin(rec *v1alpha1.MachineAttestation, m *machine.Machine) *v1alpha1.MachineAttestation {
	if rec != nil {
		return rec.DeepCopy()
	}
	next := &v1alpha1.MachineAttestation{}
	next.APIVersion, next.Kind = v1alpha1.GroupVersion.String(), "MachineAttestation"
	next.Namespace, next.Name = m.Namespace, m.Name
	next.Status.MachineUID = m.UID
	return next
}

// consistent checks that an attestation agrees with what the record has about the machine's identity.
func consistent(s *v1alpha1.MachineAttestationStatus, m *machine.Machine, id v1alpha1.RecordedIdentity,
	by v1alpha1.Endorsement) error {
	if err := sameIdentity(s.Identity, id); err != nil {
		if firstUse(s) {
			return reason.Wrap(reason.PendingApproval, err,
				"the record of Machine %s is based on first use, so either of the two identities may be right", m)
		}
		return err
	}
	if contested(s) && by == v1alpha1.EndorsementManufacturer {
		return reason.Deny(reason.PendingApproval,
			"Machine %s is contested: its record is based on first use, and another identity was proven for it later", m)
	}
	return nil
}

// notLater returns why the evidence may be older than that of the recorded attestation, or nil.
func notLater(s *v1alpha1.MachineAttestationStatus, m *machine.Machine, tpm *v1alpha1.TPMCounters,
	replayable bool) error {
	if replayable && s.LastAttested != nil {
		return reason.Deny(reason.EvidenceUnacceptable,
			"Machine %s attested before, and its evidence could be a copy: an instance document has no nonce", m)
	}
	return checkCounters(s.TPM, tpm)
}

// sameIdentity checks that the presented identity has every recorded component (rule 13
// of docs/security-rules.md).
func sameIdentity(recorded, presented v1alpha1.RecordedIdentity) error {
	for _, c := range []struct{ name, recorded, presented string }{
		{"EK", recorded.EKSHA256, presented.EKSHA256},
		{"AK", recorded.AKSHA256, presented.AKSHA256},
		{"provider ID", machine.NormalProviderID(recorded.ProviderID), machine.NormalProviderID(presented.ProviderID)},
		{"instance ID", recorded.InstanceID, presented.InstanceID},
	} {
		if c.recorded != "" && c.recorded != c.presented {
			return reason.Deny(reason.IdentityConflict, "the recorded %s is %s, the presented one is %q", c.name,
				c.recorded, c.presented)
		}
	}
	return nil
}

func merge(recorded, presented v1alpha1.RecordedIdentity) v1alpha1.RecordedIdentity {
	recorded.EKSHA256 = cmp.Or(recorded.EKSHA256, presented.EKSHA256)
	recorded.AKSHA256 = cmp.Or(recorded.AKSHA256, presented.AKSHA256)
	recorded.ProviderID = cmp.Or(recorded.ProviderID, presented.ProviderID)
	recorded.InstanceID = cmp.Or(recorded.InstanceID, presented.InstanceID)
	return recorded
}

// grant returns the end of the Machine's current grant, or nil. The record may be newer
// than m: if its own spec no longer has the grant, the grant was withdrawn.
func grant(rec *v1alpha1.MachineAttestation, m *machine.Machine, now time.Time) *metav1.Time {
	own := machine.Machine{Enrollment: rec}
	if own.Granted(now) {
		return &rec.Spec.Reattest.Until
	}
	if m.Granted(now) && (rec.UID == "" || m.Enrollment.UID != rec.UID) {
		return &m.Enrollment.Spec.Reattest.Until
	}
	return nil
}

// maxGrantAttestations is the number of attestations that one grant permits. It covers
// one provisioning, with two first boots and a retry.
const maxGrantAttestations = 3

// useGrant counts one use of a grant (rule 11 of docs/security-rules.md). The end of a grant identifies it.
func useGrant(rec *v1alpha1.MachineAttestation, m *machine.Machine, now time.Time) error {
	s, until := &rec.Status, grant(rec, m, now)
	if until == nil {
		return reason.Deny(reason.MachineJoined, "Machine %s joined and has no grant", m)
	}
	fresh := s.GrantUsed == nil || s.GrantUsed.Unix() != until.Unix()
	if fresh {
		s.GrantUsed, s.GrantAttestations = until, 0
	}
	// The Machine joined again, so the provisioning of this grant is complete.
	over := !fresh && s.Phase == v1alpha1.PhaseJoined
	if over || s.GrantAttestations >= maxGrantAttestations {
		return reason.Deny(reason.MachineJoined, "Machine %s joined and has used its grant %d times", m, s.GrantAttestations)
	}
	s.GrantAttestations++
	return nil
}

func useChallenge(s *v1alpha1.MachineAttestationStatus, a Attestation, now time.Time) error {
	s.Challenges = slices.DeleteFunc(s.Challenges,
		func(c v1alpha1.AnsweredChallenge) bool { return c.Expiry.Time.Before(now) })
	for _, c := range s.Challenges {
		if c.ID == a.ChallengeID {
			return reason.Deny(reason.ChallengeUsed, "challenge %s was already answered", a.ChallengeID)
		}
	}
	s.Challenges = append(s.Challenges,
		v1alpha1.AnsweredChallenge{ID: a.ChallengeID, Expiry: metav1.NewTime(a.ChallengeEnds)})
	return nil
}
