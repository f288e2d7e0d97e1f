// SPDX-License-Identifier: Apache-2.0

package appraisal

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// maxHint is the largest provider ID that a machine may claim, in bytes.
const maxHint = 512

// maxDocuments is larger than the number of kinds.
const maxDocuments = 8

// clockSkew is how far the cluster's clock and a cloud's may differ.
const clockSkew = 5 * time.Minute

// documents rejects documents that exceed the contract's limits, and two documents
// of one kind: the caller must not choose which of them counts.
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

// document returns the document of kind k, or nil.
func (a *appraisal) document(k evidence.Kind) *evidence.Document {
	for i := range a.ev.Cloud {
		if d := &a.ev.Cloud[i]; d.Kind == k && len(d.Raw) > 0 {
			return d
		}
	}
	return nil
}

// verifyDocuments verifies each required document without asking a provider. It
// ignores documents that are not required.
func (a *appraisal) verifyDocuments(ctx context.Context) error {
	for _, k := range a.Challenge.Required {
		d := a.document(k)
		if d == nil {
			continue // complete checked that it is present if k is a cloud's kind
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

// candidate finds the Machine that providers are asked about, and sets a.asked. It is
// the one that verified documents name, or else the one that the machine's claims name.
// The claims are not evidence: they only select the Machine to ask about. A caller that
// names no Machine, or whose Machine may not attest now, causes no call. Without
// documents, a provider is asked only if the policy has the endorsement Provider.
func (a *appraisal) candidate() error {
	byProvider := a.quote != nil && a.Directory != nil && a.Policy.Endorses(v1alpha1.EndorsementProvider)
	if len(a.claims) == 0 && !byProvider {
		return nil
	}
	var id machine.Identity
	var recorded v1alpha1.RecordedIdentity
	bound := false // a statement that is bound to this exchange names the Machine
	for _, c := range a.claims {
		s := c.Statement()
		recorded.InstanceID = cmp.Or(recorded.InstanceID, s.InstanceID)
		if s.ProviderID != "" {
			id.ProviderIDs = append(id.ProviderIDs, s.ProviderID)
			bound = bound || s.Bound
		}
	}
	if a.quote != nil {
		ek := a.quote.EK.SPKIHash() // the activation proved it
		recorded.EKSHA256 = hex.EncodeToString(ek[:])
	}
	a.stated = len(id.ProviderIDs) > 0
	if !a.stated {
		hint := hint(a.ev.Claims)
		if hint == "" && len(a.claims) == 0 {
			return nil // another endorsement may know the TPM
		}
		if hint == "" {
			return reason.Deny(reason.MachineNotFound,
				"no document names the machine, and its claims have no providerID")
		}
		id.ProviderIDs = []string{hint}
	}
	m, err := a.find(id, recorded)
	if err == nil {
		a.asked = m
		return nil
	}
	switch code := reason.From(err).Code; {
	case code == reason.StoreUnavailable, code == reason.RateLimited:
		return err
	case len(a.claims) == 0:
		// No provider can be asked; another endorsement may know the TPM.
		a.unasked = fmt.Errorf("the machine claims to be %.128q: %w", id.ProviderIDs[0], err)
		return nil
	case !a.stated:
		// A caller without proof must not learn the Machine's state.
		return reason.Wrap(reason.MachineNotFound, err, "the machine claims to be %.128q", id.ProviderIDs[0])
	}
	return &Refusal{denial: err, Machine: a.Machines.Named(id, a.rules()), Unproven: !bound}
}

// find returns the Machine with this identity. A Machine that is too old for a first
// attestation still matches if its record has the instance that a document names, or the
// TPM that answered. Only in that case find reads the record.
func (a *appraisal) find(id machine.Identity, recorded v1alpha1.RecordedIdentity) (*machine.Machine, error) {
	m, err := a.Machines.Match(id, a.rules())
	if err == nil || reason.From(err).Code != reason.MachineTooOld {
		return m, err
	}
	if m = a.Machines.Named(id, a.rules()); m == nil { // it was just deleted
		return nil, err
	}
	// A document says that it is that Machine, or an administrator said that the TPM is.
	if a.Claimed != nil && len(a.claims) == 0 && !slices.Contains(m.EKSHA256, recorded.EKSHA256) {
		if denial := a.Claimed(m); denial != nil {
			return nil, denial
		}
	}
	for _, component := range []v1alpha1.RecordedIdentity{
		{InstanceID: recorded.InstanceID}, {EKSHA256: recorded.EKSHA256},
	} {
		if component == (v1alpha1.RecordedIdentity{}) {
			continue
		}
		uid, lookupErr := a.Recorded(component)
		if lookupErr != nil {
			return nil, lookupErr
		}
		if uid != "" {
			id.MachineUID = uid
			return a.Machines.Match(id, a.rules())
		}
	}
	return nil, err
}

// askedProviderID returns the provider ID that providers are asked about, or "".
func (a *appraisal) askedProviderID() string {
	if a.asked == nil {
		return ""
	}
	return a.asked.ProviderID
}

// confirm asks the providers to confirm the documents' statements. From then on, the
// documents name the instance: it sets a.stated. For each statement, in order:
//
//   - the provider confirms it for the candidate;
//   - it is about the candidate: EvidenceDisagrees;
//   - it is about the same instance as the other statements: EvidenceDisagrees;
//   - the instance is not older than its Machine, because an earlier instance may
//     have had the same name and provider ID: InstanceUnacceptable. This does not
//     apply to a Machine in a file without a creationTimestamp. Nor does it apply to
//     one that joined: no earlier instance has had its name since.
func (a *appraisal) confirm(ctx context.Context) error {
	for _, c := range a.claims {
		s, err := c.Confirm(ctx, evidence.Candidate{ProviderID: a.asked.ProviderID})
		if err != nil {
			return a.refuseStated(err)
		}
		if s.ProviderID == "" || machine.NormalProviderID(s.ProviderID) != machine.NormalProviderID(a.asked.ProviderID) {
			return reason.Deny(reason.EvidenceDisagrees, "%s names %.128q, but Machine %s is %q", s.Kind, s.ProviderID,
				a.asked, a.asked.ProviderID)
		}
		if err := a.agrees(s.InstanceID); err != nil {
			return err
		}
		dated := !s.Created.IsZero() && !a.asked.StandIn && !a.asked.Undated && !a.asked.Joined()
		if dated && s.Created.Before(a.asked.Created.Add(-clockSkew)) {
			return a.refuseStated(reason.Deny(reason.InstanceUnacceptable,
				"%s: the instance was created at %s, before Machine %s (%s): an earlier instance had its name",
				s.Kind, s.Created.UTC().Format(time.RFC3339), a.asked, a.asked.Created.UTC().Format(time.RFC3339)))
		}
		a.statements, a.stated = append(a.statements, s), true
		a.summaries = append(a.summaries, v1alpha1.EvidenceSummary{Kind: s.Kind.String(),
			SHA256: digest(a.document(s.Kind).Raw), Summary: s.Summary})
		a.warnings = append(a.warnings, s.Warnings...)
	}
	return nil
}

// agrees checks that all statements name this instance. An instance ID begins with
// the name of its cloud, so the IDs of two clouds are never equal.
func (a *appraisal) agrees(instanceID string) error {
	for _, s := range a.statements {
		if instanceID != "" && s.InstanceID != instanceID {
			return reason.Deny(reason.EvidenceDisagrees, "the evidence names two instances, %.128q and %.128q",
				s.InstanceID, instanceID)
		}
	}
	return nil
}

// bound reports whether a confirmed statement is bound to this exchange.
func (a *appraisal) bound() bool {
	return slices.ContainsFunc(a.statements, func(s evidence.Statement) bool { return s.Bound })
}

// replayable reports that no proof is bound to this exchange: the caller may only have a copy of a document.
func (a *appraisal) replayable() bool { return a.quote == nil && !a.bound() }

// refuseStated returns err as a Refusal for the candidate's record, if a statement
// that is bound to this exchange names the candidate. Otherwise it returns err.
func (a *appraisal) refuseStated(err error) error {
	names := func(s evidence.Statement) bool { return s.Bound && s.ProviderID != "" }
	if slices.ContainsFunc(a.statements, names) ||
		slices.ContainsFunc(a.claims, func(c evidence.Claim) bool { return names(c.Statement()) }) {
		return &Refusal{denial: err, Machine: a.asked}
	}
	return err
}

// hint returns the provider ID that the machine claims, or "".
func hint(claims []byte) string {
	var c struct {
		ProviderID string `json:"providerID"`
	}
	if len(claims) == 0 || json.Unmarshal(claims, &c) != nil || len(c.ProviderID) > maxHint {
		return ""
	}
	return c.ProviderID
}
