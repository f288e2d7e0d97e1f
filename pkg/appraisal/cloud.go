package appraisal

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// maxHint bounds a provider id that a machine says of itself, in bytes.
const maxHint = 512

// maxDocuments is more than there are kinds.
const maxDocuments = 8

// clockSkew is how far the cluster's clock and a cloud's may differ.
const clockSkew = 5 * time.Minute

// documents refuses what breaks the contract's limits, and two of a kind: there
// must be no choice which of them counts.
func (a *appraisal) documents() error {
	if n := len(a.ev.Cloud); n > maxDocuments {
		return reason.Deny(reason.TooLarge, "%d documents", n)
	}
	for i, d := range a.ev.Cloud {
		switch {
		case len(d.Raw) > MaxDocument || len(d.Token) > MaxToken || len(d.Certificates) > MaxChain,
			slices.ContainsFunc(d.Certificates, func(der []byte) bool { return len(der) > MaxCertificate }):
			return reason.Deny(reason.TooLarge, "%s: document of %d bytes, token of %d, %d certificates", d.Kind, len(d.Raw),
				len(d.Token), len(d.Certificates))
		case slices.ContainsFunc(a.ev.Cloud[:i], func(other evidence.Document) bool { return other.Kind == d.Kind }):
			return reason.Deny(reason.Malformed, "two documents of kind %s", d.Kind)
		}
	}
	return nil
}

// document is the one of a kind, nil if there is none.
func (a *appraisal) document(k evidence.Kind) *evidence.Document {
	for i := range a.ev.Cloud {
		if d := &a.ev.Cloud[i]; d.Kind == k && len(d.Raw) > 0 {
			return d
		}
	}
	return nil
}

// verifyDocuments checks each required document as far as it goes without asking
// a provider. What was sent and is not required is not looked at.
func (a *appraisal) verifyDocuments(ctx context.Context) error {
	for _, k := range a.Challenge.Required {
		d := a.document(k)
		if d == nil {
			continue // complete has seen to it that k is no cloud's
		}
		v, ok := a.Clouds[k]
		if !ok {
			return reason.Deny(reason.ProviderUnavailable,
				"%s is required, and the verifier's configuration has no section for that cloud", k)
		}
		claim, err := v.Verify(ctx, *d, evidence.Binding{Transcript: a.transcript, Origin: a.Challenge.Origin}, a.now)
		if err != nil {
			return err
		}
		a.claims = append(a.claims, claim)
		a.verified = append(a.verified, k)
	}
	return nil
}

// candidate finds the Machine that providers are to be asked about: the one that
// verified statements name. Where none names one yet, it is the one that the
// machine says it is. That word only chooses what is asked; it is never evidence,
// and a caller who says nothing, or names a Machine that may not attest now,
// causes no call. Nobody is asked about a TPM alone unless its policy says so.
func (a *appraisal) candidate() error {
	byProvider := a.quote != nil && a.Directory != nil && a.Policy.Endorses(v1alpha1.EndorsementProvider)
	if len(a.claims) == 0 && !byProvider {
		return nil
	}
	var id machine.Identity
	var recorded v1alpha1.RecordedIdentity
	bound := false // a statement of this conversation names the Machine
	for _, c := range a.claims {
		s := c.Statement()
		recorded.InstanceID = cmp.Or(recorded.InstanceID, s.InstanceID)
		if s.ProviderID != "" {
			id.ProviderIDs = append(id.ProviderIDs, s.ProviderID)
			bound = bound || s.Bound
		}
	}
	a.stated = len(id.ProviderIDs) > 0
	if !a.stated {
		hint := hint(a.ev.Claims)
		if hint == "" && len(a.claims) == 0 {
			return nil // another endorsement may know the TPM
		}
		if hint == "" {
			return reason.Deny(reason.MachineNotFound,
				"nothing that was sent names the machine by itself, and its claims have no providerID")
		}
		id.ProviderIDs = []string{hint}
	}
	m, err := a.find(id, recorded)
	if err == nil {
		a.asked = m
		return nil
	}
	switch code := reason.From(err).Code; {
	case code == reason.StoreUnavailable:
		return err
	case len(a.claims) == 0:
		return nil // nobody can be asked; another endorsement may know the TPM
	case !a.stated:
		// What state a Machine is in is nothing to tell on somebody's mere word.
		return reason.Wrap(reason.MachineNotFound, err, "the machine says that it is %.128q", id.ProviderIDs[0])
	}
	return &Refusal{denial: err, Machine: a.Machines.Named(id, a.rules()), Unproven: !bound}
}

// find is Match, where a Machine's age is excused by what is on record for the
// instance that a document names. That is only read if it matters, and for nobody
// who has shown no document that verified.
func (a *appraisal) find(id machine.Identity, recorded v1alpha1.RecordedIdentity) (*machine.Machine, error) {
	m, err := a.Machines.Match(id, a.rules())
	if err == nil || reason.From(err).Code != reason.MachineTooOld || recorded.InstanceID == "" {
		return m, err
	}
	uid, lookupErr := a.Recorded(recorded)
	if lookupErr != nil {
		return nil, lookupErr
	}
	if uid == "" {
		return nil, err
	}
	id.MachineUID = uid
	return a.Machines.Match(id, a.rules())
}

// askedProviderID is the instance that providers are asked about.
func (a *appraisal) askedProviderID() string {
	if a.asked == nil {
		return ""
	}
	return a.asked.ProviderID
}

// confirm has the providers say what their documents leave open. In order, for
// each statement:
//
//   - the provider confirms it, about the candidate;
//   - it is about the candidate: EvidenceDisagrees;
//   - it is about the same instance as the other statements: EvidenceDisagrees;
//   - the instance is not older than its Machine, whose name and provider id may
//     have been another's before: InstanceUnacceptable. A Machine in a file without
//     a creationTimestamp may well be written after the instance was made.
func (a *appraisal) confirm(ctx context.Context) error {
	for _, c := range a.claims {
		s, err := c.Confirm(ctx, evidence.Candidate{ProviderID: a.asked.ProviderID})
		if err != nil {
			return a.refuseStated(err)
		}
		if s.ProviderID == "" || machine.NormalProviderID(s.ProviderID) != machine.NormalProviderID(a.asked.ProviderID) {
			return reason.Deny(reason.EvidenceDisagrees, "%s names %.128q, Machine %s is %q", s.Kind, s.ProviderID, a.asked,
				a.asked.ProviderID)
		}
		if err := a.agrees(s.InstanceID); err != nil {
			return err
		}
		if !s.Created.IsZero() && !a.asked.StandIn && !a.asked.Undated && s.Created.Before(a.asked.Created.Add(-clockSkew)) {
			return a.refuseStated(reason.Deny(reason.InstanceUnacceptable,
				"%s: the instance is of %s, Machine %s of %s: another one had its name before",
				s.Kind, s.Created.UTC().Format(time.RFC3339), a.asked, a.asked.Created.UTC().Format(time.RFC3339)))
		}
		a.statements = append(a.statements, s)
		a.summaries = append(a.summaries, v1alpha1.EvidenceSummary{Kind: s.Kind.String(),
			SHA256: digest(a.document(s.Kind).Raw), Summary: s.Summary})
		a.warnings = append(a.warnings, s.Warnings...)
	}
	return nil
}

// agrees: everything that names an instance names the same. Each cloud's own name
// begins with its own word, so no two clouds' names are equal by accident.
func (a *appraisal) agrees(instanceID string) error {
	for _, s := range a.statements {
		if instanceID != "" && s.InstanceID != instanceID {
			return reason.Deny(reason.EvidenceDisagrees, "one piece of evidence is of instance %.128q, another of %.128q",
				s.InstanceID, instanceID)
		}
	}
	return nil
}

// bound: a confirmed statement is of this conversation.
func (a *appraisal) bound() bool {
	return slices.ContainsFunc(a.statements, func(s evidence.Statement) bool { return s.Bound })
}

// refuseStated is a denial that may be noted at the candidate, if a statement of
// this conversation names it.
func (a *appraisal) refuseStated(err error) error {
	for _, c := range a.claims {
		if s := c.Statement(); s.Bound && s.ProviderID != "" {
			return &Refusal{denial: err, Machine: a.asked}
		}
	}
	return err
}

// hint is the machine's own word for its provider id; "" if it gives none.
func hint(claims []byte) string {
	var c struct {
		ProviderID string `json:"providerID"`
	}
	if len(claims) == 0 || json.Unmarshal(claims, &c) != nil || len(c.ProviderID) > maxHint {
		return ""
	}
	return c.ProviderID
}
