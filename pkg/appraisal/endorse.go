// SPDX-License-Identifier: Apache-2.0

package appraisal

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/api/v1alpha1"
	"github.com/mcs-attest/mcs-attest/pkg/evidence"
	"github.com/mcs-attest/mcs-attest/pkg/evidence/tpm2"
	"github.com/mcs-attest/mcs-attest/pkg/machine"
	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// endorse asks the endorsers that the policy allows, in the fixed order of package
// policy. The first one that endorses the EK decides.
//
// If a document names the instance, its provider's answer about the instance's TPM is
// final. An unavailable provider leads to a temporary denial, because an attacker who
// causes an outage must not get a weaker endorsement. If only the machine's claims name
// the instance, an enrollment takes precedence and suffices.
func (a *appraisal) endorse(ctx context.Context) error {
	if a.quote == nil {
		return nil
	}
	var unusable error
	for _, kind := range a.Policy.Endorsements {
		e, ok := a.Endorsers[kind]
		if kind == v1alpha1.EndorsementProvider {
			if !a.stated && a.Policy.Endorses(v1alpha1.EndorsementEnrolled) && a.Machines.Enrolled(a.quote.EK.SPKIHash()) {
				continue
			}
			e, ok = tpm2.ProviderEndorser{Directory: a.Directory, ProviderID: a.askedProviderID()}, true
		}
		if !ok {
			continue
		}
		endorsed, err := e.Endorse(ctx, a.identity, a.now)
		if errors.Is(err, tpm2.ErrNotMine) {
			continue
		}
		if err != nil && kind == v1alpha1.EndorsementProvider &&
			(a.stated || reason.From(err).Code == reason.ProviderUnavailable) {
			return a.refuseStated(err)
		}
		if err != nil {
			if unusable == nil || !reason.From(unusable).Code.Temporary() {
				unusable = err
			}
			continue
		}
		a.endorsed, a.endorsement = endorsed, kind
		return nil
	}
	hash := a.quote.EK.SPKIHash()
	if unusable != nil && !a.Policy.Endorses(v1alpha1.EndorsementEnrolled) {
		return unusable
	}
	// An administrator may still enroll the EK, so the denial is temporary. The cause is only in the log:
	// a caller without proof must not learn the Machine's state.
	if cause := cmp.Or(unusable, a.unasked); cause != nil {
		return a.unknown(reason.Wrap(reason.EKNotEnrolled, cause, "EK %x", hash))
	}
	return a.unknown(reason.Deny(reason.EKNotEnrolled, "EK %x", hash))
}

// match finds the one Machine that all proofs name, and sets a.machine. It also sets
// a.machine if it returns an error because that Machine may not attest now.
func (a *appraisal) match() error {
	rules := a.rules()
	var id machine.Identity
	for _, s := range a.statements {
		id.ProviderIDs = append(id.ProviderIDs, s.ProviderID)
	}
	if a.quote != nil {
		id.EK = a.quote.EK.SPKIHash()
		if a.endorsed.ProviderID != "" {
			id.ProviderIDs = append(id.ProviderIDs, a.endorsed.ProviderID)
		}
		if err := a.agrees(a.endorsed.InstanceID); err != nil {
			return err
		}
		rules.EKEnrolled = !a.tied()
	}
	uid, err := a.Recorded(a.recorded())
	if err != nil {
		return err
	}
	id.MachineUID = uid
	m, err := a.Machines.Match(id, rules)
	if err != nil {
		if a.quote != nil || a.bound() {
			a.machine = a.Machines.Named(id, rules)
		}
		return err
	}
	if a.asked != nil && a.asked.UID != m.UID {
		// Another Machine of the same name replaced it, so the comparisons above no longer apply.
		return reason.Deny(reason.MachineNotFound, "Machine %s was replaced during the appraisal", m)
	}
	a.machine = m
	return nil
}

// tied reports whether anything besides an enrollment proves to which machine the TPM
// belongs: the provider, an AK certificate that names an instance, or a statement that
// is bound to this exchange. Only Azure's certificates name no instance. So beside one,
// only Azure's statement counts: a virtual machine of Azure does not have the TPM of
// another cloud's.
func (a *appraisal) tied() bool {
	switch a.endorsement {
	case v1alpha1.EndorsementProvider:
		return true
	case v1alpha1.EndorsementAKCertificate:
		return a.endorsed.ProviderID != "" || slices.ContainsFunc(a.statements, func(s evidence.Statement) bool {
			return s.Bound && s.Kind == evidence.AzureAttested
		})
	case v1alpha1.EndorsementManufacturer:
		return a.firstUse()
	}
	return false
}

// firstUse reports whether the policy binds a genuine TPM to the Machine that a bound
// statement names (rule 1 of docs/security-rules.md).
func (a *appraisal) firstUse() bool {
	return a.Policy.Approval == v1alpha1.ApprovalFirstUse && a.bound()
}

func (a *appraisal) rules() machine.Rules {
	return machine.Rules{Pool: a.Policy.Pool, Now: a.now, MaxAge: a.Policy.MaxMachineAge}
}

// unenrolled reports whether an administrator must approve the TPM: a manufacturer's
// certificate shows that it is genuine, but no enrollment tells to which machine it
// belongs. Contradictory evidence does not qualify.
func (a *appraisal) unenrolled(matchErr error) bool {
	code := reason.From(matchErr).Code
	return a.endorsement == v1alpha1.EndorsementManufacturer && !a.Machines.Enrolled(a.quote.EK.SPKIHash()) &&
		(code == reason.EKNotEnrolled || code == reason.MachineNotFound)
}

// refuse returns err as the denial of a caller that proved a Machine, or a genuine TPM that belongs to none.
func (a *appraisal) refuse(err error) error {
	r := &Refusal{denial: err, Machine: a.machine, Unproven: a.replayable()}
	if a.machine == nil {
		r.Unenrolled = a.endorsed
		r.EKSHA256 = a.quote.EK.SPKIHash()
	}
	return r
}

// unknown returns err as the denial of a caller that belongs to no Machine, with its EK if it
// proved one.
func (a *appraisal) unknown(err error) error {
	if a.quote == nil {
		return err
	}
	return &Refusal{denial: err, EKSHA256: a.quote.EK.SPKIHash()}
}

func (a *appraisal) recorded() v1alpha1.RecordedIdentity {
	var id v1alpha1.RecordedIdentity
	for _, s := range a.statements {
		id.ProviderID, id.InstanceID = s.ProviderID, s.InstanceID
	}
	if a.endorsed == nil {
		return id
	}
	if a.endorsed.EKSHA256 != ([sha256.Size]byte{}) {
		id.EKSHA256 = hex.EncodeToString(a.endorsed.EKSHA256[:])
	}
	if a.endorsed.AKSHA256 != ([sha256.Size]byte{}) {
		id.AKSHA256 = hex.EncodeToString(a.endorsed.AKSHA256[:])
	}
	id.ProviderID = cmp.Or(id.ProviderID, a.endorsed.ProviderID)
	id.InstanceID = cmp.Or(id.InstanceID, a.endorsed.InstanceID)
	return id
}

// Endorsers returns the endorsers that ask no cloud: by AK certificate, by enrollment, by the TPM's manufacturer.
func Endorsers(ak tpm2.Endorser, machines Machines, ek tpm2.Roots) map[v1alpha1.Endorsement]tpm2.Endorser {
	return map[v1alpha1.Endorsement]tpm2.Endorser{
		v1alpha1.EndorsementAKCertificate: ak,
		v1alpha1.EndorsementEnrolled:      EnrolledEndorser{Machines: machines},
		v1alpha1.EndorsementManufacturer:  tpm2.ManufacturerEndorser{Roots: ek},
	}
}

// EnrolledEndorser endorses an EK that an administrator enrolled.
type EnrolledEndorser struct{ Machines Machines }

// Endorse endorses id if its EK's hash is enrolled.
func (e EnrolledEndorser) Endorse(_ context.Context, id tpm2.Identity, _ time.Time) (*tpm2.Endorsement, error) {
	hash := id.EK.SPKIHash()
	if !e.Machines.Enrolled(hash) {
		return nil, tpm2.ErrNotMine
	}
	return &tpm2.Endorsement{Kind: tpm2.Enrolled, EKSHA256: hash}, nil
}
