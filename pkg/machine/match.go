// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"time"

	"github.com/mcs-attest/mcs-attest/pkg/reason"
)

// Identity is what verified evidence proved about the machine. Callers must set only
// components that were proven.
type Identity struct {
	// EK is the endorsement key of the TPM that answered, or zero without a TPM.
	EK EKHash
	// ProviderIDs are the cloud instances that a cloud's statements name, one for each
	// statement, in the form of a Machine's spec.providerID.
	ProviderIDs []string
	// MachineUID is the Machine whose record has this identity, or "".
	MachineUID string
}

// Rules are the conditions that the Machine of an identity must meet.
type Rules struct {
	// Pool is the requested pool.
	Pool string
	Now  time.Time
	// MaxAge of a Machine that attests for the first time. With zero, no Machine is young enough.
	MaxAge time.Duration
	// EKEnrolled requires that the EK is enrolled. Otherwise another endorsement vouched for it.
	EKEnrolled bool

	// rehearsed is the UID of a Machine that may attest as with a grant, or "". Only [Rehearsal] sets it.
	rehearsed string
}

// Match returns the Machine of an identity if it may attest now. Its cost does not
// depend on the number of Machines. In order:
//
//   - each component names at most one Machine (MachineAmbiguous), some component
//     names one (EKNotEnrolled, MachineNotFound), and all name the same
//     (EvidenceDisagrees);
//   - the cloud's statements match the Machine and its enrollment (EvidenceDisagrees,
//     or MachineNotFound while the Machine has no provider ID);
//   - the EK is enrolled if the rules require it. If a Machine has enrolled EKs, it
//     must always be one of them (EKNotEnrolled);
//   - no administrator quarantined it (Quarantined);
//   - it is not being deleted and has not failed (MachineDeleting);
//   - it has not joined, or has a grant (MachineJoined);
//   - it is young enough, is a stand-in, attested before, or has a grant (MachineTooOld);
//   - the pool is one of its pools (MachinePool).
func (ix *Index) Match(id Identity, r Rules) (*Machine, error) {
	m, err := ix.find(id, r)
	if err != nil {
		return nil, err
	}
	if err := ix.fits(m, id, r); err != nil {
		return nil, err
	}
	granted := m.Granted(r.Now) || r.rehearsed != "" && r.rehearsed == m.UID
	switch {
	case m.quarantined:
		return nil, reason.Deny(reason.Quarantined, "Machine %s", m)
	case m.Deleting:
		return nil, reason.Deny(reason.MachineDeleting, "Machine %s", m)
	case m.Phase == "Failed":
		return nil, reason.Deny(reason.MachineDeleting, "Machine %s is in phase Failed and can only be deleted", m)
	case m.Joined() && !granted:
		return nil, reason.Deny(reason.MachineJoined, "Machine %s is already Node %s", m, m.NodeRef)
	}
	age := r.Now.Sub(m.Created)
	if age > r.MaxAge && !m.StandIn && !granted && id.MachineUID != m.UID {
		return nil, reason.Deny(reason.MachineTooOld, "Machine %s was created %s ago, and maxMachineAge is %s", m,
			age.Round(time.Second), r.MaxAge)
	}
	if !m.HasPool(r.Pool) {
		if len(m.Pools) == 0 {
			return nil, reason.Deny(reason.MachinePool,
				"Machine %s has no pool: no role label, no annotation, no pointer config", m)
		}
		return nil, reason.Deny(reason.MachinePool, "the request is for pool %.64q, but Machine %s may have %q", r.Pool, m,
			m.Pools)
	}
	return m, nil
}

// find resolves every component of an identity to one Machine.
func (ix *Index) find(id Identity, r Rules) (*Machine, error) {
	var found *Machine
	add := func(m *Machine) error {
		if found != nil && found != m {
			return reason.Deny(reason.EvidenceDisagrees, "the evidence names Machine %s and Machine %s", found, m)
		}
		found = m
		return nil
	}
	for _, e := range ix.byEK[id.EK] {
		if !e.valid(r.Now) {
			continue
		}
		if found != nil {
			return nil, reason.Deny(reason.MachineAmbiguous, "the EK is enrolled for Machine %s and Machine %s", found,
				e.Machine)
		}
		found = e.Machine
	}
	for _, p := range id.ProviderIDs {
		list := ix.byProvider[NormalProviderID(p)]
		if len(list) == 0 {
			continue
		}
		if len(list) > 1 {
			return nil, reason.Deny(reason.MachineAmbiguous, "provider ID %.128q belongs to %d Machines, among them %s and %s",
				p, len(list), list[0], list[1])
		}
		if err := add(list[0]); err != nil {
			return nil, err
		}
	}
	if m, ok := ix.byUID[id.MachineUID]; ok && id.MachineUID != "" {
		if err := add(m); err != nil {
			return nil, err
		}
	}
	e, waiting := ix.waiting[id.EK]
	switch {
	case found != nil && waiting:
		return nil, reason.Deny(reason.EvidenceDisagrees,
			"the EK is enrolled for %s, but other evidence names Machine %s", e.named(), found)
	case found != nil:
		return found, nil
	case waiting:
		return nil, reason.Deny(reason.MachineNotFound, "the EK is enrolled for %s, which does not exist or is a duplicate",
			e.named())
	case len(ix.byEK[id.EK]) > 0:
		return nil, reason.Deny(reason.EKNotEnrolled, "the enrollment of Machine %s has expired", ix.byEK[id.EK][0].Machine)
	case r.EKEnrolled && id.EK != (EKHash{}):
		return nil, reason.Deny(reason.EKNotEnrolled, "EK %x", id.EK)
	}
	return nil, reason.Deny(reason.MachineNotFound, "the proven identity matches no Machine (provider IDs %.256q)",
		id.ProviderIDs)
}

// fits checks that a Machine agrees with the components that did not select it.
func (ix *Index) fits(m *Machine, id Identity, r Rules) error {
	for _, p := range id.ProviderIDs {
		for _, want := range m.expected {
			if NormalProviderID(p) != NormalProviderID(want) {
				return reason.Deny(reason.EvidenceDisagrees, "the cloud names %.128q, but the enrollment of Machine %s expects %q",
					p, m, want)
			}
		}
		switch {
		case m.ProviderID == "":
			return reason.Deny(reason.MachineNotFound, "the cloud names %.128q, but Machine %s has no provider ID yet", p, m)
		case NormalProviderID(p) != NormalProviderID(m.ProviderID):
			return reason.Deny(reason.EvidenceDisagrees, "the cloud names %.128q, but Machine %s is %q", p, m, m.ProviderID)
		}
	}
	if id.EK == (EKHash{}) || !r.EKEnrolled && len(m.EKSHA256) == 0 {
		return nil
	}
	for _, e := range ix.byEK[id.EK] {
		if e.Machine == m && e.valid(r.Now) {
			return nil
		}
	}
	return reason.Deny(reason.EKNotEnrolled, "EK %x; Machine %s has the enrolled EKs %q", id.EK, m, m.EKSHA256)
}

// valid reports whether the enrollment has not expired.
func (e enrolled) valid(now time.Time) bool {
	return e.by == nil || e.by.Spec.NotAfter == nil || now.Before(e.by.Spec.NotAfter.Time)
}
